"""Recorded values as what the page shows: text with a format, never numbers for it to parse."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from .. import values
from ..diff import readable
from ..entries import Payload
from ..errors import JournalValueError
from ..preview import is_diff

#: Bytes of a value that travel at once; the rest on request.
FIRST = 20_000

Value = dict[str, Any]


def present(payload: Payload, *, whole: bool = False, missing: str = "not recorded") -> Value:
    """Return a recorded value for the page.

    Args:
        payload: The value as recorded.
        whole: Send all of it, not only the first 20 kB.
        missing: What to say where nothing was recorded.
    """
    if payload is UNSET:
        return nothing(missing)
    try:
        text, form = readable(payload), _format(payload)
    except JournalValueError as problem:
        return {
            **_value("text", bytes(payload).decode(errors="replace"), whole),
            "note": str(problem),
        }
    return _value(form, text, whole)


def nothing(note: str) -> Value:
    """Return the value of something that is not there."""
    return {
        "format": "none", "text": "", "bytes": 0, "shown": 0, "truncated": False, "note": note
    }  # fmt: skip


def text_value(text: str, form: str = "text", *, whole: bool = False) -> Value:
    """Return a text of ours (a line of the journal, a diff) for the page."""
    return _value(form, text, whole)


def _format(payload: Payload) -> str:
    value = values.decode(payload)
    if not isinstance(value, str):
        return "json"
    return "diff" if is_diff(value) else "text"


def _value(form: str, text: str, whole: bool) -> Value:
    data = text.encode(errors="replace")
    shown = data if whole else data[:FIRST]
    return {
        "format": form,
        "text": text if len(shown) == len(data) else shown.decode(errors="ignore"),
        "bytes": len(data),
        "shown": len(shown),
        "truncated": len(shown) < len(data),
    }
