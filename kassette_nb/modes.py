"""File modes that git does not keep: those that let fewer people at a file than git's two do."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

#: Seconds in which a change may hide behind the one before; a file server's clock may be late.
GRAIN = 2.0


def private(mode: int) -> str | None:
    """Return a file's mode, octal, if it is stricter than what git would write; else None."""
    usual = 0o755 if mode & stat.S_IXUSR else 0o644
    bits = stat.S_IMODE(mode)
    return f"{bits:o}" if usual & ~bits else None


class Modes:
    """The modes of a tree's kept files that are `private`.

    Args:
        tree: The directory.
    """

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        #: By path; another dictionary when something changed.
        self.known: dict[str, str] = {}
        self._fresh: set[str] = set()

    def look(self, files: Iterable[str] = ()) -> None:
        """Look at some files, and at those that were changed just before the last look.

        Git names a file of which the mode alone changed, too. But it compares whole seconds: a
        second change within one does not show.
        """
        asked, since = {*files, *self._fresh}, time.time() - GRAIN
        if not asked:
            return
        found = {}
        self._fresh.clear()
        place = os.open(self._tree, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for path in asked:
                try:
                    seen = os.stat(path, dir_fd=place, follow_symlinks=False)
                except OSError:
                    continue  # deleted
                if stat.S_ISREG(seen.st_mode) and (mode := private(seen.st_mode)) is not None:
                    found[path] = mode
                if seen.st_ctime >= since:
                    self._fresh.add(path)
        finally:
            os.close(place)
        self.forget(asked)
        self.known |= found

    def forget(self, files: Collection[str]) -> None:
        """Leave out files that are not kept any more."""
        self.known = {path: mode for path, mode in self.known.items() if path not in files}


def give(directory: Path, modes: Mapping[str, str]) -> None:
    """Let the files of a directory have the modes that were recorded."""
    for path, mode in modes.items():
        place = directory / path
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISREG(place.lstat().st_mode):
                place.chmod(int(mode, 8))
