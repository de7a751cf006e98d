"""The ignored files that a tree's own repository tracks: they are kept like all others."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from . import git
from .snapshots import folders_of


class Forced:
    """Says which of them may have changed since it was asked last.

    Args:
        tree: The directory.
    """

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._seen: tuple[int, int] | None = None
        self._tracked: list[str] = []
        self._absent: list[str] = []

    def forget(self) -> None:
        """Name all of them when it is asked next."""
        self._seen = None

    def look(self, root: Path | None) -> list[str]:
        """Return all of them where the repository's index changed, else those that are back.

        Args:
            root: The root of the repository, where that is above the directory.
        """
        own = git.directory(root or self._tree)
        if own is None:
            return []
        try:
            seen = (own / "index").stat()
        except OSError:
            return []
        mark = seen.st_mtime_ns, seen.st_size
        if mark == self._seen:
            # One that was deleted and is there again is ignored like any new file.
            back = [path for path in self._absent if os.path.lexists(self._tree / path)]
            self._note_absent()
            return back
        self._seen = mark
        out = git.call(
            "ls-files", "-z", "-c", "-i", "--exclude-standard",
            cwd=self._tree, what=f"list the files of {self._tree}",
        )  # fmt: skip
        paths = [os.fsdecode(path) for path in out.split(b"\0") if path]
        # A submodule has a snapshot of its own, and so has what became a repository.
        self._tracked = [
            path
            for path in paths
            if not (self._tree / path).is_dir() and not repositories(self._tree, folders_of(path))
        ]
        self._note_absent()
        return self._tracked

    def _note_absent(self) -> None:
        self._absent = [p for p in self._tracked if not os.path.lexists(self._tree / p)]


def repositories(tree: Path, folders: Iterable[str]) -> set[str]:
    """Return which of a tree's directories are repositories, or say so."""
    return {folder for folder in folders if os.path.lexists(f"{tree}/{folder}/.git")}
