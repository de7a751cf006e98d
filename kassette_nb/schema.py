"""Checking an answer against the JSON Schema that its question carries."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import values
from .entries import Payload
from .errors import JournalValueError
from .values import JSON

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What an answer to the question about a tool in doubt may be.
DOUBT_SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "action": {"enum": ["record", "retry", "fail"]},
        "result": {},
        "error": {"type": "string"},
    },
    "required": ["action"],
    "additionalProperties": False,
}


def check_schema(schema: JSON, step_id: str) -> None:
    """Refuse what cannot be the schema of a question, before it is asked: nobody could answer it.

    Raises:
        JournalValueError: It is no valid JSON Schema, or it has a ``$ref``.
    """
    if schema is not None and not isinstance(schema, dict | bool):
        reason = f"{type(schema).__name__} is no JSON Schema"
    elif "$ref" in (keys := set(_keys(schema))) or "$dynamicRef" in keys:
        reason = "$ref is not supported; write the part out where it is used"
    elif (problem := _problem(schema)) is not None:
        reason = f"{problem.json_path}: {problem.message}"
    else:
        return
    raise JournalValueError(
        f"the schema of {step_id!r}: {reason}. Give an object such as "
        '{"type": "boolean"}, or None for yes or no with a note. Nothing was recorded.',
        path="schema",
        reason=reason,
    )


def check_answer(answer: JSON, schema: Payload, event: str) -> None:
    """Refuse an answer that does not fit.

    Args:
        answer: A decoded JSON value.
        schema: The question's schema as recorded; absent means that anything fits.
        event: The event, for the error.

    Raises:
        JournalValueError: It does not fit, or the schema itself cannot be used. Names the path.
    """
    wanted = values.decode(schema, what=f"schema of {event!r}")
    if wanted is None:
        return
    if "$ref" in _keys(wanted) or "$dynamicRef" in _keys(wanted):
        raise _refused(event, "$", "the schema uses $ref, which is not supported")
    unfit = _problem(wanted)
    if unfit is not None:  # of another writer, or of an earlier version
        raise _refused(event, "$", f"the question's own schema is not valid: {unfit.message}")
    jsonschema = _validators()
    dates = jsonschema.FormatChecker(("date",))
    checker = _checker(jsonschema, wanted)(wanted, format_checker=dates)
    problem = jsonschema.exceptions.best_match(checker.iter_errors(answer))
    if problem is not None:
        raise _refused(event, problem.json_path, problem.message)


def _problem(schema: JSON) -> Any:
    """Return what is wrong with a schema itself, None for a valid one."""
    if schema is None or isinstance(schema, bool):
        return None
    jsonschema = _validators()
    try:
        _checker(jsonschema, schema).check_schema(schema)
    except jsonschema.exceptions.SchemaError as error:
        return error
    return None


def _checker(jsonschema: Any, schema: JSON) -> Any:
    return jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)


def _validators() -> Any:
    """Import jsonschema: late, since a process that never answers a question need not pay for it.

    Where Jupyter is installed, its import would build a grammar of IRIs for several seconds, in
    the middle of somebody's click. Of formats only dates are checked here, so that optional part
    is passed over, as it is where it is not installed.
    """
    hidden = "rfc3987_syntax" not in sys.modules
    if hidden:
        sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # means: cannot be imported
    try:
        import jsonschema
    finally:
        if hidden:
            sys.modules.pop("rfc3987_syntax", None)
    return jsonschema


def _keys(schema: JSON) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, item in schema.items():
            yield key
            yield from _keys(item)
    elif isinstance(schema, list):
        for item in schema:
            yield from _keys(item)


def _refused(event: str, path: str, reason: str) -> JournalValueError:
    return JournalValueError(
        f"the answer to {event!r} does not fit: {path}: {reason}. Nothing was recorded.",
        path=path,
        reason=reason,
    )
