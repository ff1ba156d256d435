#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes emitted_schemas.json: schemas as tools of today write them.

Most are what pydantic 2.13 makes of types that users declare; the rest follow by hand what the
documentation of zod 4 (z.toJSONSchema), schemars, TypeBox, OpenAPI 3.0 and agents' tools shows.
Each line is [name, schema]. With a file of [schema, text] lines as its argument the script instead says which
texts do not validate, with the package jsonschema.
"""
import json
import pathlib
import sys


def pydantic_schemas():
    import dataclasses
    import datetime
    import decimal
    import enum
    import ipaddress
    import pathlib as paths
    import typing
    import uuid
    from typing import Annotated, Any, Literal, Optional, Union

    import pydantic
    import typing_extensions
    from pydantic import BaseModel, Field, TypeAdapter, create_model

    class Color(str, enum.Enum):
        red = "red"
        blue = "blue"

    class Level(enum.IntEnum):
        low = 1
        high = 2

    class Point(BaseModel):
        x: float
        y: float = 0.0

    class Node(BaseModel):
        value: int
        children: list["Node"] = []

    class Cat(BaseModel):
        kind: Literal["cat"]
        lives: int = Field(9, ge=0, le=9)

    class Dog(BaseModel):
        kind: Literal["dog"]
        good: bool

    class Closed(BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        a: int
        b: Optional[str] = None

    class Open(BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        a: int

    class Pair(typing_extensions.TypedDict):
        left: int
        right: str

    class Loose(typing_extensions.TypedDict, total=False):
        note: str
        tags: list[str]

    class Named(typing.NamedTuple):
        a: int
        b: str = "x"

    @dataclasses.dataclass
    class Box:
        width: int
        label: str = ""

    Pet = Annotated[Union[Cat, Dog], Field(discriminator="kind")]

    class Owner(BaseModel):
        """Who has pets."""

        name: str = Field(description="full name", examples=["Ada"], min_length=1, max_length=80)
        pets: list[Pet]
        address: Optional[dict[str, str]] = None

    scalars = {
        "int": int, "float": float, "str": str, "bool": bool, "none": None, "any": Any, "bytes": bytes,
        "decimal": decimal.Decimal, "date": datetime.date, "datetime": datetime.datetime, "time": datetime.time,
        "timedelta": datetime.timedelta, "uuid": uuid.UUID, "uuid4": pydantic.UUID4, "path": paths.Path,
        "file": pydantic.FilePath, "ipv4": ipaddress.IPv4Address, "ipv6": ipaddress.IPv6Address,
        "network": ipaddress.IPv4Network, "any_ip": pydantic.IPvAnyAddress, "url": pydantic.AnyUrl,
        "http_url": pydantic.HttpUrl, "secret": pydantic.SecretStr, "json": pydantic.Json,
        "aware": pydantic.AwareDatetime, "naive": pydantic.NaiveDatetime, "past": pydantic.PastDate,
        "future": pydantic.FutureDatetime, "base64": pydantic.Base64Str, "byte_size": pydantic.ByteSize,
        "postgres": pydantic.PostgresDsn, "strict_int": pydantic.StrictInt, "strict_str": pydantic.StrictStr,
        "finite": pydantic.FiniteFloat, "positive": pydantic.PositiveInt, "negative": pydantic.NegativeFloat,
        "not_negative": pydantic.NonNegativeInt, "not_positive": pydantic.NonPositiveFloat,
        "color": Color, "level": Level, "literal": Literal["a", "b", 3], "one": Literal["only"],
        "ge_le": Annotated[int, Field(ge=1, le=10)], "gt_lt": Annotated[float, Field(gt=0.5, lt=1.5)],
        "multiple": Annotated[int, Field(multiple_of=5)], "cents": Annotated[float, Field(multiple_of=0.01, ge=0)],
        "multiple_within": Annotated[int, Field(multiple_of=15, ge=0, le=1440)],
        "big": Annotated[int, Field(ge=0, le=18446744073709551615)],
        "length": Annotated[str, Field(min_length=2, max_length=5)], "long": Annotated[str, Field(max_length=100000)],
        "pattern": Annotated[str, Field(pattern=r"^[A-Z]{2}\d{4}$")],
        "search": Annotated[str, Field(pattern=r"\d+")],
        "pattern_length": Annotated[str, Field(pattern=r"^[a-z_]+$", max_length=32)],
        "slug": Annotated[str, Field(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$", min_length=3, max_length=60)],
        "max_digits": Annotated[decimal.Decimal, Field(max_digits=6, decimal_places=2)],
        "gt_decimal": Annotated[decimal.Decimal, Field(gt=0)],
    }
    structures = {
        "point": Point, "node": Node, "cat": Cat, "pet": Pet, "closed": Closed, "open": Open, "pair": Pair,
        "loose": Loose, "named": Named, "box": Box, "owner": Owner,
        "tuple": tuple[int, str], "tuple_of": tuple[int, ...], "empty_tuple": tuple[()],
        "set_of_color": set[Color], "frozen": frozenset[Literal["a", "b", "c"]], "set_of_bool": set[bool],
        "mapping": dict[str, int], "by_color": dict[Color, int], "by_int": dict[int, str],
        "by_pattern": dict[Annotated[str, Field(pattern="^[a-z]+$")], int],
        "list_1_3": Annotated[list[int], Field(min_length=1, max_length=3)],
        "dict_1_2": Annotated[dict[str, int], Field(min_length=1, max_length=2)],
        "either": Union[int, str], "either_model": Union[Cat, Closed], "deep": dict[str, list[Optional[Point]]],
    }
    sets = {"set_of_str": set[str], "set_of_int": set[int]}
    schemas = []

    def add(name, kind):
        schemas.append([f"pydantic {name}", TypeAdapter(kind).json_schema()])

    for name, kind in {**scalars, **structures, **sets}.items():
        add(name, kind)
        add(f"list of {name}", list[kind])
        add(f"optional {name}", Optional[kind])
        model = create_model("Model", value=(kind, ...), more=(Optional[kind], None))
        schemas.append([f"pydantic model of {name}", model.model_json_schema()])
    return schemas


ZOD_EMAIL = "^(?!\\.)(?!.*\\.\\.)([a-z0-9_'+\\-\\.]*)[a-z0-9_+-]@([a-z0-9][a-z0-9\\-]*\\.)+[a-z]{2,}$"
ZOD_UUID = "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12})$"
SAFE = 9007199254740991


def closed(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def by_hand():
    string, integer, number = {"type": "string"}, {"type": "integer"}, {"type": "number"}
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    zod = {
        "email": {"type": "string", "format": "email", "pattern": ZOD_EMAIL},
        "uuid": {"type": "string", "format": "uuid", "pattern": ZOD_UUID},
        "url": {"type": "string", "format": "uri"},
        "datetime": {"type": "string", "format": "date-time", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T.*Z$"},
        "date": {"type": "string", "format": "date", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
        "base64": {"type": "string", "contentEncoding": "base64",
                   "pattern": "^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$"},
        "e164": {"type": "string", "pattern": "^\\+(?:[0-9]){6,14}[0-9]$"},
        "jwt": {"type": "string", "format": "jwt"},
        "emoji": {"type": "string", "format": "emoji"},
        "int": {"type": "integer", "minimum": -SAFE, "maximum": SAFE},
        "int32": {"type": "integer", "minimum": -2147483648, "maximum": 2147483647},
        "positive": {"type": "number", "exclusiveMinimum": 0},
        "step": {"type": "number", "multipleOf": 0.25},
        "record": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {}},
        "record of enum": {"type": "object", "propertyNames": {"type": "string", "enum": ["a", "b"]},
                           "additionalProperties": number},
        "nullable": {"anyOf": [string, {"type": "null"}]},
        "tuple": {"type": "array", "prefixItems": [string, number]},
        "tuple rest": {"type": "array", "prefixItems": [string], "items": number},
        "union": {"anyOf": [{"type": "string", "const": "on"}, {"type": "number"}]},
        "discriminated": {"oneOf": [closed(t={"type": "string", "const": "a"}, v=string),
                                    closed(t={"type": "string", "const": "b"}, v=integer)]},
        "intersection": {"allOf": [closed(a=string) | {"additionalProperties": {}},
                                   closed(b=integer) | {"additionalProperties": {}}]},
        "default": {"type": "object", "properties": {"a": {"default": 3, "type": "number"}}, "required": ["a"]},
        "readonly": {"readOnly": True, "type": "array", "items": string},
        "never": {"type": "object", "properties": {"a": {"not": {}}}, "additionalProperties": False},
        "recursive": {"type": "object", "properties": {"name": string, "parent": {"anyOf": [
            {"$ref": "#"}, {"type": "null"}]}}, "required": ["name", "parent"], "additionalProperties": False},
        "ipv6": {"type": "string", "format": "ipv6"},
        "starts": {"type": "string", "pattern": "^https:\\/\\/.*"},
        "includes": {"type": "string", "allOf": [{"pattern": "a.*"}, {"pattern": ".*z$"}]},
    }
    schemars = {
        "u8": {"type": "integer", "format": "uint8", "minimum": 0, "maximum": 255},
        "u64": {"type": "integer", "format": "uint64", "minimum": 0},
        "f32": {"type": "number", "format": "float"},
        "char": {"type": "string", "minLength": 1, "maxLength": 1},
        "option": {"type": ["string", "null"]},
        "unit enum": {"type": "string", "enum": ["A", "B"]},
        "documented enum": {"oneOf": [{"description": "first", "type": "string", "const": "A"},
                                      {"description": "second", "type": "string", "const": "B"}]},
        "external enum": {"oneOf": [{"type": "string", "enum": ["Quit"]}, closed(Move=closed(x=integer, y=integer)),
                                    closed(Write=string)]},
        "internal enum": {"oneOf": [{"type": "object", "properties": {"tag": {"type": "string", "const": "A"},
                                                                      "n": integer}, "required": ["tag", "n"]},
                                    {"type": "object", "properties": {"tag": {"type": "string", "const": "B"}},
                                     "required": ["tag"]}]},
        "untagged enum": {"anyOf": [integer, string, closed(a=integer)]},
        "set": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}, "uniqueItems": True},
        "array": {"type": "array", "items": number, "minItems": 3, "maxItems": 3},
        "flatten": {"type": "object", "properties": {"a": integer}, "required": ["a"], "additionalProperties": string},
        "nested": {"$ref": "#/$defs/T", "$defs": {"T": {"type": "object", "properties": {
            "next": {"anyOf": [{"$ref": "#/$defs/T"}, {"type": "null"}]}}}}},
        "range": {"type": "number", "minimum": 0.1, "maximum": 0.9},
    }
    openapi = {
        "nullable": {"type": "string", "nullable": True}, "int64": {"type": "integer", "format": "int64"},
        "password": {"type": "string", "format": "password"}, "binary": {"type": "string", "format": "binary"},
        "xml": {"type": "object", "properties": {"id": {"type": "integer", "xml": {"attribute": True}}}},
        "extension": {"type": "string", "x-enum-varnames": ["A"], "enum": ["a", "b"]},
        "external": {"type": "object", "externalDocs": {"url": "https://example.org"}, "properties": {"a": string}},
        "discriminator": {"oneOf": [{"$ref": "#/definitions/A"}, {"$ref": "#/definitions/B"}],
                          "discriminator": {"propertyName": "kind"},
                          "definitions": {"A": closed(kind={"enum": ["A"]}, a=integer),
                                          "B": closed(kind={"enum": ["B"]}, b=string)}},
        "all of base": {"allOf": [{"$ref": "#/definitions/Base"}, {"type": "object", "properties": {"more": string}}],
                        "definitions": {"Base": {"type": "object", "properties": {"id": integer}, "required": ["id"]}}},
        "draft 7 items": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [integer, string], "additionalItems": False},
        "min properties": {"type": "object", "minProperties": 1, "properties": {"a": string, "b": string}},
        "dependent": {"type": "object", "properties": {"card": string, "address": string},
                      "dependencies": {"card": ["address"]}},
        "dependent required": {"type": "object", "properties": {"card": string, "address": string},
                               "dependentRequired": {"card": ["address"]}, "additionalProperties": False},
        "if then": {"type": "object", "properties": {"country": {"enum": ["US", "DE"]}, "zip": string},
                    "required": ["country", "zip"], "if": {"properties": {"country": {"const": "US"}}},
                    "then": {"properties": {"zip": {"pattern": "^[0-9]{5}$"}}},
                    "else": {"properties": {"zip": {"maxLength": 8}}}},
        "patterns": {"type": "object", "patternProperties": {"^x-": string, "^n_": integer},
                     "additionalProperties": False},
        "one required": {"type": "object", "properties": {"a": string, "b": string},
                         "anyOf": [{"required": ["a"]}, {"required": ["b"]}], "additionalProperties": False},
        "only one": {"type": "object", "properties": {"a": string, "b": string},
                     "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "additionalProperties": False},
        "not both": {"type": "object", "properties": {"a": string, "b": string},
                     "not": {"required": ["a", "b"]}, "additionalProperties": False},
        "not empty": {"type": "string", "not": {"enum": ["", "none"]}},
        "contains": {"type": "array", "items": {"enum": ["a", "b"]}, "contains": {"const": "a"}},
        "unevaluated": {"allOf": [{"type": "object", "properties": {"a": string}}],
                        "properties": {"b": integer}, "unevaluatedProperties": False},
        "boolean": {"type": "object", "properties": {"anything": True, "nothing": False}},
        "large": {"type": "array", "items": string, "maxItems": 4294967295},
    }
    agent = {
        "edit": draft | closed(file_path=string, old_string=string, new_string=string,
                               replace_all={"type": "boolean", "default": False}) | {
                                   "required": ["file_path", "old_string", "new_string"]},
        "shell": draft | {"type": "object", "properties": {
            "command": string, "timeout": {"type": "number", "maximum": 600000}}, "required": ["command"],
            "additionalProperties": False},
        "questions": draft | closed(questions={"type": "array", "minItems": 1, "maxItems": 4, "items": closed(
            question=string, options={"type": "array", "minItems": 2, "maxItems": 4, "items": closed(label=string)})},
            answers={"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": string}),
        "tasks": draft | closed(todos={"type": "array", "items": closed(
            content={"type": "string", "minLength": 1}, status={"type": "string", "enum": ["pending", "done"]})}),
        "fetch": draft | closed(url={"type": "string", "format": "uri"}, prompt=string),
        "no parameters": draft | {"type": "object", "properties": {}, "additionalProperties": False},
    }
    groups = {"zod": zod, "schemars": schemars, "openapi": openapi, "agent": agent}
    return [[f"{group} {name}", schema] for group, all_of in groups.items() for name, schema in all_of.items()]


def invalid_texts(path):
    import jsonschema

    count = 0
    for line in path.read_text().splitlines():
        schema, text = json.loads(line)
        validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        try:
            validator(schema).validate(json.loads(text))
        except jsonschema.ValidationError as error:
            count += 1
            print(f"{json.dumps(schema)}: {text}: {error.message}")
    return count


def main():
    if len(sys.argv) > 1:
        sys.exit(1 if invalid_texts(pathlib.Path(sys.argv[1])) else 0)
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in pydantic_schemas() + by_hand())
    pathlib.Path(__file__).with_name("emitted_schemas.json").write_text(f"[\n{lines}\n]\n")


main()
