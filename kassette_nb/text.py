"""Journal text made fit to be shown: one line, nothing invisible, nothing that turns around."""

from __future__ import annotations

import re

#: Characters that show nothing, or change how their neighbours are shown. A person's decision
#: depends on what they read, so these are spelled out.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_NUMBER = re.compile("([0-9]+)")
#: The longest line that is shown where only one line is.
LINE = 160


def natural(name: str) -> list[tuple[int, str]]:
    """Return what names are ordered by for people: ``run.2`` stands before ``run.10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBER.split(name)]


def visible(text: str) -> str:
    """Return the text with control and direction characters spelled out (``\\x1b``, ``\\u202e``).

    Tabs and newlines stay.
    """
    if text.isprintable():  # none of the hidden ones is
        return text
    return _HIDDEN.sub(lambda match: _spelled(match[0]), text)


def first_line(text: str, limit: int = LINE) -> str:
    """Return the first line with something on it, cut to ``limit`` characters and made visible."""
    # Tables and lists make one for every step: no more is looked at than is shown.
    start, last = 0, min(len(text), 20_000)
    while start < last:
        end = text.find("\n", start, last)
        if end < 0:
            end = last
        line = text[start:end].strip()
        if line:
            shown = visible(line[: limit + 1])
            return shown if len(shown) <= limit else shown[: limit - 1] + "…"
        start = end + 1
    return ""


def _spelled(character: str) -> str:
    if character == "\r":
        return "\\r"
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
