"""Where the files of runs are: the declared directory, those of forks, and the snapshots."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path

from . import enclosing
from .aside import Aside
from .entries import AnyEntry, Start
from .errors import WorkspaceError
from .kept import home
from .noted import begun_in
from .snapshots import Snapshots
from .storage import Storage


def check_declared(run_id: str, commit: str | None, declared: bool | None) -> None:
    """Refuse to fork a run whose files nobody kept with code that works on files.

    Args:
        run_id: The run.
        commit: The snapshot of its files at the fork point; None where it has no workspace.
        declared: Whether the code declares a workspace; None where it is not known.

    Raises:
        WorkspaceError: It does, and the run has none.
    """
    if declared and commit is None:
        raise WorkspaceError(
            f"cannot fork run {run_id!r} with this code: it declares workspace=, and the run was "
            "recorded without one, so its files at that step are not known. Start a new run, or "
            "fork it with workspace= left out. Nothing was written."
        )
    if commit is not None and declared is False:
        warnings.warn(
            f"run {run_id!r} has a workspace, and this code declares none: the fork gets a "
            "directory with the files, but nothing works in it or keeps what changes.",
            stacklevel=2,
        )


def fork_tree(storage: Storage, run_id: str) -> Path:
    """Return the directory that a fork works in."""
    return home(storage) / "trees" / run_id


def clear(storage: Storage, run_id: str) -> None:
    """Move away what stands where a new fork will work: the files of a run that is gone.

    Args:
        storage: Where the fork is.
        run_id: The fork, just made and held by the caller, so that nobody is at work there.

    Raises:
        WorkspaceError: It cannot be moved.
    """
    place = fork_tree(storage, run_id)
    if not os.path.lexists(place):
        return
    aside = Aside(home(storage))
    try:
        aside.take(place.parent, run_id, "")
    except OSError as problem:
        raise WorkspaceError(f"cannot move {place}, of a run that is gone: {problem}") from None
    shutil.rmtree(home(storage) / "index" / run_id, ignore_errors=True)
    warnings.warn(
        f"{place} was there already, of a run that is gone; it was moved to {aside.place}.",
        stacklevel=2,
    )


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
    fence(storage)
    snapshots.write_whole(commit, place, origin, snapshots.home / "index" / run_id / "0")
    within = snapshots.extras(commit).within
    if within is not None:
        # A category of its own would be one more name; the text is the same for every fork.
        warnings.warn(
            f"the workspace is only a part ({within}) of its git repository: its forks have the "
            "files, but no repository to commit to. Declare the repository's root as workspace= "
            "where the agent uses git.",
            stacklevel=2,
        )
    return place


def fence(storage: Storage) -> None:
    """Keep git, asked in a fork's directory without a repository, from finding the user's."""
    trees = home(storage) / "trees"
    trees.mkdir(parents=True, exist_ok=True, mode=0o700)
    enclosing.fence(trees)


def tree_of(storage: Storage, run_id: str, entries: Sequence[AnyEntry]) -> Path | None:
    """Return the directory that a run works in.

    Returns:
        None where its journal names none, or only as it was written: relative to a directory
        that nobody knows.
    """
    first = entries[0]
    if isinstance(first, Start) and first.source is not None:
        return fork_tree(storage, run_id)
    return _absolute(begun_in(entries))


def origin(storage: Storage, source: str, entries: Sequence[AnyEntry]) -> Path | None:
    """Return the tree whose repository a fork of ``source`` begins with."""
    made = fork_tree(storage, source)
    return made if made.exists() else _absolute(begun_in(entries))


def _absolute(path: str | None) -> Path | None:
    return Path(path) if path is not None and os.path.isabs(path) else None
