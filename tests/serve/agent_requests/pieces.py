# SPDX-License-Identifier: Apache-2.0
"""What requests of all agents are made of."""
import dataclasses
import json
import re

# A picture of one dot, and the first bytes of a document.
PNG = ("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
       "rkJggg==")
PDF = "JVBERi0xLjQKJcOkw7zDtsOfCg=="
PNG_URL = "data:image/png;base64," + PNG


@dataclasses.dataclass
class Call:
    """A call as the model writes it, and as the API tells it where that differs."""
    name: str
    arguments: dict
    told: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Says:
    """What the model is made to say."""
    text: str = ""
    reasoning: str = ""
    calls: tuple = ()
    end: str = ""  # why it ends, where not because all is said

    def pattern(self):
        text = f"<think>\n{self.reasoning}\n</think>\n" if self.reasoning else ""
        text += self.text
        for call in self.calls:
            told = json.dumps({"name": call.name, "arguments": call.arguments})
            text += f"<tool_call>\n{told}\n</tool_call>"
        return re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\1", text)


@dataclasses.dataclass
class Request:
    name: str
    path: str
    body: dict | None = None
    says: Says | None = None  # else the body has a schema, or nothing is generated
    headers: dict = dataclasses.field(default_factory=dict)
    method: str = "POST"
    status: int = 200
    # Words that an error has, and the code of one that a stream ends with.
    problem: str = ""
    failure: str = ""
    # The beginning that is shared with the request of this name comes out of the cache.
    continues: str = ""


def schema(required, **properties):
    """`name="string"` or a schema for each property; those in `required` are not optional."""
    told = {name: {"type": kind} if isinstance(kind, str) else kind
            for name, kind in properties.items()}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
            "properties": told, "required": required.split(), "additionalProperties": False}


TODOS = {"type": "array", "items": {
    "type": "object",
    "properties": {"content": {"type": "string", "minLength": 1},
                   "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
                   "activeForm": {"type": "string", "minLength": 1}},
    "required": ["content", "status"], "additionalProperties": False}}
LISTING = "README.md\nsrc/main.c\nsrc/parse.c\ntests/parse_test.c\n"
SOURCE = "     1\t#include <stdio.h>\n     2\tint main(void) { return parse(stdin); }\n"
