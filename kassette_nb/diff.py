"""Runs aligned step by step. Pure.

Runs are aligned as sequences of what their steps are (`kassette_nb.tokens`), so a step that only
one run has takes a row of its own and does not shift what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import UNSET

from . import sequences, values
from .difference import difference, readable
from .entries import Step
from .errors import JournalValueError
from .tokens import label, ordered, token
from .values import JSON

__all__ = ["Beside", "Row", "align", "difference", "first_difference", "readable", "shared"]

#: Equal values overrule the order of names only where they say clearly more: by this many rows,
#: or by this part of the shorter run.
CLEARLY, PART = 2, 0.1


class Beside(msgspec.Struct, frozen=True):
    """What of a step is compared besides its value, as keys that equal ones share.

    ``arguments`` are those recorded. ``files`` is what it changed in the files, None where that
    is not known: then nothing is claimed of it.
    """

    arguments: bytes = b""
    files: bytes | None = None


#: The words of `Row.differs`, in their order.
PARTS = ("value", "arguments", "files")
_Parts = tuple[bytes, bytes, bytes | None]


class Row(msgspec.Struct, frozen=True):
    """One aligned row: what the step is, and each run's step there, or None where it has none.

    ``letters`` marks equal steps by the same letter, None where the run has no step. ``differs``
    says of each step in what it is another than the base's (than the first, where the base has
    none): ``value``, ``arguments``, ``files``, several joined by ", ", empty for nothing. ``label``
    is the name with the command; ``moved`` marks steps of a branch that stands elsewhere in that
    run.
    """

    name: str
    cells: tuple[Step | None, ...]
    letters: tuple[str | None, ...]
    label: str = ""
    moved: tuple[bool, ...] = ()
    differs: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether every run has the step, and it is the same in all."""
        return None not in self.letters and len(set(self.letters)) == 1


class _Line:
    """A row that is being made: what its steps are, and the cells so far."""

    __slots__ = ("cells", "moved", "token")

    def __init__(self, token: str, columns: int) -> None:
        self.token = token
        self.cells: list[Step | None] = [None] * columns
        self.moved = [False] * columns


class _Item(msgspec.Struct, frozen=True):
    """A step with what it is and what it returned."""

    step: Step
    token: str
    key: bytes


def align(
    runs: Sequence[Sequence[Step]],
    base: int = 0,
    said: Callable[[Step], JSON] | None = None,
    beside: Sequence[Mapping[int, Beside]] = (),
) -> list[Row]:
    """Align runs on the base run: by names and values, whatever stands beside these.

    Args:
        runs: Each run's steps in order.
        base: Which one the others are aligned with.
        said: What of a step's result counts as the same, None for all of it; by default all.
        beside: For each run, what else is compared of its steps, by their offsets.

    Returns:
        Rows in the order of the base run; what only others have stands where it happened.
    """
    keys = _Keys(said)
    items = [[_Item(s, token(s), keys.of(s)) for s in ordered(steps)] for steps in runs]
    columns = len(runs)
    kept = [_line(item, base, columns) for item in items[base]]
    # The rows before each of the base's, and behind its last one.
    gaps: list[list[_Line]] = [[] for _ in range(len(kept) + 1)]
    for column, theirs in enumerate(items):
        if column == base:
            continue
        pairs = _pairs(items[base], theirs)
        for ours, number in pairs:
            kept[ours].cells[column] = theirs[number].step
        matched = {number: ours for ours, number in pairs}
        taken = _move(kept, items[base], theirs, matched, column)
        gap, between = 0, list[_Item]()
        for number, item in enumerate(theirs):
            if number in matched:
                gaps[gap] = _merge(gaps[gap], between, column, columns)
                gap, between = matched[number] + 1, []
            elif number not in taken:
                between.append(item)
        gaps[gap] = _merge(gaps[gap], between, column, columns)
    rows: list[Row] = []
    for gap, before in enumerate(gaps):
        rows += [_row(line, keys, base, beside) for line in before]
        if gap < len(kept):
            rows.append(_row(kept[gap], keys, base, beside))
    return rows


def first_difference(rows: Sequence[Row]) -> Row | None:
    """Return the first row that is not equal in all runs."""
    return next((row for row in rows if not row.equal), None)


def shared(rows: Sequence[Row]) -> int:
    """Return how many rows are equal before the first difference."""
    return next((n for n, row in enumerate(rows) if not row.equal), len(rows))


def _pairs(base: Sequence[_Item], other: Sequence[_Item]) -> list[tuple[int, int]]:
    """Return which steps are the same, as rising pairs of positions."""
    # The common beginning first: a fork repeats its source up to the cut, and an equal value
    # further on must not pull a step away from the one it took the place of.
    by_name = sequences.common([i.token for i in base], [i.token for i in other])
    exact = sequences.common([(i.token, i.key) for i in base], [(i.token, i.key) for i in other])
    equal = sum(base[ours].key == other[theirs].key for ours, theirs in by_name)
    shorter = min(len(base), len(other))
    clearly = len(exact) - equal > max(CLEARLY, PART * shorter)
    if not clearly and not (len(exact) == shorter > equal):
        return by_name
    # Between the steps that are the same to the value, names decide.
    pairs, left, right = [], 0, 0
    for ours, theirs in [*exact, (len(base), len(other))]:
        inner = sequences.common(
            [i.token for i in base[left:ours]], [i.token for i in other[right:theirs]]
        )
        pairs += [(left + a, right + b) for a, b in inner]
        pairs.append((ours, theirs))
        left, right = ours + 1, theirs + 1
    return pairs[:-1]


def _move(
    kept: list[_Line],
    base: Sequence[_Item],
    other: Sequence[_Item],
    matched: dict[int, int],
    column: int,
) -> set[int]:
    """Put branches that stand elsewhere in the other run beside those of the base."""
    ours = _branches(base, set(matched.values()))
    theirs = _branches(other, set(matched))
    taken: set[int] = set()
    for name in ours.keys() & theirs.keys():
        left, right = ours[name], theirs[name]
        pairs = sequences.common([base[n].token for n in left], [other[n].token for n in right])
        for a, b in pairs:
            kept[left[a]].cells[column] = other[right[b]].step
            kept[left[a]].moved[column] = True
            taken.add(right[b])
    return taken


def _branches(items: Sequence[_Item], matched: set[int]) -> dict[str, list[int]]:
    """Return the steps of each branch that has found no counterpart at all, by its name."""
    found: dict[str, list[int]] = {}
    for number, item in enumerate(items):
        branch, slash, _ = item.step.step_id.partition("/")
        if slash:
            found.setdefault(branch.partition("#")[0], []).append(number)
    return {name: steps for name, steps in found.items() if not matched.intersection(steps)}


def _merge(lines: list[_Line], items: list[_Item], column: int, columns: int) -> list[_Line]:
    """Put a run's steps among the rows that other runs have at the same place."""
    if not items:
        return lines
    merged: list[_Line] = []
    left = right = 0
    pairs = sequences.common([line.token for line in lines], [item.token for item in items])
    for ours, theirs in [*pairs, (len(lines), len(items))]:
        merged += lines[left:ours]
        merged += [_line(item, column, columns) for item in items[right:theirs]]
        if ours < len(lines):
            lines[ours].cells[column] = items[theirs].step
            merged.append(lines[ours])
        left, right = ours + 1, theirs + 1
    return merged


def _line(item: _Item, column: int, columns: int) -> _Line:
    line = _Line(item.token, columns)
    line.cells[column] = item.step
    return line


def _row(line: _Line, keys: _Keys, base: int, beside: Sequence[Mapping[int, Beside]]) -> Row:
    letters: list[str | None] = []
    differs: list[str] = []
    # The base's step is the first letter, wherever the base stands.
    shown = line.cells[base]
    first = base if shown is not None else next(n for n, s in enumerate(line.cells) if s)
    shown = shown or line.cells[first]
    assert shown is not None, "a row is made of a step"
    files = _beside(beside, first, shown).files
    wanted = _parts(shown, first, keys, beside, files)
    seen = {wanted: _letter(0)} if first == base else {}
    for column, step in enumerate(line.cells):
        if step is None:
            letters.append(None)
            differs.append("")
            continue
        parts = wanted if column == first else _parts(step, column, keys, beside, files)
        letters.append(seen.get(parts) or seen.setdefault(parts, _letter(len(seen))))
        pairs = zip(PARTS, parts, wanted, strict=True)
        differs.append(", ".join(name for name, ours, theirs in pairs if ours != theirs))
    return Row(
        shown.name,
        tuple(line.cells),
        tuple(letters),
        label(shown),
        tuple(line.moved),
        tuple(differs),
    )


def _parts(
    step: Step,
    column: int,
    keys: _Keys,
    beside: Sequence[Mapping[int, Beside]],
    files: bytes | None,
) -> _Parts:
    """Return what is compared of a step; files that are not known are taken for the base's."""
    more = _beside(beside, column, step)
    both = more.files is not None and files is not None
    return keys.of(step), more.arguments, more.files if both else files


def _beside(beside: Sequence[Mapping[int, Beside]], column: int, step: Step) -> Beside:
    return beside[column].get(step.offset, _NOTHING) if beside else _NOTHING


_NOTHING = Beside()


def _letter(number: int) -> str:
    letter = chr(ord("A") + number % 26)
    return letter if number < 26 else _letter(number // 26 - 1) + letter


class _Keys:
    """What makes two results the same: their value, whatever the order of keys."""

    def __init__(self, said: Callable[[Step], JSON] | None) -> None:
        self._said = said
        self._known: dict[bytes, bytes] = {}

    def of(self, step: Step) -> bytes:
        """Return a key that equal results share."""
        if step.error is not None:
            return msgspec.json.encode((step.error.name, step.error.message))
        if step.result is UNSET or step.kind == "sleep":
            return b""  # the moment of waking is no result
        part = self._said(step) if self._said is not None and step.request is not None else None
        if part is not None:
            return msgspec.json.encode(part)
        raw = bytes(step.result)
        key = self._known.get(raw)
        if key is None:
            key = self._known[raw] = _sorted(step, raw)
        return key


def _sorted(step: Step, raw: bytes) -> bytes:
    if raw[:1] not in b"{[":
        return raw
    try:
        return msgspec.json.encode(values.decode(step.result), order="sorted")
    except (JournalValueError, RecursionError):
        return raw
