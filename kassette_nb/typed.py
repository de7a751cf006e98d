"""Values of declared types: encoded and decoded by the type, live as on replay.

Dataclasses, msgspec structs, TypedDicts, NamedTuples and containers of them go through msgspec;
pydantic models through pydantic, which is found by its methods and never imported from here.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from . import values
from .errors import JournalValueError


def encode(value: Any, declared: Any, *, what: str, limit: int) -> Raw:
    """Return the JSON of a value of a declared type.

    Raises:
        JournalValueError: It is not of that type, or something in it does not survive JSON.
    """
    if declared is None:
        return values.encode(value, what=what, limit=limit)
    try:
        plain = _plain(value, declared)
        encoded = values.encode(plain, what=what, limit=limit)
        _typed(values.decode(encoded, what=what), declared)
    except JournalValueError:
        raise
    except Exception as problem:
        raise JournalValueError(
            f"{what} is not a {_name(declared)}: {problem}. Nothing was recorded.",
            path="$",
            reason=str(problem),
        ) from None
    return encoded


def decode(payload: Any, declared: Any, *, what: str) -> Any:
    """Return the recorded value as the declared type.

    Raises:
        JournalValueError: What is recorded does not fit that type.
    """
    value = values.decode(payload, what=what)
    if declared is None:
        return value
    try:
        return _typed(value, declared)
    except Exception as problem:
        raise JournalValueError(
            f"{what} was recorded as something else than a {_name(declared)}: {problem}. Put the "
            "type back, or fork the run at that step.",
            path="$",
            reason=str(problem),
        ) from None


def _plain(value: Any, declared: Any) -> Any:
    if _is_pydantic(declared):
        if not isinstance(value, declared):
            raise TypeError(f"got a {type(value).__name__}")
        return value.model_dump(mode="json")
    return msgspec.to_builtins(value)


def _typed(value: Any, declared: Any) -> Any:
    if _is_pydantic(declared):
        return declared.model_validate(value)
    return msgspec.convert(value, declared)


def _is_pydantic(declared: Any) -> bool:
    return isinstance(declared, type) and hasattr(declared, "model_validate")


def _name(declared: Any) -> str:
    return getattr(declared, "__name__", str(declared))
