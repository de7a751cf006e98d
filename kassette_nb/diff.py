"""Runs aligned step by step, and values compared. Pure.

Runs are aligned as sequences of step names, so a step that only one run has takes a row of its
own and does not shift what follows.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET

from . import values
from .entries import Payload, Step
from .errors import JournalValueError
from .values import JSON

#: Unchanged lines shown around a change.
CONTEXT = 3


class Row(msgspec.Struct, frozen=True):
    """One aligned row: a step name, and each run's step there, or None where it has none.

    ``letters`` marks equal results by the same letter, None where the run has no step.
    """

    name: str
    cells: tuple[Step | None, ...]
    letters: tuple[str | None, ...]

    @property
    def equal(self) -> bool:
        """Whether every run has the step, with the same result."""
        return None not in self.letters and len(set(self.letters)) == 1


def align(
    runs: Sequence[Sequence[Step]], base: int = 0, said: Callable[[Step], JSON] | None = None
) -> list[Row]:
    """Align runs on the base run.

    Args:
        runs: Each run's steps in order.
        base: Which one the others are aligned with.
        said: What of a step's result counts as the same, None for all of it; by default all.

    Returns:
        Rows in the order of the base run; what only others have stands where it happened.
    """
    columns = len(runs)
    # Row i of the base, preceded by the inserted rows before it: (gap, name, n-th) -> cells.
    kept: list[list[Step | None]] = []
    for step in runs[base]:
        cells: list[Step | None] = [None] * columns
        cells[base] = step
        kept.append(cells)
    inserted: list[list[list[Step | None]]] = [[] for _ in range(len(kept) + 1)]
    for column, steps in enumerate(runs):
        if column == base:
            continue
        pairs = _pairs([s.name for s in runs[base]], [s.name for s in steps])
        for gap, row, step in _placed(pairs, steps):
            if row is not None:
                kept[row][column] = step
                continue
            for cells in inserted[gap]:
                shown = next(c for c in cells if c is not None)
                later = inserted[gap][inserted[gap].index(cells) + 1 :]
                taken = any(other[column] is not None for other in later)
                if cells[column] is None and shown.name == step.name and not taken:
                    cells[column] = step
                    break
            else:
                cells = [None] * columns
                cells[column] = step
                inserted[gap].append(cells)
    rows: list[Row] = []
    for gap in range(len(kept) + 1):
        rows += [_row(cells, said) for cells in inserted[gap]]
        if gap < len(kept):
            rows.append(_row(kept[gap], said))
    return rows


def first_difference(rows: Sequence[Row]) -> Row | None:
    """Return the first row that is not equal in all runs."""
    return next((row for row in rows if not row.equal), None)


def shared(rows: Sequence[Row]) -> int:
    """Return how many rows are equal before the first difference."""
    return next((n for n, row in enumerate(rows) if not row.equal), len(rows))


def difference(before: Step | None, after: Step | None) -> str:
    """Return the difference of two steps' results as a unified diff; empty where there is none."""
    old, new = (_lines(step) for step in (before, after))
    return _unified(old, new)


def changes(before: str, after: str) -> str:
    """Return the difference of two texts as a unified diff; empty where there is none."""
    return _unified(before.split("\n"), after.split("\n"))


def _unified(old: list[str], new: list[str]) -> str:
    # The first two lines would name files; these are values.
    return "\n".join([*difflib.unified_diff(old, new, lineterm="", n=CONTEXT)][2:])


def _pairs(base: list[str], other: list[str]) -> dict[int, int]:
    # The common beginning first: a fork repeats its source up to the cut, and the longest equal
    # stretch further on must not pull a step away from the one it took the place of.
    start = 0
    for ours, theirs in zip(base, other, strict=False):
        if ours != theirs:
            break
        start += 1
    matcher = difflib.SequenceMatcher(None, base[start:], other[start:], autojunk=False)
    pairs = {number: number for number in range(start)}
    for block in matcher.get_matching_blocks():
        for n in range(block.size):
            pairs[start + block.b + n] = start + block.a + n
    return pairs


def _placed(pairs: dict[int, int], steps: Sequence[Step]) -> list[tuple[int, int | None, Step]]:
    placed: list[tuple[int, int | None, Step]] = []
    gap = 0
    for number, step in enumerate(steps):
        row = pairs.get(number)
        placed.append((gap, row, step))
        if row is not None:
            gap = row + 1
    return placed


def _row(cells: list[Step | None], said: Callable[[Step], JSON] | None) -> Row:
    letters: list[str | None] = []
    seen: dict[bytes, str] = {}
    for step in cells:
        if step is None:
            letters.append(None)
        else:
            part = said(step) if said is not None else None
            key = _key(step) if part is None else msgspec.json.encode(part)
            letters.append(seen.setdefault(key, _letter(len(seen))))
    name = next(step.name for step in cells if step is not None)
    return Row(name, tuple(cells), tuple(letters))


def _letter(number: int) -> str:
    letter = chr(ord("A") + number % 26)
    return letter if number < 26 else _letter(number // 26 - 1) + letter


def _key(step: Step) -> bytes:
    """Return what makes two results the same: their value, whatever the order of keys."""
    if step.error is not None:
        return msgspec.json.encode(step.error)
    if step.result is UNSET:
        return b""
    try:
        return msgspec.json.encode(values.decode(step.result), order="sorted")
    except (JournalValueError, RecursionError):
        return bytes(step.result)


def _lines(step: Step | None) -> list[str]:
    if step is None:
        return []
    if step.error is not None:
        return [f"{step.error.name}: {step.error.message}"]
    return readable(step.result).split("\n")


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
