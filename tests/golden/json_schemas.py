#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes json_schemas.json: random schemas, and for each, values that jsonschema finds valid or not.

Run with jsonschema 4.26 installed. Values are written as the grammars write them (compact, properties in
the schema's order), so that a valid one must be accepted.
"""
import json
import pathlib
import random

import jsonschema

random.seed(1)
NAMES = ["a", "ab", "b", "é", "x y", 'q"']
TEXTS = ["", "a", "ab", "abc", "é", 'a"b', "line\n", "\U0001F600", "2024-02-28", "zzzz"]


def scalar_schema():
    kind = random.randrange(9)
    if kind == 0:
        return {"type": "string", "minLength": random.randrange(3), "maxLength": random.randrange(2, 6)}
    if kind == 1:
        return {"type": "string", "pattern": random.choice(["^a", "b$", "^[a-z]{1,3}$", "a|é", "^(ab?)*$"])}
    if kind == 2:
        low = random.randrange(-20, 20)
        keys = random.choice([("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")])
        return {"type": random.choice(["integer", "number"]), keys[0]: low, keys[1]: low + random.randrange(1, 30)}
    if kind == 3:
        return {"enum": random.sample([None, True, 1, -2.5, "a", "ab", 'a"b', [1, "é"], {"a": None}], 3)}
    if kind == 4:
        return {"const": random.choice([1, "a", None, {"a": [True]}])}
    if kind == 5:
        return {"type": random.sample(["string", "integer", "null", "boolean", "number"], 2)}
    return {"type": random.choice(["string", "integer", "number", "null", "boolean"])}


def schema(depth):
    kind = random.randrange(8) if depth > 0 else 0
    if kind <= 2:
        return scalar_schema()
    if kind <= 4:
        names = random.sample(NAMES, random.randrange(0, 4))
        result = {"type": "object", "properties": {name: schema(depth - 1) for name in names}}
        result["required"] = [name for name in names if random.random() < 0.5]
        more = random.choice([False, False, True, "schema", None])
        if more is not None:
            result["additionalProperties"] = scalar_schema() if more == "schema" else more
        return result
    if kind == 5:
        result = {"type": "array", "items": schema(depth - 1)}
        if random.random() < 0.5:
            result["minItems"] = random.randrange(3)
            result["maxItems"] = result["minItems"] + random.randrange(3)
        if random.random() < 0.4:
            result["prefixItems"] = [schema(depth - 1) for _ in range(random.randrange(1, 3))]
            if random.random() < 0.5:
                result["items"] = False
        return result
    if kind == 6:
        return {"anyOf": [schema(depth - 1) for _ in range(random.randrange(1, 4))]}
    parts = []
    for _ in range(2):
        names = random.sample(NAMES, 2)
        part = {"type": "object", "properties": {name: {"type": random.choice(["string", "integer"])} for name in names}}
        part["required"] = names[:1]
        if random.random() < 0.3:
            part["additionalProperties"] = random.choice([False, {"type": "integer"}])
        parts.append(part)
    return {"allOf": parts}


def order(s):
    """The names that objects of a schema come in."""
    if not isinstance(s, dict):
        return []
    names = list(s.get("properties", {}))
    for part in s.get("allOf", []):
        names += [name for name in part.get("properties", {}) if name not in names]
    return names


def value(s, depth=0):
    """Often what the schema wants."""
    if not isinstance(s, dict) or random.random() < 0.12 or depth > 4:
        return random.choice([None, True, 0, 7, -3, 2.5, "a", "ab", "zzzz", [], {}, [1], {"a": 1}])
    if "anyOf" in s:
        return value(random.choice(s["anyOf"]), depth + 1)
    if "enum" in s:
        return random.choice(s["enum"])
    if "const" in s:
        return s["const"]
    if "allOf" in s:
        merged = {"type": "object", "properties": {}, "required": []}
        for part in s["allOf"]:
            merged["properties"].update(part["properties"])
            merged["required"] += part["required"]
        return value({**merged, "additionalProperties": random.random() < 0.3}, depth)
    kind = s["type"] if isinstance(s["type"], str) else random.choice(s["type"])
    if kind == "object":
        names = [name for name in order(s) if name in s.get("required", []) or random.random() < 0.5]
        result = {name: value(s["properties"][name], depth + 1) for name in names if random.random() < 0.95}
        if s.get("additionalProperties", True) is not False or random.random() < 0.1:
            for name in random.sample(NAMES + ["abc", "éa", "z"], random.randrange(0, 2)):
                result.setdefault(name, value(s.get("additionalProperties"), depth + 1))
        return result
    if kind == "array":
        items = s.get("prefixItems", [])
        count = random.randrange(0, 5)
        return [value(items[i] if i < len(items) else s["items"], depth + 1) for i in range(count)]
    if kind == "string":
        return random.choice(TEXTS)
    if kind in ("integer", "number"):
        low = s.get("minimum", s.get("exclusiveMinimum", -5))
        whole = random.randrange(low - 2, low + 32)
        return whole if kind == "integer" or random.random() < 0.5 else whole + 0.25
    return None if kind == "null" else random.random() < 0.5


def ordered(s, v):
    """Whether objects have the order of their schema."""
    if isinstance(s, dict) and "anyOf" in s:
        return any(jsonschema.Draft202012Validator(part).is_valid(v) and ordered(part, v) for part in s["anyOf"])
    if isinstance(v, dict) and isinstance(s, dict):
        names = order(s)
        places = [names.index(name) if name in names else len(names) for name in v]
        inner = s.get("properties", {})
        return places == sorted(places) and all(ordered(inner.get(name), item) for name, item in v.items())
    if isinstance(v, list) and isinstance(s, dict):
        firsts = s.get("prefixItems", [])
        return all(ordered(firsts[i] if i < len(firsts) else s.get("items"), item) for i, item in enumerate(v))
    return True




def main():
    cases = []
    for _ in range(250):
        s = schema(2)
        validator = jsonschema.Draft202012Validator(s)
        case = {"schema": s, "valid": [], "invalid": []}
        for _ in range(12):
            v = value(s)
            text = json.dumps(v, ensure_ascii=False, separators=(",", ":"))
            if not validator.is_valid(v):
                if text not in case["invalid"]:
                    case["invalid"].append(text)
            elif ordered(s, v) and text not in case["valid"]:
                case["valid"].append(text)
        cases.append(case)
    path = pathlib.Path(__file__).with_name("json_schemas.json")
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    path.write_text(f"[\n{lines}\n]\n")


main()
