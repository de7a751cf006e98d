"""What a journal says of the files of its run: which snapshot stands where."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Raw

from .entries import AnyEntry, Note, Start, Step, Suspend, Terminal
from .errors import WorkspaceError

#: Steps of these kinds run no code of the user's.
UNTOUCHING = frozenset({"value", "sleep"})


class Told(msgspec.Struct, omit_defaults=True):
    """The data of a note about the tree."""

    commit: str | None = None
    path: str | None = None
    within: str | None = None
    replaced: str | None = None
    left_out: dict[str, str] = {}
    error: str | None = None
    aside: str | None = None


def commit_of(entry: AnyEntry) -> str | None:
    """Return the snapshot that an entry records."""
    if isinstance(entry, Step):
        return entry.workspace
    told = _told(entry)
    return told.commit if told is not None else None


def begun_in(entries: Sequence[AnyEntry]) -> str | None:
    """Return the directory that a run, or the first of its sources, worked in last."""
    for entry in reversed(entries):
        told = _told(entry)
        if told is not None and told.path is not None:
            return told.path
    return None


def died(entries: Sequence[AnyEntry]) -> bool:
    """Whether the newest session of a fork began to act and did not come to an end of its own."""
    source = entries[0].source if isinstance(entries[0], Start) else None
    own = source is not None and len(entries) > max(1, source.from_offset)
    return own and not isinstance(entries[-1], (Suspend, *Terminal))


def _told(entry: AnyEntry) -> Told | None:
    if isinstance(entry, Note) and entry.kind == "workspace" and entry.data is not UNSET:
        try:
            return msgspec.json.decode(entry.data, type=Told)
        except msgspec.DecodeError:
            return None
    return None


def latest(entries: Sequence[AnyEntry]) -> str | None:
    """Return the snapshot recorded last among these entries."""
    return next(filter(None, map(commit_of, reversed(entries))), None)


def at_cut(run_id: str, entries: Sequence[AnyEntry], cut: int, asked: str = "fork") -> str | None:
    """Return the snapshot of the files as they were before the entry ``cut``.

    Returns:
        None for a run without a workspace.

    Raises:
        WorkspaceError: A step before it was recorded without one; names the nearest that serve.
    """
    first = next(filter(None, map(commit_of, entries)), None)
    without = bare(entries[:cut])
    if first is not None and without is not None:
        raise _no_snapshot(run_id, entries, without, asked)
    # Before the first one stands nothing that could have changed a file.
    return latest(entries[:cut]) or first


def bare(entries: Sequence[AnyEntry]) -> Step | None:
    """Return the first step behind the last snapshot that should have one of its own."""
    found: Step | None = None
    for entry in reversed(entries):
        if commit_of(entry) is not None:
            break
        if isinstance(entry, Step) and entry.kind not in UNTOUCHING:
            found = entry
    return found


def _no_snapshot(
    run_id: str, entries: Sequence[AnyEntry], without: Step, asked: str
) -> WorkspaceError:
    later = iter(entries[without.offset + 1 :])
    found = next((e for e in later if commit_of(e) is not None), None)
    after = next((e for e in later if isinstance(e, Step)), None) if found else None
    or_later = f", or at={after.step_id!r}" if after is not None else ""
    return WorkspaceError(
        f"cannot {asked} run {run_id!r} there: step {without.step_id!r} was recorded without a "
        f"snapshot of the files. Use at={without.step_id!r}, which runs it again{or_later}. "
        "Nothing was written."
    )


def note(told: Told, step_id: str | None = None) -> Note:
    """Return the note that says it."""
    # A file's name need not be text; a journal's line is.
    told.left_out = {_spelled(path): why for path, why in told.left_out.items()}
    told.error = told.error and _spelled(told.error)
    data = Raw(msgspec.json.encode(told))
    return Note(session=0, kind="workspace", step_id=step_id, data=data)


def _spelled(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
