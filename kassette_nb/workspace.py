"""The working tree of a run: where it is, what was recorded of it, and how to get it back.

A run that is begun works in the declared directory. A fork works in a directory of its own, made
from the snapshot that was taken after the last step it keeps, so attempts never share files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from .declared import Workspace
from .entries import AnyEntry, Note, Step
from .errors import WorkspaceChangedError, WorkspaceError
from .indexes import fresh_indexes
from .journal import Journal
from .kept import check_kept, home, kept_where
from .noted import UNTOUCHING, Told, at_cut, bare, begun_in, died, latest, note
from .occupied import Occupied
from .places import fence, fork_tree, make_tree, origin
from .snapshots import Snapshots
from .storage import Storage
from .tree import Tree

#: Changes that a message names one by one.
NAMED = 12


class Recorder:
    """Keeps one session's files: checks them at its start, and takes them after every step."""

    def __init__(self, tree: Tree, occupied: Occupied, opening: Note | None) -> None:
        self._tree = tree
        self._occupied = occupied
        self._note = opening
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
        first, self._note = self._note, None
        return [first] if first is not None else []

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
        except Exception as problem:
            return [note(Told(error=str(problem) or repr(problem)), entry.step_id)]
        left_out = self._tree.left_out
        new = {path: why for path, why in left_out.items() if self._told.get(path) != why}
        self._told.update(new)
        return [note(Told(left_out=new), entry.step_id)] if new else []


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
    path = workspace.directory
    if source is not None:
        path = fork_tree(storage, run_id)
        fence(storage)
        if not path.exists():
            commit = at_cut(run_id, entries, len(entries))
            if commit is None:
                raise WorkspaceError(
                    f"run {run_id!r} was forked from one without a workspace, so its files are "
                    "not known. Start a new run, or leave workspace= out."
                )
            check_kept(storage, run_id, commit, entries, "go on with")
            make_tree(storage, run_id, commit, origin(storage, source.run_id, entries))
    _check(run_id, path)
    occupied = Occupied(path, run_id)
    try:
        tree = watch(storage, run_id, path, workspace, session)
        return Recorder(tree, occupied, _settled(storage, run_id, entries, tree, workspace, forked))
    except BaseException:
        occupied.release()
        raise


def _check(run_id: str, path: Path) -> None:
    """Refuse a directory that cannot be worked in, or that nobody can want to be kept."""
    what = None
    if path.exists() and not path.is_dir():
        what = "is a file, not a directory"
    elif not path.exists():
        what = "does not exist"
    elif not os.access(path, os.R_OK | os.X_OK):
        what = "is not readable"
    if what is not None:
        raise WorkspaceError(
            f"the workspace {path} of run {run_id!r} {what}; nothing was executed. Make it, or "
            "give the workflow the directory that its agent works in."
        )
    whole = {Path("/"): "the whole file system", Path.home().resolve(): "your home directory"}
    if (found := whole.get(path.resolve())) is not None:
        raise WorkspaceError(
            f"the workspace {path} of run {run_id!r} is {found}, whose files would be read and "
            "kept with every step; nothing was executed. Give the workflow the directory that "
            "its agent works in."
        )


def _settled(
    storage: Storage,
    run_id: str,
    entries: Sequence[AnyEntry],
    tree: Tree,
    workspace: Workspace,
    forked: bool,
) -> Note | None:
    """Check a run's files; return what is to be recorded of them where that is new."""
    recorded, replaced = latest(entries), None
    gone = recorded is not None and not tree.snapshots.has(recorded)
    if recorded is not None and gone and workspace.differs != "keep":
        raise _unchecked(storage, run_id, entries, recorded)
    found = now = tree.take(recorded)
    there = begun_in(entries)
    if recorded is not None and not bare(entries) and now != recorded:
        differs = workspace.differs or ("restore" if died(entries) else "refuse")
        if differs == "restore" and not forked and there != str(tree.path):
            raise WorkspaceError(
                f"run {run_id!r} was at work in {there}, not in {tree.path}, whose files are "
                "others and would be replaced; nothing was executed. Declare the directory that "
                "it was begun in, or go on from these files with Workspace(…, differs='keep')."
            )
        if differs != "keep":
            found = _differs(run_id, tree, differs == "restore", recorded, now, forked, there)
        if differs == "restore":
            replaced = now
    moved = not forked and there != str(tree.path)
    if found == recorded and replaced is None and not moved:
        return None
    path, within = (None, None) if forked else (str(tree.path), tree.within)
    aside = str(tree.aside.place) if tree.aside else None
    return note(Told(found, path, within, replaced, tree.left_out, aside=aside))


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
    indexes = fresh_indexes(snapshots.home, run_id, session)
    return Tree(
        path,
        snapshots,
        indexes,
        f"{name}/{indexes.name}",  # what a killed git leaves locked is the ref of nobody else
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
    run_id: str,
    tree: Tree,
    restore: bool,
    recorded: str,
    found: str,
    forked: bool,
    there: str | None,
) -> str:
    """Return the snapshot to go on from: the recorded one, put back where it may be."""
    snapshots, told = tree.snapshots, ""
    if restore:
        tree.put_back(recorded, head=forked)
        found = tree.take()
        told = f" ({tree.aside})" if tree.aside else ""
    changes = changes_between(snapshots, recorded, found)
    if not changes:
        return recorded  # left-out or ignored files alone
    shown = "\n".join(f"  {line}" for line in changes[:NAMED])
    more = f"\n  and {len(changes) - NAMED} more" if len(changes) > NAMED else ""
    where = ""
    back = (
        "Put them back with run.workspace.restore() or Workspace(…, differs='restore') (what is "
        f"there now is kept as snapshot {found[:12]})"
    )
    if not forked and there is not None and os.path.isabs(there) and not _same(there, tree.path):
        # Whatever is done to the files there, it would not change what is found here.
        where = f" (it was at work in {there}, not there)"
        back = (
            f"Declare workspace={there!r}; or, where that is gone, the directory that "
            f"run.workspace.checkout(None, 'directory', snapshot={recorded[:12]!r}) writes"
        )
    raise WorkspaceChangedError(
        f"run {run_id!r}: the files in {tree.path} are not what was recorded last "
        f"({len(changes)} differ){where}; nothing was executed{told}.\n{shown}{more}\n"
        f"{back}, or go on from what is there with Workspace(…, differs='keep').",
        run_id=run_id,
        changes=tuple(changes),
    )


def _same(one: str, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def changes_between(snapshots: Snapshots, before: str, after: str) -> list[str]:
    """Return what differs between two snapshots, one line each, HEAD included."""
    lines = [str(change) for change in snapshots.changes(before, after, count=False)]
    ours, theirs = snapshots.extras(before), snapshots.extras(after)
    if (ours.head, ours.branch) != (theirs.head, theirs.branch):
        was = f"{(ours.head or 'no commit')[:12]} on {ours.branch or 'no branch'}"
        now = f"{(theirs.head or 'no commit')[:12]} on {theirs.branch or 'no branch'}"
        lines.append(f"HEAD was {was}, is {now}: git switch or git reset --soft brings it back")
    return lines
