"""The JSON Schema of a journal line, made from the structs that read and write it.

``python -m kassette_nb.format`` prints it; the package ships it as ``journal.schema.json`` beside
the specification, ``FORMAT.md``.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from .entries import Known

_TIMESTAMP = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"
_ENVELOPE = {
    "session": {"type": "integer", "minimum": 1},
    "offset": {"type": "integer", "minimum": 0},
    "timestamp": {"type": "string", "pattern": _TIMESTAMP},
    "writeId": {"type": "string"},
}


def json_schema() -> dict[str, Any]:
    """Return the schema of one line, for writers; readers accept unknown fields anywhere."""
    made: dict[str, Any] = msgspec.json.schema(Known)
    definitions = made["$defs"]
    for definition in definitions.values():
        fields = definition["properties"]
        for field in fields.values():
            field.pop("default", None)
        if "type" in fields and "enum" in fields["type"]:
            fields.update(_ENVELOPE)
            definition["required"] = sorted({*definition["required"], "offset", "timestamp"})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of a kassette journal",
        "anyOf": made["anyOf"],
        "$defs": definitions,
    }


def text() -> str:
    """Return the schema as it is shipped."""
    return msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
