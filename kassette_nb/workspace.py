"""The working tree of a run: where it is, what was recorded of it, and how to get it back.

A run that is begun works in the declared directory. A fork works in a directory of its own, made
from the snapshot that was taken after the last step it keeps, so attempts never share files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import UNSET, Raw

from .entries import AnyEntry, Note, Start, Step
from .errors import WorkspaceChangedError, WorkspaceError
from .journal import Journal
from .kept import check_kept, home, kept_where
from .occupied import Occupied
from .snapshots import MAX_FILE, Snapshots
from .storage import Storage
from .tree import Tree, fresh_indexes

#: Steps of these kinds run no code of the user's.
UNTOUCHING = frozenset({"value", "sleep"})
#: Changes that a message names one by one.
NAMED = 12


class Workspace(msgspec.Struct, frozen=True):
    """A directory whose files are kept with every step: ``@kassette(workspace=…)``.

    ``path`` is the directory. ``ignored`` also keeps what its ``.gitignore`` names; ``max_file``
    is the size in bytes above which a file is left out. ``differs`` says what a session does
    that finds other files than its journal recorded: ``refuse`` (and say what differs),
    ``restore`` them, or ``keep`` what is there and record it.
    """

    path: str
    ignored: bool = False
    max_file: int = MAX_FILE
    differs: Literal["refuse", "restore", "keep"] = "refuse"

    @staticmethod
    def of(given: Workspace | str | os.PathLike[str] | None) -> Workspace | None:
        """Return what a decorator was given as a workspace."""
        if given is None or isinstance(given, Workspace):
            return given
        return Workspace(os.fspath(given))


class _Told(msgspec.Struct, omit_defaults=True):
    """The data of a note about the tree."""

    commit: str | None = None
    path: str | None = None
    left_out: dict[str, str] = {}
    error: str | None = None


def commit_of(entry: AnyEntry) -> str | None:
    """Return the snapshot that an entry records."""
    if isinstance(entry, Step):
        return entry.workspace
    if isinstance(entry, Note) and entry.kind == "workspace" and entry.data is not UNSET:
        try:
            return msgspec.json.decode(entry.data, type=_Told).commit
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
    bare = _bare(entries[:cut])
    if first is not None and bare is not None:
        raise _no_snapshot(run_id, entries, bare, asked)
    # Before the first one stands nothing that could have changed a file.
    return latest(entries[:cut]) or first


def _bare(entries: Sequence[AnyEntry]) -> Step | None:
    """Return the first step behind the last snapshot that should have one of its own."""
    bare: Step | None = None
    for entry in reversed(entries):
        if commit_of(entry) is not None:
            break
        if isinstance(entry, Step) and entry.kind not in UNTOUCHING:
            bare = entry
    return bare


def _no_snapshot(
    run_id: str, entries: Sequence[AnyEntry], bare: Step, asked: str
) -> WorkspaceError:
    later = iter(entries[bare.offset + 1 :])
    found = next((e for e in later if commit_of(e) is not None), None)
    after = next((e for e in later if isinstance(e, Step)), None) if found else None
    or_later = f", or at={after.step_id!r}" if after is not None else ""
    return WorkspaceError(
        f"cannot {asked} run {run_id!r} there: step {bare.step_id!r} was recorded without a "
        f"snapshot of the files. Use at={bare.step_id!r}, which runs it again{or_later}. Nothing "
        "was written."
    )


def fork_tree(storage: Storage, run_id: str) -> Path:
    """Return the directory that a fork works in."""
    return home(storage) / "trees" / run_id


def make_tree(storage: Storage, run_id: str, commit: str, origin: Path | None) -> Path:
    """Make a fork's directory from a snapshot: whole, or not there.

    Args:
        storage: Where the fork is.
        run_id: The fork.
        commit: The snapshot.
        origin: The tree it was taken of; its repository is copied from there.
    """
    place = fork_tree(storage, run_id)
    if place.exists():
        return place
    snapshots = Snapshots(home(storage))
    snapshots.open()
    snapshots.write_whole(commit, place, origin, snapshots.home / "index" / run_id / "0")
    return place


def tree_of(storage: Storage, run_id: str, entries: Sequence[AnyEntry]) -> Path | None:
    """Return the directory that a run works in; None where its journal names none."""
    first = entries[0]
    if isinstance(first, Start) and first.source is not None:
        return fork_tree(storage, run_id)
    return begun_in(entries)


def begun_in(entries: Sequence[AnyEntry]) -> Path | None:
    """Return the directory of the run in which a run or the first of its sources was begun."""
    for entry in entries:
        if isinstance(entry, Note) and entry.kind == "workspace" and entry.data is not UNSET:
            try:
                told = msgspec.json.decode(entry.data, type=_Told)
            except msgspec.DecodeError:
                continue
            if told.path is not None:
                return Path(told.path).absolute()
    return None


def origin(storage: Storage, source: str, entries: Sequence[AnyEntry]) -> Path | None:
    """Return the tree whose repository a fork of ``source`` begins with."""
    made = fork_tree(storage, source)
    return made if made.exists() else begun_in(entries)


class Recorder:
    """Keeps one session's files: checks them at its start, and takes them after every step."""

    def __init__(self, tree: Tree, occupied: Occupied, note: Note | None) -> None:
        self._tree = tree
        self._occupied = occupied
        self._note = note
        self._told: dict[str, str] = {}

    @property
    def path(self) -> Path:
        """The directory that the run works in."""
        return self._tree.path

    def release(self) -> None:
        """Leave the directory to other runs."""
        self._occupied.release()

    def opening(self) -> list[Note]:
        """Return what the session writes about its files when it opens; once."""
        note, self._note = self._note, None
        return [note] if note is not None else []

    def mark(self, entry: object) -> list[Note]:
        """Give a step that is about to be recorded its snapshot.

        A step that has run is recorded also when its files cannot be kept.

        Returns:
            Notes to be recorded before it: what was left out, or why there is no snapshot.
        """
        if not isinstance(entry, Step) or entry.kind in UNTOUCHING:
            return []
        try:
            entry.workspace = self._tree.take()
        except WorkspaceError as problem:
            return [_note(_Told(error=str(problem)), entry.step_id)]
        left_out = self._tree.left_out
        new = {path: why for path, why in left_out.items() if self._told.get(path) != why}
        self._told.update(new)
        return [_note(_Told(left_out=new), entry.step_id)] if new else []


def _note(told: _Told, step_id: str | None = None) -> Note:
    # A file's name need not be text; a journal's line is.
    told.left_out = {_spelled(path): why for path, why in told.left_out.items()}
    told.error = told.error and _spelled(told.error)
    data = Raw(msgspec.json.encode(told))
    return Note(session=0, kind="workspace", step_id=step_id, data=data)


def _spelled(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def prepare(
    storage: Storage, run_id: str, journal: Journal | None, workspace: Workspace, session: int
) -> Recorder:
    """Make a run's files ready for a session; write nothing into its journal.

    Raises:
        WorkspaceChangedError: The files are not what the journal recorded.
        WorkspaceError: The directory is not there, cannot be kept, or another run is at work in
            it.
    """
    entries = journal.entries if journal is not None else []
    source = journal.opening.source if journal is not None else None
    forked = source is not None
    path = Path(workspace.path).absolute()
    if source is not None:
        path = fork_tree(storage, run_id)
        if not path.exists():
            commit = at_cut(run_id, entries, len(entries))
            if commit is None:
                raise WorkspaceError(
                    f"run {run_id!r} was forked from one without a workspace, so its files are "
                    "not known. Start a new run, or leave workspace= out."
                )
            check_kept(storage, run_id, commit, entries, "go on with")
            make_tree(storage, run_id, commit, origin(storage, source.run_id, entries))
    if not path.is_dir() or not os.access(path, os.R_OK | os.X_OK):
        what = "is not readable" if path.exists() else "does not exist"
        raise WorkspaceError(
            f"the workspace {path} of run {run_id!r} {what}; nothing was executed. Make it, or "
            "give the workflow the directory that its agent works in."
        )
    occupied = Occupied(path, run_id)
    try:
        tree = watch(storage, run_id, path, workspace, session)
        return Recorder(tree, occupied, _settled(storage, run_id, entries, tree, workspace, forked))
    except BaseException:
        occupied.release()
        raise


def _settled(
    storage: Storage,
    run_id: str,
    entries: Sequence[AnyEntry],
    tree: Tree,
    workspace: Workspace,
    forked: bool,
) -> Note | None:
    """Check a run's files; return what is to be recorded of them where that is new."""
    recorded, known = latest(entries), not _bare(entries)
    found = tree.take(recorded)
    if recorded is not None and known and found != recorded:
        if not tree.snapshots.has(recorded) and workspace.differs != "keep":
            raise _unchecked(storage, run_id, entries, recorded)
        found = _differs(run_id, tree, workspace, recorded, found, forked)
    if found == recorded:
        return None
    return _note(_Told(found, None if forked else workspace.path, tree.left_out))


def watch(storage: Storage, run_id: str, path: Path, workspace: Workspace, session: int) -> Tree:
    """Return a run's directory ready for snapshots."""
    snapshots = Snapshots(home(storage))
    snapshots.open()
    name = run_id if not re.search(r"\.\.|\.$|\.lock$", run_id) else run_id.replace(".", "%2E")
    hidden = None
    if storage.url.startswith("file:"):
        place = Path(storage.place).resolve()
        if place.is_relative_to(path.resolve()) and place != path.resolve():
            hidden = place.relative_to(path.resolve())
    return Tree(
        path,
        snapshots,
        fresh_indexes(snapshots.home, run_id, session),
        f"{name}/{session}",
        ignored=workspace.ignored,
        max_file=workspace.max_file,
        hidden=hidden,
    )


def _unchecked(
    storage: Storage, run_id: str, entries: Sequence[AnyEntry], recorded: str
) -> WorkspaceError:
    place = Snapshots(home(storage)).repository
    return WorkspaceError(
        f"run {run_id!r}: snapshot {recorded[:12]} is not in {place}, so its files cannot be "
        f"checked; nothing was executed. {kept_where(storage, entries)} Or go on from the files "
        "that are here with Workspace(…, differs='keep')."
    )


def _differs(
    run_id: str, tree: Tree, workspace: Workspace, recorded: str, found: str, forked: bool
) -> str:
    """Return the snapshot to go on from, once it was decided between the two."""
    snapshots = tree.snapshots
    if workspace.differs == "keep":
        return found
    if workspace.differs == "restore":
        tree.put_back(recorded, head=forked)
        found = tree.take()
        if found == recorded:
            return found
    changes = changes_between(snapshots, recorded, found)
    if not changes:
        return recorded  # left-out or ignored files alone
    shown = "\n".join(f"  {line}" for line in changes[:NAMED])
    more = f"\n  and {len(changes) - NAMED} more" if len(changes) > NAMED else ""
    raise WorkspaceChangedError(
        f"run {run_id!r}: the files in {tree.path} are not what was recorded last "
        f"({len(changes)} differ); nothing was executed.\n{shown}{more}\n"
        "Put them back with run.workspace.restore() (what is there now is kept as snapshot "
        f"{found[:12]}), or go on from them with Workspace(…, differs='keep').",
        run_id=run_id,
        changes=tuple(changes),
    )


def changes_between(snapshots: Snapshots, before: str, after: str) -> list[str]:
    """Return what differs between two snapshots, one line each, HEAD included."""
    lines = [str(change) for change in snapshots.changes(before, after, count=False)]
    ours, theirs = snapshots.extras(before), snapshots.extras(after)
    if (ours.head, ours.branch) != (theirs.head, theirs.branch):
        was = f"{(ours.head or 'no commit')[:12]} on {ours.branch or 'no branch'}"
        now = f"{(theirs.head or 'no commit')[:12]} on {theirs.branch or 'no branch'}"
        lines.append(f"HEAD was {was}, is {now}: git switch or git reset --soft brings it back")
    return lines
