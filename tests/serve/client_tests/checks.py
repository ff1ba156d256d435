# SPDX-License-Identifier: Apache-2.0
"""What the tests of several clients share."""
import contextlib
import json

import jsonschema

QUESTION = [{"role": "user", "content": "Write a short story about a cat."}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1,
                                                                 "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(w) for w in what) or "it does not hold")


def equal(got, expected):
    check(got == expected, "got", repr(got), "and not", repr(expected))


def strict(model):
    """Clients build their objects without validation; here each field must be there as typed."""
    type(model).model_validate(model.to_dict())
    return model


def valid(text, schema):
    value = json.loads(text)
    jsonschema.validate(value, schema)
    return value


@contextlib.contextmanager
def raises(kind, *texts):
    """An error of `kind` comes up, whose text or body has `texts`."""
    try:
        yield
    except kind as error:
        told = f"{error} {getattr(error, 'body', '')}"
        for text in texts:
            check(text in told, text, "is not in", told)
        return
    raise AssertionError(f"no {kind.__name__}")
