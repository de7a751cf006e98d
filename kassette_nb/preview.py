"""A recorded value in one line: what it is, not all of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC

import msgspec
from msgspec import UNSET

from . import values
from .clock import instant
from .entries import Payload, Step
from .errors import JournalValueError
from .llm.conversation import conversation, exchange
from .text import LINE, first_line, visible
from .values import JSON


def outcome(step: Step) -> str:
    """Return one line that says what a step came to."""
    if step.error is not None:
        return first_line(f"{step.error.name}: {step.error.message}")
    if step.result is UNSET:
        return ""
    said = conversation(step)
    if said is not None and said.line:
        return first_line(said.line)
    return first_line(exchange(step) or "") or preview(step.result)


def preview(payload: Payload) -> str:
    """Return one line that says what a recorded value is."""
    if payload is UNSET:
        return ""
    if len(payload) > 1_000_000:
        return first_line(bytes(payload)[:400].decode(errors="replace"))
    try:
        return _line(values.decode(payload))
    except JournalValueError as problem:
        return first_line(problem.reason)


def recorded(payload: Payload) -> str | None:
    """Return the beginning of a recorded value's own JSON in one line, or None where none is.

    Cheaper than `preview`, since nothing is decoded: tables make one for every entry.
    """
    if payload is UNSET:
        return None
    # A character has at most four bytes; one that is cut in two is left out.
    text = str(memoryview(payload)[: 4 * LINE + 4], "utf-8", "ignore")
    if len(text) > LINE:
        text = text[: LINE - 1] + "…"
    return text if text.isprintable() else visible(text.replace("\n", " "))


def decided(payload: Payload) -> str:
    """Return an answer in words: approved, rejected, or what was answered."""
    try:
        value = values.decode(payload)
    except JournalValueError as problem:
        return first_line(problem.reason)
    approved = value.get("approved") if isinstance(value, dict) else value
    if not isinstance(approved, bool):
        return f"answered {preview(payload)}"
    return "approved" if approved else "rejected"


def is_diff(text: str) -> bool:
    """Tell whether a text is a unified diff, with or without its headers."""
    lines = [line for line in text[:20_000].split("\n") if line]
    if not any(line[0] in "+-" for line in lines):
        return False
    if any(line.startswith(("diff --git ", "@@ -", "@@ ")) for line in lines):
        return any(line[0] in "+-" for line in lines)
    return all(line[0] in "+- @\\" for line in lines)


def _line(value: JSON) -> str:
    if isinstance(value, str):
        if is_diff(value):
            lines = value.split("\n")
            added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
            removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
            name = next((line[4:] for line in lines if line.startswith("+++ ")), "diff")
            return first_line(f"{name.removeprefix('b/')} +{added} −{removed}")
        return first_line(value)
    if isinstance(value, dict):
        content = value.get("content")
        if isinstance(content, str) and content.strip():
            return first_line(content)
        return first_line(" · ".join(_fields(value)))
    if isinstance(value, list):
        inside = ", ".join(_brief(item) for item in value[:5])
        return first_line(f"{len(value)} items: {inside}" if value else "empty list")
    return _brief(value)


def _fields(value: dict[str, JSON]) -> Iterator[str]:
    """Yield as many of an object's fields as a line holds."""
    size = 0
    for key, item in value.items():
        if size > LINE:
            break
        text = f"{key} {_brief(item)}"
        size += len(text) + 3
        yield text


def _brief(value: JSON) -> str:
    if isinstance(value, str):
        return first_line(value, 60)
    if type(value) is int:
        return str(value)
    if isinstance(value, dict | list):
        kind = "fields" if isinstance(value, dict) else "items"
        return f"({len(value)} {kind})"
    return msgspec.json.encode(value).decode()


def asleep(step: Step) -> str:
    """Return in words until when a recorded sleep lasts."""
    try:
        until = instant(str(values.decode(step.result)))
    except (JournalValueError, ValueError):
        return preview(step.result)
    return f"until {until.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
