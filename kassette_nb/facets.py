"""What of steps is compared besides their values: what they were asked, and what they changed."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from . import changed, values
from .changed import Pair, Touched
from .diff import Beside
from .difference import difference
from .entries import Intent, Payload, Source, Step
from .errors import JournalValueError, KassetteError, WorkspaceError
from .journal import read
from .kept import home
from .llm.history import History
from .model import RunModel
from .noted import begun_in, commit_of
from .places import fork_tree
from .snapshots import Snapshots
from .values import JSON

#: Stands for the directory of a run in its arguments: each attempt has one of its own.
WORKSPACE = b"$WORKSPACE"
#: Where a directory's name ends: what goes on is the name of another one that begins alike. A dot
#: may end a sentence.
_ENDS = rb"(?![\w\-+~@\x80-\xff]|\.[\w\x80-\xff])"


class Facets:
    """Arguments and file changes of the steps of several runs, by run and offset.

    Attributes:
        beside: What `kassette_nb.diff.align` compares.
    """

    def __init__(self, runs: Sequence[RunModel]) -> None:
        directories = _Directories(runs)
        self._arguments = [_arguments(run, directories.of(run)) for run in runs]
        self._pairs = [_pairs(run) for run in runs]
        self._homes = [Snapshots(home(run.storage)) for run in runs]
        self._touched = self._looked()
        self._counts: dict[tuple[str, Pair], tuple[int, int]] = {}
        self.beside = [self._beside(column, run) for column, run in enumerate(runs)]

    def arguments(self, column: int, step: Step) -> Payload:
        """Return what a step was asked, as it is compared: of a conversation what is new in it."""
        return self._arguments[column].get(step.offset, UNSET)

    def changed(self, column: int, step: Step) -> str:
        """Return what a step changed in the files, in a few words; empty for nothing known."""
        found = self._changes(column, step)
        if not found:
            return "" if found is None else "no files"
        added, removed = self._counted(column, self._pairs[column][step.offset])
        return f"{len(found)} {'file' if len(found) == 1 else 'files'} +{added} −{removed}"

    def count(self, cells: Iterable[tuple[int, Step]]) -> None:
        """Count the lines that steps changed, all at once: `changed` is then told from memory."""
        wanted: dict[str, tuple[Snapshots, list[Pair]]] = {}
        for column, step in cells:
            if self._changes(column, step):
                place = self._homes[column]
                pairs = wanted.setdefault(str(place.home), (place, []))[1]
                pairs.append(self._pairs[column][step.offset])
        for name, (place, pairs) in wanted.items():
            for pair, counts in changed.counted(place, pairs).items():
                self._counts[name, pair] = counts

    def arguments_difference(self, base: tuple[int, Step], other: tuple[int, Step]) -> str:
        """Return how the arguments of two steps differ, in the form of a diff."""
        ours, theirs = (
            Step(session=0, step_id="", name="", result=self.arguments(*cell))
            for cell in (base, other)
        )
        return difference(ours, theirs)

    def files_difference(
        self, base: tuple[int, Step], other: tuple[int, Step], names: Sequence[str]
    ) -> str:
        """Return how what two steps changed in the files differs, in the form of a diff.

        Args:
            base: A step, with its run's number.
            other: Another one.
            names: What the two runs are called.
        """
        ours, theirs = (self._changes(*cell) or {} for cell in (base, other))
        paths = sorted(p for p in {*ours, *theirs} if ours.get(p) != theirs.get(p))
        told = [
            f"  only {names[0] if path in ours else names[1]} changes {path} here"
            for path in paths
            if path not in ours or path not in theirs
        ]
        before, after = base[1].workspace, other[1].workspace
        if before is not None and after is not None and before != after and paths:
            with contextlib.suppress(WorkspaceError):  # the other's may be in another storage
                told.append(changed.difference(self._homes[other[0]], before, after, paths))
        return "\n".join(filter(None, told))

    # ------------------------------------------------------------------------------- inside

    def _looked(self) -> list[dict[Pair, Touched]]:
        """Ask each storage's snapshots once for all runs that are there."""
        found: dict[str, dict[Pair, Touched]] = {}
        for place in {str(place.home): place for place in self._homes}.values():
            pairs = [
                pair
                for there, own in zip(self._homes, self._pairs, strict=True)
                if there.home == place.home
                for pair in own.values()
                if pair[0] != pair[1]
            ]
            try:
                found[str(place.home)] = changed.touched(place, pairs)
            except WorkspaceError:
                found[str(place.home)] = {}  # they are not here: nothing is claimed
        return [found[str(place.home)] for place in self._homes]

    def _changes(self, column: int, step: Step) -> Touched | None:
        pair = self._pairs[column].get(step.offset)
        if pair is None:
            return None
        return {} if pair[0] == pair[1] else self._touched[column].get(pair)

    def _counted(self, column: int, pair: Pair) -> tuple[int, int]:
        place = self._homes[column]
        key = str(place.home), pair
        if key not in self._counts:
            self._counts |= {
                (str(place.home), each): counts
                for each, counts in changed.counted(place, [pair]).items()
            }
        return self._counts[key]

    def _beside(self, column: int, run: RunModel) -> dict[int, Beside]:
        found = {}
        known: dict[Pair, bytes] = {}
        arguments = self._arguments[column]
        for entry in run.journal.entries:
            if not isinstance(entry, Step):
                continue
            changes = self._changes(column, entry)
            digest = None
            if changes is not None:
                pair = self._pairs[column][entry.offset]
                digest = known.get(pair)
                if digest is None:
                    lines = (b"\0".join((repr(p).encode(), c)) for p, c in sorted(changes.items()))
                    digest = known[pair] = b"\n".join(lines)
            told = arguments.get(entry.offset)
            found[entry.offset] = Beside(bytes(told) if told is not None else b"", digest)
        return found


def _pairs(run: RunModel) -> dict[int, Pair]:
    """Return the snapshots before and behind each step that has both, by its offset."""
    found: dict[int, Pair] = {}
    before: str | None = None
    for entry in run.journal.entries:
        commit = commit_of(entry)
        if commit is None:
            continue
        if before is not None and isinstance(entry, Step):
            found[entry.offset] = before, commit
        before = commit
    return found


class _Directories:
    """Who recorded a step in which directory: a fork's first steps were recorded in its source's.

    Args:
        runs: Those whose journals are at hand.
    """

    def __init__(self, runs: Sequence[RunModel]) -> None:
        self._sources = {run.run_id: run.journal.opening.source for run in runs}

    def of(self, run: RunModel) -> list[tuple[int, bytes]]:
        """Return offsets from which on a run's steps have a directory, the newest first."""
        found: list[tuple[int, bytes]] = []
        run_id, entries = run.run_id, run.journal.entries
        while (source := self._source(run, run_id)) is not None:
            found.append((source.from_offset, _told(fork_tree(run.storage, run_id))))
            run_id = source.run_id
        begun = begun_in(entries)
        return [*found, (0, _told(Path(begun)))] if begun is not None else []

    def _source(self, run: RunModel, run_id: str) -> Source | None:
        if run_id not in self._sources:
            try:
                self._sources[run_id] = read(run.storage, run_id).opening.source
            except KassetteError:  # gone, or damaged
                self._sources[run_id] = None
        return self._sources[run_id]


def _told(path: Path) -> bytes:
    return msgspec.json.encode(os.fsencode(path).decode(errors="replace"))[1:-1]


def _arguments(run: RunModel, directories: list[tuple[int, bytes]]) -> dict[int, Raw]:
    """Return what each step was asked, in one form for equal ones, by its offset."""
    found: dict[int, Raw] = {}
    intents: dict[str, Intent] = {}
    history, known = History(), dict[bytes, bytes]()
    for entry in run.journal.entries:
        if isinstance(entry, Intent):
            intents[entry.step_id] = entry
        if not isinstance(entry, Step):
            continue
        intent = intents.get(entry.step_id)
        kept = intent.args if intent is not None else entry.args
        if kept is UNSET:
            continue
        raw = bytes(kept)
        if entry.request is not None:
            same = _sorted(history.requested(entry), raw)
        elif b'"role"' in raw:
            same = _sorted(history.given(_decoded(kept)), raw)
        else:  # the rule, and many are equal
            same = known.get(raw) or known.setdefault(raw, _sorted(_decoded(kept), raw))
        directory = next((name for offset, name in directories if entry.offset >= offset), None)
        if directory is not None and directory in same:
            same = re.sub(re.escape(directory) + _ENDS, WORKSPACE, same)
        found[entry.offset] = Raw(same)
    return found


def _decoded(payload: Payload) -> JSON:
    try:
        return values.decode(payload)
    except JournalValueError:
        return None


def _sorted(value: Any, raw: bytes) -> bytes:
    if value is None:
        return raw
    try:
        return msgspec.json.encode(value, order="sorted")
    except (RecursionError, ValueError):
        return raw
