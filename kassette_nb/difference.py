"""How two recorded values differ, as text to read: unified for texts, by path for JSON. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import msgspec
from msgspec import UNSET

from . import sequences, values
from .entries import Payload, Step
from .errors import JournalValueError
from .values import JSON

#: Unchanged lines shown around a change.
CONTEXT = 3
#: Changes that are shown one by one.
SHOWN = 400
#: Values that take more lines than this are not compared line by line.
LINES = 20_000


def difference(before: Step | None, after: Step | None) -> str:
    """Return how two steps' results differ, in the form of a diff; empty where they do not.

    Texts are compared by line. In JSON every change stands under its path, and an item that was
    put into a list is one change, whatever it moved.
    """
    old, new = _value(before), _value(after)
    if isinstance(old, dict | list) and type(old) is type(new):
        return "\n".join(_by_path(old, new))
    # The first two lines would name files; these are values.
    ours, theirs = (_lines(step) for step in (before, after))
    if ours == theirs and type(old) is not type(new):  # the number 1 and the text "1"
        ours, theirs = (msgspec.json.encode(value).decode().split("\n") for value in (old, new))
    if len(ours) + len(theirs) > LINES:
        return "" if ours == theirs else f"-({len(ours)} lines)\n+({len(theirs)} lines)"
    return "\n".join([*difflib.unified_diff(ours, theirs, lineterm="", n=CONTEXT)][2:])


def changes(before: str, after: str) -> str:
    """Return how two texts differ, in the form of a diff; empty where they do not."""
    lines = before.split("\n"), after.split("\n")
    return "\n".join([*difflib.unified_diff(*lines, lineterm="", n=CONTEXT)][2:])


def readable(payload: Payload) -> str:
    """Return a recorded value as text: a string as it is, anything else as indented JSON."""
    if payload is UNSET:
        return ""
    try:
        value = values.decode(payload)
        if isinstance(value, str):
            return value
        return msgspec.json.format(bytes(payload), indent=2).decode()
    except (JournalValueError, msgspec.DecodeError, RecursionError):
        return bytes(payload).decode(errors="replace")


def _value(step: Step | None) -> JSON:
    if step is None or step.error is not None or step.result is UNSET:
        return None
    try:
        return values.decode(step.result)
    except JournalValueError:
        return None


def _lines(step: Step | None) -> list[str]:
    if step is None:
        return []
    if step.error is not None:
        return [f"{step.error.name}: {step.error.message}"]
    return readable(step.result).split("\n")


def _by_path(old: JSON, new: JSON) -> Iterator[str]:
    for number, (path, before, after) in enumerate(_changes(old, new, "$")):
        if number == SHOWN:
            yield "@@ more differences are not shown @@"
            return
        yield f"@@ {path} @@"
        ours, theirs = (_text(value) for value in (before, after))
        if isinstance(before, str) and isinstance(after, str) and len(ours) + len(theirs) > 2:
            yield from [*difflib.unified_diff(ours, theirs, lineterm="", n=CONTEXT)][3:]
            continue
        yield from (f"-{line}" for line in ours)
        yield from (f"+{line}" for line in theirs)


class _Missing:
    """Stands for what one side does not have."""


_MISSING = _Missing()


def _text(value: JSON | _Missing) -> list[str]:
    if isinstance(value, _Missing):
        return []
    if isinstance(value, str):
        return value.split("\n")
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode().split("\n")


def _changes(old: JSON, new: JSON, path: str) -> Iterator[tuple[str, JSON, JSON]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            inside = f"{path}.{key}" if key.isidentifier() else f"{path}[{key!r}]"
            yield from _changes(old.get(key, _MISSING), new.get(key, _MISSING), inside)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _list_changes(old, new, path)
    elif _mark(old) != _mark(new):
        yield path, old, new


def _list_changes(old: list[JSON], new: list[JSON], path: str) -> Iterator[tuple[str, JSON, JSON]]:
    pairs = sequences.common([*map(_mark, old)], [*map(_mark, new)])
    left = right = 0
    for ours, theirs in [*pairs, (len(old), len(new))]:
        # What stands between two equal items is compared pair by pair, then added or removed.
        while left < ours and right < theirs:
            yield from _changes(old[left], new[right], f"{path}[{right}]")
            left, right = left + 1, right + 1
        for number in range(left, ours):
            yield f"{path}[{number}]", old[number], _MISSING
        for number in range(right, theirs):
            yield f"{path}[{number}]", _MISSING, new[number]
        left, right = ours + 1, theirs + 1


def _mark(value: JSON | _Missing) -> bytes:
    return b"" if isinstance(value, _Missing) else msgspec.json.encode(value, order="sorted")
