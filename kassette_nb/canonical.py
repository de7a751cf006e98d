"""Arguments in the one form that equal arguments share, and the idempotency key made from them.

A key must be the same in every process and on every attempt, however the caller spelled its
arguments. So strings are brought to Unicode NFC, integral floats become integers, and what JSON
does not have is tagged by its type; the rest is RFC 8785.
"""

from __future__ import annotations

import base64
import hashlib
import math
import unicodedata
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from .errors import JournalValueError
from .values import JSON, MAX_DEPTH, refusal

_sorted = msgspec.json.Encoder(order="sorted")
#: Integers beyond it are not told apart by a reader that takes numbers for doubles.
_SAFE = 2**53 - 1
#: The form of the key: raise the number when the canonical form changes.
_PREFIX = "k1:"


def idempotency_key(scope: str, step_id: str, tool: str, args: JSON) -> str:
    """Return the key of one call of a tool.

    Args:
        scope: The run's key scope: its own id, or that of the run it retries.
        step_id: The whole id of the step.
        tool: The tool's name.
        args: Its arguments, as `canonical` returned them.

    Returns:
        ``k1:`` and 64 hexadecimal digits, SHA-256 over the canonical JSON of all four.
    """
    call = [*(_text(part) for part in (scope, step_id, tool)), args]
    return _PREFIX + hashlib.sha256(_dump(call)).hexdigest()


def canonical(value: object, what: str) -> JSON:
    """Return a value in the form that equal values share; JSON can carry it.

    Args:
        value: JSON, and also big integers, NaN and infinities, dates, times, decimals, UUIDs,
            bytes and sets, which become ``{"$type": text}``.
        what: What it is, for the error.

    Raises:
        JournalValueError: Something inside has no such form; names its path.
    """
    return _form(value, what, [], set())


def same(a: JSON, b: JSON) -> bool:
    """Tell whether two canonical values are the same."""
    return _dump(a) == _dump(b)


def _dump(value: JSON) -> bytes:
    """Return RFC 8785's bytes of a canonical value."""
    if _plain(value):
        # The same bytes, a hundred times faster: without floats and with ASCII keys msgspec
        # differs in nothing. A test compares the two.
        return _sorted.encode(value)
    import rfc8785

    return rfc8785.dumps(value)


def _plain(value: JSON) -> bool:
    kind = type(value)
    if kind is dict:
        return all(key.isascii() and _plain(item) for key, item in value.items())
    if kind is list:
        return all(map(_plain, value))
    return kind is not float


def _form(value: Any, what: str, path: list[str | int], parents: set[int]) -> JSON:
    kind = type(value)
    if kind is str:
        return _text(value, what, path)
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if -_SAFE <= value <= _SAFE else {"$int": _digits(value, what, path)}
    if kind is float:
        if not math.isfinite(value):
            return {"$float": str(value)}
        return _form(int(value), what, path, parents) if value.is_integer() else value
    if kind in (dict, list, tuple, set, frozenset):
        if id(value) in parents:
            raise refusal(what, path, "contains itself")
        if len(parents) == MAX_DEPTH:
            raise refusal(what, path[:8], f"is nested more than {MAX_DEPTH} levels deep")
        parents.add(id(value))
        try:
            return _container(value, what, path, parents)
        finally:
            parents.discard(id(value))
    if kind in (datetime, date, time):
        return {f"${kind.__name__}": value.isoformat()}
    if kind is Decimal:
        return {"$decimal": str(value)}
    if kind is UUID:
        return {"$uuid": str(value)}
    if kind in (bytes, bytearray):
        return {"$bytes": base64.b64encode(value).decode()}
    raise refusal(
        what,
        path,
        f"is a {kind.__qualname__}, which has no canonical form; pass its plain parts (a dict, a "
        "list, a text, a number)",
    )


def _container(value: Any, what: str, path: list[str | int], parents: set[int]) -> JSON:
    if type(value) is not dict:
        items = []
        for index, item in enumerate(value):
            path.append(index)
            items.append(_form(item, what, path, parents))
            path.pop()
        if type(value) in (set, frozenset):
            return {"$set": sorted(items, key=_dump)}
        return items
    made: dict[str, JSON] = {}
    for key, item in value.items():
        if type(key) is not str:
            raise refusal(what, path, f"has the key {key!r}; keys must be strings")
        # A caller's own "$int" must not look like a tag of ours.
        name = _text(f"${key}" if key.startswith("$") else key, what, path)
        if name in made:
            raise refusal(what, path, f"has two keys that are one in Unicode NFC: {key!r}")
        path.append(key)
        made[name] = _form(item, what, path, parents)
        path.pop()
    return made


def _text(text: str, what: str = "name", path: list[str | int] | None = None) -> str:
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        where = f"has a lone surrogate at character {problem.start}"
        raise refusal(what, path or [], where) from None
    return unicodedata.normalize("NFC", text)


def _digits(number: int, what: str, path: list[str | int]) -> str:
    try:
        return str(number)
    except ValueError as problem:  # more digits than the interpreter prints
        raise refusal(what, path, str(problem)) from None


def check_key(key: object, *, optional: bool = True) -> None:
    """Refuse a caller's own idempotency key that protects nothing.

    Raises:
        JournalValueError: It is neither None, where that is allowed, nor a text with something
            in it.
    """
    if key is None and optional:
        return
    if not isinstance(key, str):
        raise JournalValueError(
            f"idempotency_key={key!r} is a {type(key).__name__}, not a text. Nothing was recorded.",
            path="idempotency_key",
            reason="not a text",
        )
    if not key.strip():
        raise JournalValueError(
            f"idempotency_key={key!r} protects nothing: every call would share it. Use a text "
            "that names this one call, leave the option out for a key made from the arguments, or "
            "say None for a call without protection. Nothing was recorded.",
            path="idempotency_key",
            reason="not a key",
        )
