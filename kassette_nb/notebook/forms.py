"""A question's form, from its JSON schema, and the answer that a filled-in form means."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import msgspec

from ..errors import JournalValueError
from ..text import first_line, visible
from ..values import JSON

Form = dict[str, Any]
_SIMPLE = {"boolean", "string", "integer", "number"}
_DATES = {"date": "date", "date-time": "datetime"}
#: Objects inside objects that a form follows; deeper ones are written as JSON.
DEPTH = 3
#: Fields of a form; a schema with more is written as JSON.
MOST = 40
_LIMITS = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "more than {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "less than {}"),
    ("multipleOf", "a multiple of {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {} lines"),
    ("maxItems", "at most {} lines"),
    ("pattern", "of the form {}"),
)


def form(schema: JSON) -> Form:
    """Return the form for a schema.

    Returns:
        ``kind`` is ``approval`` (no schema: yes or no with a note), ``boolean``, ``fields`` (an
        object), ``value`` (one field that is the whole answer) or ``json`` (anything else: a
        checked JSON editor). Field types are boolean, string, text, enum, integer, number, date,
        datetime, list (texts, one a line), choices (some of an enum), object (with ``fields`` of
        its own) and json.
    """
    if schema is None:
        return {"kind": "approval", "fields": [], "schema": None}
    text = visible(msgspec.json.format(msgspec.json.encode(schema), indent=2).decode())
    if isinstance(schema, dict):
        if schema.get("type") == "boolean":
            return {"kind": "boolean", "fields": [], "schema": text}
        fields = _fields(schema, 1)
        if fields:
            return {"kind": "fields", "fields": fields, "schema": text}
        whole = _field("", schema, True, 1)
        if whole["type"] not in ("json", "object"):
            return {"kind": "value", "fields": [whole], "schema": text}
    return {"kind": "json", "fields": [], "schema": text}


def bare(made: Form) -> Form:
    """Return a form as it is sent to the page: choices as texts alone."""

    def strip(field: Form) -> Form:
        kept = {name: value for name, value in field.items() if name != "values"}
        kept["fields"] = [strip(inner) for inner in field["fields"]]
        return kept

    return {**made, "fields": [strip(field) for field in made["fields"]]}


def answer(schema: JSON, filled: Any) -> JSON:
    """Return the value that a filled-in form means.

    Args:
        schema: The question's schema.
        filled: What was typed, by field name: a text, a list of texts, or an object of these.
            An empty text is an absent field.

    Raises:
        JournalValueError: A text is not of its field's type; names the field.
    """
    made = form(schema)
    if made["kind"] == "value":
        value = _parse("the answer", made["fields"][0], filled.get("", ""))
        if value is msgspec.UNSET:
            raise _refused("the answer", "is missing")
        return value
    return _object("", _fields(schema, 1), filled)


def _object(path: str, fields: list[Form], filled: Any) -> dict[str, JSON]:
    known = {field["name"]: field for field in fields}
    value: dict[str, JSON] = {}
    if not isinstance(filled, dict):
        raise _refused(path or "the answer", "is not an object of fields")
    for name, given in filled.items():
        field = known.get(name)
        where = f"{path}.{name}" if path else str(name)
        if field is None:
            raise _refused(where, "is not a field of this question")
        parsed = _parse(where, field, given)
        if parsed is not msgspec.UNSET:
            value[name] = parsed
    return value


def _fields(schema: JSON, depth: int) -> list[Form]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not properties or len(properties) > MOST:
        return []
    if schema.get("type") != "object":
        return []
    wanted = schema.get("required")
    required = wanted if isinstance(wanted, list) else []
    return [_field(name, field, name in required, depth) for name, field in properties.items()]


def _field(name: str, schema: JSON, required: bool, depth: int) -> Form:
    given = schema if isinstance(schema, dict) else {}
    options, kind, inner = given.get("enum"), given.get("type"), list[Form]()
    if isinstance(kind, list) and len(kind) == 2 and "null" in kind:
        kind = next((other for other in kind if other != "null"), None)  # null is left out
    shown: str = "json"
    if isinstance(options, list) and options:
        shown = "enum"
    elif isinstance(kind, str) and kind in _SIMPLE:
        shown = kind
        if kind == "string":
            shown = _DATES.get(str(given.get("format")), "string")
            long = given.get("maxLength")
            if given.get("format") == "textarea" or (isinstance(long, int) and long > 200):
                shown = "text"
    elif kind == "array" and isinstance(items := given.get("items"), dict):
        some = items.get("enum")
        if isinstance(some, list) and some:
            shown, options = "choices", some
        elif items.get("type") == "string":
            shown = "list"
    elif kind == "object" and depth < DEPTH:
        inner = _fields(schema, depth + 1)
        shown = "object" if inner else "json"
    default = given.get("default")
    return {
        "name": name,
        "label": visible(str(given.get("title") or name or "answer")),
        "type": shown,
        "options": [_option(option) for option in options or []]
        if isinstance(options, list)
        else [],
        "required": required,
        "description": _hint(given),
        "default": _default(shown, default),
        "values": options if shown in ("enum", "choices") else None,
        "fields": inner,
    }


def _hint(schema: dict[str, JSON]) -> str | None:
    told = [first_line(str(schema.get("description") or ""))]
    told += [words.format(_option(schema[name])) for name, words in _LIMITS if name in schema]
    return visible(" · ".join(filter(None, told))) or None


def _default(kind: str, default: JSON) -> Any:
    if default is None or kind == "object":
        return None
    if kind in ("list", "choices"):
        return [_option(item) for item in default] if isinstance(default, list) else None
    return _option(default) if kind != "json" else msgspec.json.encode(default).decode()


def _option(value: JSON) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _parse(name: str, field: Form, given: Any) -> Any:
    """Return the value of one field, or UNSET where nothing was filled in."""
    kind = field["type"]
    if kind == "object":
        inner = _object(name, field["fields"], given)
        return inner if inner or field["required"] else msgspec.UNSET
    if kind in ("list", "choices"):
        texts = [str(item) for item in given] if isinstance(given, list) else str(given).split("\n")
        texts = [text for text in texts if text.strip()]
        if not texts and not field["required"]:
            return msgspec.UNSET
        return [_choice(name, field, text) if kind == "choices" else text for text in texts]
    text = str(given)
    if text == "" and not (kind in ("string", "text") and field["required"]):
        return msgspec.UNSET
    return _scalar(name, field, text)


def _scalar(name: str, field: Form, text: str) -> Any:
    kind = field["type"]
    if kind == "enum":
        return _choice(name, field, text)
    if kind == "boolean":
        if text not in ("true", "false"):
            raise _refused(name, "choose yes or no")
        return text == "true"
    try:
        if kind == "integer":
            return int(text)
        if kind == "number":
            return _number(text)
        if kind == "date":
            return date.fromisoformat(text.strip()).isoformat()
        if kind == "datetime":
            datetime.fromisoformat(text.strip())
            return text.strip()
        if kind == "json":
            return msgspec.json.decode(text.encode())
    except (ValueError, msgspec.DecodeError, RecursionError):
        what = {"date": "a date like 2026-11-30", "datetime": "a time like 2026-11-30T12:00:00Z",
                "integer": "an integer", "json": "valid JSON"}.get(kind, f"a {kind}")  # fmt: skip
        raise _refused(name, f"{text!r} is not {what}") from None
    return text


def _choice(name: str, field: Form, text: str) -> JSON:
    if text not in field["options"]:
        raise _refused(name, f"{text!r} is not one of {', '.join(field['options'])}")
    return field["values"][field["options"].index(text)]


def _number(text: str) -> JSON:
    value = msgspec.json.decode(text.strip().encode())
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(text)  # noqa: TRY004  # int() refuses the same text in the same way
    return value


def _refused(name: str, reason: str) -> JournalValueError:
    return JournalValueError(
        f"field {name!r}: {reason}. Nothing was recorded.", path=f"$.{name}", reason=reason
    )
