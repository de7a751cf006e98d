"""A question's form, from its JSON schema, and the answer that a filled-in form means."""

from __future__ import annotations

from typing import Any

import msgspec

from ..errors import JournalValueError
from ..text import first_line
from ..values import JSON

Form = dict[str, Any]
_SIMPLE = {"boolean", "string", "integer", "number"}


def form(schema: JSON) -> Form:
    """Return the form for a schema.

    Returns:
        ``kind`` is ``approval`` (no schema: yes or no with a note), ``boolean``, ``fields`` (an
        object of plain fields) or ``json`` (anything else: a checked JSON editor).
    """
    if schema is None:
        return {"kind": "approval", "fields": [], "schema": None}
    text = msgspec.json.format(msgspec.json.encode(schema), indent=2).decode()
    if isinstance(schema, dict):
        if schema.get("type") == "boolean":
            return {"kind": "boolean", "fields": [], "schema": text}
        fields = _fields(schema)
        if fields:
            return {"kind": "fields", "fields": fields, "schema": text}
    return {"kind": "json", "fields": [], "schema": text}


def answer(schema: JSON, fields: dict[str, str]) -> JSON:
    """Return the value that a filled-in form means.

    Args:
        schema: The question's schema.
        fields: The texts of the form by field name; an empty text is an absent field.

    Raises:
        JournalValueError: A text is not of its field's type; names the field.
    """
    known = {field["name"]: field for field in _fields(schema)}
    value: dict[str, JSON] = {}
    for name, text in fields.items():
        field = known.get(name)
        if field is None:
            raise _refused(name, "is not a field of this question")
        if text == "" and not (field["type"] in ("string", "text") and field["required"]):
            continue
        value[name] = _parse(name, field, text)
    return value


def _fields(schema: JSON) -> list[Form]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not properties or schema.get("type") != "object":
        return []
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    fields = []
    for name, field in properties.items():
        made = _field(name, field, name in required)
        if made is None:
            return []
        fields.append(made)
    return fields


def _field(name: str, schema: JSON, required: bool) -> Form | None:
    if not isinstance(schema, dict):
        return None
    options = schema.get("enum")
    kind = schema.get("type")
    if isinstance(options, list) and options:
        shown, kind = [_option(option) for option in options], "enum"
    elif kind in _SIMPLE:
        shown = []
    else:
        return None
    default = schema.get("default")
    return {
        "name": name,
        "label": str(schema.get("title") or name),
        "type": kind,
        "options": shown,
        "required": required,
        "description": first_line(str(schema.get("description") or "")) or None,
        "default": None if default is None else _option(default),
        "values": options if kind == "enum" else None,
    }


def _option(value: JSON) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _parse(name: str, field: Form, text: str) -> JSON:
    kind = field["type"]
    if kind == "enum":
        if text not in field["options"]:
            raise _refused(name, f"{text!r} is not one of {', '.join(field['options'])}")
        return field["values"][field["options"].index(text)]
    if kind == "boolean":
        if text not in ("true", "false"):
            raise _refused(name, "choose yes or no")
        return text == "true"
    if kind in ("integer", "number"):
        try:
            return int(text) if kind == "integer" else _number(text)
        except ValueError:
            raise _refused(name, f"{text!r} is not a{'n' * (kind == 'integer')} {kind}") from None
    return text


def _number(text: str) -> JSON:
    value = msgspec.json.decode(text.strip().encode())
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(text)  # noqa: TRY004  # int() refuses the same text in the same way
    return value


def _refused(name: str, reason: str) -> JournalValueError:
    return JournalValueError(
        f"field {name!r}: {reason}. Nothing was recorded.", path=f"$.{name}", reason=reason
    )
