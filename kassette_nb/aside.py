"""A tree is put back to an earlier snapshot; what no snapshot has is moved aside, never deleted.

Git, told to write a snapshot over a tree, replaces whatever stands in its way: files that were too
large to be kept, and those that are ignored, with the directories they are in.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from . import modes
from .errors import WorkspaceError
from .indexes import inner_indexes
from .snapshots import Snapshots, folders_of

#: Paths that a message names one by one.
NAMED = 5


class Aside:
    """A directory beside the snapshots, for what was in the way of one; made when needed.

    Args:
        home: The directory of the snapshots.
    """

    def __init__(self, home: Path) -> None:
        self._home = home.resolve()
        self.place = home / "aside" / secrets.token_hex(4)
        #: What is in it, as it was named in the tree.
        self.moved: list[str] = []

    def __bool__(self) -> bool:
        return bool(self.moved)

    def __str__(self) -> str:
        names = ", ".join([*self.moved[:NAMED], *["…"] * (len(self.moved) > NAMED)])
        return f"what no snapshot has ({names}) was moved to {self.place}"

    __repr__ = __str__

    def take(self, directory: Path, path: str, inside: str) -> None:
        """Move something out of a tree.

        Args:
            directory: The tree, or a repository inside of it.
            path: What is moved, in the directory.
            inside: Where in the tree the directory is.
        """
        if self._home.is_relative_to(directory.resolve() / path):
            raise WorkspaceError(f"the runs themselves are in {directory / path}")
        target = self.place / inside / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(directory / path, target)
        self.moved.append(f"{inside}{path}")


def put_back(
    snapshots: Snapshots, now: str, commit: str, directory: Path, indexes: Path, aside: Aside
) -> None:
    """Change a tree from the snapshot just taken of it to another one.

    Nothing is lost: the present state is a snapshot, and what that does not have is moved aside
    where it is in the way.

    Raises:
        WorkspaceError: It could not be done; says where what was moved is.
    """
    try:
        _put_back(snapshots, now, commit, directory, indexes, aside, "")
    except (OSError, WorkspaceError) as problem:
        told = f"; {aside}" if aside else ""
        raise WorkspaceError(f"cannot put {directory} back: {problem}{told}") from None


def _put_back(
    snapshots: Snapshots,
    now: str,
    commit: str,
    directory: Path,
    indexes: Path,
    aside: Aside,
    inside: str,
) -> None:
    ours, theirs = snapshots.extras(now), snapshots.extras(commit)
    for path in sorted({*ours.nested} - {*theirs.nested}):
        aside.take(directory, path, inside)
    for path in sorted({*ours.empty} - {*theirs.empty}, reverse=True):
        with contextlib.suppress(OSError):
            (directory / path).rmdir()
    index = indexes / "root"
    for path in _in_the_way(snapshots, now, commit, directory, index):
        aside.take(directory, path, inside)
    what = f"put {directory} back to snapshot {commit[:12]}"
    snapshots.run("read-tree", "--reset", "-u", commit, tree=directory, index=index, what=what)
    modes.give(directory, theirs.modes)
    for path in theirs.empty:
        (directory / path).mkdir(parents=True, exist_ok=True)
    for path, inner in theirs.nested.items():
        place, within = directory / path, inner_indexes(indexes, path)
        if path in ours.nested:
            old = ours.nested[path]
            _put_back(snapshots, old, inner, place, within, aside, f"{inside}{path}/")
        else:
            snapshots.restore(inner, place, within)
            snapshots.give_repository(inner, place, None)


def _in_the_way(
    snapshots: Snapshots, now: str, commit: str, directory: Path, index: Path
) -> Iterator[str]:
    """Yield what is to be moved before a snapshot can be written: what the present one lacks.

    Each is moved before the next is asked for, so that nothing is named twice.
    """
    out = snapshots.run(
        "diff-tree", "-r", "-z", "--no-renames", "--name-status", now, commit,
        what="compare two snapshots",
    )  # fmt: skip
    fields = [os.fsdecode(part) for part in out.split(b"\0")]
    statuses = dict(zip(fields[1::2], fields[::2], strict=False))
    kept = {path for path, status in statuses.items() if status == "D"}
    ours, theirs = snapshots.extras(now), snapshots.extras(commit)
    made = [path for path, status in statuses.items() if status == "A"]
    made += [path for path in theirs.nested if path not in ours.nested]
    for path in [*made, *theirs.empty]:
        for above in folders_of(path):
            if _is_directory(directory / above) is False and above not in kept:
                yield above
        found = _is_directory(directory / path)
        if found is False and path not in kept:
            yield path
        elif found and path not in theirs.empty:
            others = ("ls-files", "-o", "-z", "--", f":(literal){path}")
            if snapshots.run(*others, tree=directory, index=index, what="look for other files"):
                yield path


def _is_directory(path: Path) -> bool | None:
    """Return whether something is a directory, and no link to one; None where nothing is."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return None
