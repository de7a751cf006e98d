"""User values to JSON and back: what survives, and the name of the place where it does not.

The codec itself (msgspec) turns NaN into null, sets into arrays and dates into strings without a
word, so a value is checked before it is encoded: the workflow must get back what it gave, live
and on every replay. Only tuples change (they come back as lists, in the live run too).
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
from msgspec import Raw

from .errors import JournalValueError, PayloadTooLargeError

#: What JSON carries: null, bool, int, float, str, lists and string-keyed dicts of these.
JSON = Any

#: Default of ``max_payload``: bytes of JSON that one recorded value may have.
MAX_PAYLOAD = 16 * 1024 * 1024
#: Levels of nesting. Decoding must succeed from a deep stack as well, so far below its limit.
MAX_DEPTH = 200

#: What to write instead, for the types that people meet first.
_DUMPED = (
    "; return its .model_dump(), or declare it: ctx.with_options(returns=…). A model's SDK can "
    "also be called by the workflow itself, without a step, through kassette_nb.llm.http_client"
)
_HINTS = {
    "DataFrame": '; use .to_dict("records")',
    "Series": "; use .to_list()",
    "ndarray": "; use .tolist()",
    **dict.fromkeys(("int64", "int32", "float32", "float64", "bool"), "; use .item()"),
    **dict.fromkeys(("datetime", "date", "Timestamp"), "; use .isoformat()"),
    **dict.fromkeys(("set", "frozenset"), "; use sorted(…) or list(…)"),
    **dict.fromkeys(("PosixPath", "WindowsPath", "UUID", "Decimal"), "; use str(…)"),
    "bytes": "; decode it, or record a path",
}
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_LEAVES = frozenset({str, int, bool, type(None)})
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def encode(value: JSON, *, what: str = "value", limit: int = MAX_PAYLOAD) -> Raw:
    """Return the JSON of a value that survives the journal.

    Args:
        value: The value to record.
        what: What the value is, for the error message ("result of step 'plan'").
        limit: The largest JSON allowed, in bytes.

    Raises:
        JournalValueError: Something inside would not come back unchanged; names its path.
        PayloadTooLargeError: The JSON is larger than ``limit``.
    """
    if not _fits(value, 0):
        _check(value, what, [], [])  # raises, with the path to what does not fit
    try:
        data = _encoder.encode(value)
    except ValueError as problem:
        _check(value, what, [], [])  # a lone surrogate in a text
        # An int of more digits than the interpreter prints.
        raise refusal(what, [], str(problem)) from None
    return limited(data, what, limit)


def limited(data: bytes, what: str, limit: int) -> Raw:
    """Return JSON that is not larger than what a journal takes.

    Raises:
        PayloadTooLargeError: It has more than ``limit`` bytes.
    """
    refuse_larger(len(data), what, limit)
    return Raw(data)


#: What to do about a value that is too large; one of the user's own need not be recorded whole.
_SMALLER = "Record a reference (a path, a key) instead of the data, or raise max_payload."


def refuse_larger(size: int, what: str, limit: int, cure: str = _SMALLER) -> None:
    """Refuse what has more bytes of JSON than a journal takes.

    Raises:
        PayloadTooLargeError: It has.
    """
    if size > limit:
        raise PayloadTooLargeError(
            f"{what} is {size:,} bytes of JSON, more than max_payload={limit:,}. {cure}",
            path="$",
            reason="too large",
            size=size,
            limit=limit,
        )


def decode(payload: Raw | msgspec.UnsetType, *, what: str = "value") -> JSON:
    """Return the value of a recorded payload; an absent one is None.

    Raises:
        JournalValueError: The payload cannot be read back (hostile nesting, numbers, encoding).
    """
    if payload is msgspec.UNSET:
        return None
    try:
        return _decoder.decode(payload)
    except RecursionError:
        raise refusal(what, [], "is nested too deeply to be read") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise refusal(what, [], f"cannot be read back: {problem}") from None


def same(a: JSON, b: JSON) -> bool:
    """Tell whether two decoded values are the same JSON (1 and 1.0 are, 1 and true are not)."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _fits(value: Any, depth: int) -> bool:
    """Tell whether `_check` would let a value pass; without its bookkeeping, so much faster.

    Texts are left to the encoder, which refuses those that UTF-8 cannot carry.
    """
    kind = type(value)
    if kind in _LEAVES:
        return True
    if kind is float:
        return math.isfinite(value)
    if depth == MAX_DEPTH:
        return False
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or (type(item) not in _LEAVES and not _fits(item, depth + 1)):
                return False
        return True
    if kind is list or kind is tuple:
        for item in value:  # noqa: SIM110  # a generator costs more than what it asks
            if type(item) not in _LEAVES and not _fits(item, depth + 1):
                return False
        return True
    return False


def _check(value: object, what: str, path: list[str | int], parents: list[int]) -> None:
    kind = type(value)
    if value is None or kind is bool or kind is int:
        return
    if kind is str:
        _check_text(value, what, path)  # type: ignore[arg-type]  # narrowed by exact type above
    elif kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]  # as above
            raise refusal(what, path, f"is {value}, which JSON does not have")
    elif kind is dict or kind is list or kind is tuple:
        if id(value) in parents:
            raise refusal(what, path, "contains itself")
        if len(parents) == MAX_DEPTH:
            raise refusal(what, path[:8], f"is nested more than {MAX_DEPTH} levels deep")
        parents.append(id(value))
        if kind is dict:
            for key, item in value.items():  # type: ignore[attr-defined]  # as above
                if type(key) is not str:
                    raise refusal(what, path, f"has the key {key!r}; keys must be strings")
                _check_text(key, what, path)
                path.append(key)
                _check(item, what, path, parents)
                path.pop()
        else:
            for index, item in enumerate(value):  # type: ignore[arg-type]  # as above
                path.append(index)
                _check(item, what, path, parents)
                path.pop()
        parents.pop()
    else:
        name = kind.__qualname__
        article = "an" if name[0].lower() in "aeiou" else "a"
        hint = _HINTS.get(name, _DUMPED if hasattr(kind, "model_dump") else "")
        raise refusal(
            what, path, f"is {article} {name}, which JSON cannot carry back unchanged{hint}"
        )


def _check_text(text: str, what: str, path: list[str | int]) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as problem:
            where = f"has a lone surrogate at character {problem.start}"
            raise refusal(what, path, where) from None


def refusal(what: str, path: list[str | int], reason: str) -> JournalValueError:
    """Return the error of a value with something at ``path`` that cannot be recorded."""
    place = "$" + "".join(
        f"[{part}]"
        if isinstance(part, int)
        else f".{part}"
        if _PLAIN.match(part)
        else f"[{part!a}]"
        for part in path
    )
    return JournalValueError(
        f"{what}: {place} {reason}. Nothing was recorded.",
        path=place,
        reason=reason,
    )
