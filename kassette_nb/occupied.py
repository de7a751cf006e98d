"""One session at a time in a directory: two would take each other's files for their own."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import ClassVar
from weakref import WeakSet

from .errors import WorkspaceError


class Occupied:
    """A directory that one session works in, until it is released or its process ends.

    The lock is on the directory itself: no file is left in it, and no other storage overlooks
    it. Where a file system has no such locks (some network mounts), nothing is guarded.

    Args:
        path: The directory.
        run_id: The run that works there.

    Raises:
        WorkspaceError: Another session works in it.
    """

    _here: ClassVar[WeakSet[Occupied]] = WeakSet()

    _descriptor = -1

    def __init__(self, path: Path, run_id: str) -> None:
        self.run_id = run_id
        self._place = os.path.realpath(path)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise WorkspaceError(
                f"run {run_id!r}: {self._occupant()} is at work in {path}; nothing was executed. "
                "Two runs in one directory would take each other's files for their own: wait "
                "until it has settled, give this run a directory of its own, or fork the other "
                "run (a fork has its own)."
            ) from None
        except OSError:
            pass  # see above
        self._here.add(self)

    def _occupant(self) -> str:
        known = [other.run_id for other in self._here if other._place == self._place]
        return f"run {known[0]!r}" if known else "a run of another process"

    def release(self) -> None:
        """Leave the directory; harmless when it was left before."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._here.discard(self)
            os.close(descriptor)

    def __del__(self) -> None:
        self.release()


def _forget() -> None:
    # A child that outlives its parent would keep the directory occupied for nobody.
    for held in list(Occupied._here):
        held.release()


os.register_at_fork(after_in_child=_forget)
