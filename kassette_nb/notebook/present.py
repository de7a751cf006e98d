"""Recorded values as what the page shows: text with a format, never numbers for it to parse."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from msgspec import UNSET

from .. import values
from ..diff import readable
from ..entries import Payload
from ..errors import JournalValueError
from ..preview import is_diff
from ..values import JSON

#: Bytes of a value that travel at once; the rest on request.
FIRST = 20_000
#: Bytes of an image that is drawn; a larger one is only named.
LARGEST_IMAGE = 5_000_000

Value = dict[str, Any]
#: The first characters of images in base64; what it says about itself counts for nothing.
_SIGNATURES = {
    "iVBORw0KGgo": "image/png", "/9j/": "image/jpeg", "R0lGOD": "image/gif", "UklGR": "image/webp"
}  # fmt: skip
_BASE64 = re.compile(r'"(?:data:image/[\w.+-]+;base64,)?([A-Za-z0-9+/]{200,}={0,2})"')
_CODE_FILE = re.compile(
    r"\.(py|pyi|js|mjs|ts|tsx|jsx|java|c|h|cc|cpp|hpp|cs|go|rs|rb|php|sh|sql|kt|swift|scala|lua|r"
    r"|jl|toml|ya?ml|ini|cfg|css)$",
    re.IGNORECASE,
)
#: Lines that only code begins with; two of them make a text code.
_CODE_LINE = re.compile(
    r"^\s*(#!|def |class |async def |import \w|from \S+ import |return\b.*|const |let |var "
    r"|function\b|func |fn |pub |public |private |package |#include|@\w+|if .*[:{]$|for .*[:{]$"
    r"|while .*[:{]$|else\s*[:{]$|try\s*[:{]$|except\b.*:$|SELECT |CREATE )"
)


def present(
    payload: Payload, *, whole: bool = False, missing: str = "not recorded", name: str | None = None
) -> Value:
    """Return a recorded value for the page.

    Args:
        payload: The value as recorded.
        whole: Send all of it, not only the first 20 kB.
        missing: What to say where nothing was recorded.
        name: The file that a text comes from, where that is known.
    """
    if payload is UNSET:
        return nothing(missing)
    try:
        text = readable(payload)
        value = values.decode(payload)
    except JournalValueError as problem:
        return {
            **sized("text", bytes(payload).decode(errors="replace"), whole),
            "note": str(problem),
        }
    raw = bytes(payload)
    if any(start.encode() in raw for start in _SIGNATURES):
        image = _image(value)
        if image is not None:
            return image
        text = _BASE64.sub(_named, text)
    return sized(_format(value, name), text, whole)


def nothing(note: str) -> Value:
    """Return the value of something that is not there."""
    return {
        "format": "none", "text": "", "bytes": 0, "shown": 0, "truncated": False, "note": note
    }  # fmt: skip


def text_value(text: str, form: str = "text", *, whole: bool = False) -> Value:
    """Return a text of ours (a line of the journal, a diff) for the page."""
    return sized(form, text, whole)


def sized(form: str, text: str, whole: bool) -> Value:
    """Return a text with its sizes, cut to its first 20 kB unless ``whole``."""
    data = text.encode(errors="replace")
    shown = data if whole else data[:FIRST]
    return {
        "format": form,
        "text": text if len(shown) == len(data) else shown.decode(errors="ignore"),
        "bytes": len(data),
        "shown": len(shown),
        "truncated": len(shown) < len(data),
    }


def _format(value: JSON, name: str | None) -> str:
    if not isinstance(value, str):
        return "json"
    if is_diff(value):
        return "diff"
    if name is not None and _CODE_FILE.search(name) and "\n" in value:
        return "code"
    lines = value[:FIRST].split("\n")
    coded = sum(_CODE_LINE.match(line) is not None for line in lines)
    return "code" if coded >= 2 and coded * 8 >= len(lines) else "text"


def _image(value: JSON) -> Value | None:
    """Return a value that is an image as a whole: a text of base64, or an object around one."""
    if isinstance(value, dict):
        inner = [value.get(name) for name in ("data", "base64", *_SIGNATURES.values())]
        source = value.get("source")
        if isinstance(source, dict):
            inner.append(source.get("data"))
        texts = [item for item in inner if isinstance(item, str)]
        return _image(texts[0]) if len(texts) == 1 and len(value) <= 4 else None
    if not isinstance(value, str):
        return None
    data = re.sub(r"^data:image/[\w.+-]+;base64,", "", value)
    kind = _kind(data)
    if kind is None:
        return None
    try:
        size = len(base64.b64decode(data, validate=True))
    except binascii.Error:
        return None
    shown: Value = {
        "format": "image", "mime": kind, "text": _label(kind, size), "bytes": size, "shown": size,
        "truncated": False,
    }  # fmt: skip
    if size <= LARGEST_IMAGE:
        shown["base64"] = data
    return shown


def _kind(data: str) -> str | None:
    return next((kind for start, kind in _SIGNATURES.items() if data.startswith(start)), None)


def _named(match: re.Match[str]) -> str:
    kind = _kind(match[1])
    return match[0] if kind is None else f'"{_label(kind, len(match[1]) * 3 // 4)}"'


def _label(kind: str, size: int) -> str:
    shown = f"{size} B" if size < 1000 else f"{size / 1000:,.0f} kB"
    return f"<{kind.removeprefix('image/')}, {shown}>"
