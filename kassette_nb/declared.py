"""The directory that a workflow declares as its workspace.

Apart from what keeps its files, which a process without one need not import.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import force_setattr

from .errors import WorkspaceError

#: Files larger than this (bytes) are left out of a snapshot, and named.
MAX_FILE = 100 * 1024 * 1024
#: What ``Workspace.differs`` may be.
DIFFERS = (None, "refuse", "restore", "keep")


class Workspace(msgspec.Struct, frozen=True):
    """A directory whose files are kept with every step: ``@kassette(workspace=…)``.

    ``path`` is the directory. ``ignored`` also keeps what its ``.gitignore`` names; ``max_file``
    is the size in bytes above which a file is left out.

    Where the directory is not the root of its git repository, forks have the files without a
    repository.

    ``differs`` says what a session does that finds other files than its journal recorded:
    ``refuse`` (and say what differs), ``restore`` them (what was there is kept as a snapshot, which
    a note in the journal names, with the directory that what no snapshot has was moved to), or
    ``keep`` what is there and record it. By default, None, it refuses; except in a fork's own
    directory, where nobody else works, after a session that died: there half a step is what
    differs, and the files are restored.
    """

    path: str | os.PathLike[str]
    ignored: bool = False
    max_file: int = MAX_FILE
    differs: Literal["refuse", "restore", "keep"] | None = None

    def __post_init__(self) -> None:
        try:
            path = os.fsdecode(self.path)
        except TypeError:
            raise _refused(f"workspace={self.path!r} is not a path") from None
        if not path.strip():
            raise _refused(f"workspace={path!r} names no directory; the present one is '.'")
        force_setattr(self, "path", path)
        if type(self.ignored) is not bool:
            raise _refused(f"ignored={self.ignored!r} is neither True nor False")
        if type(self.max_file) is not int or self.max_file < 0:
            raise _refused(
                f"max_file={self.max_file!r} is not a size in bytes, as in max_file=5_000_000"
            )
        if self.differs not in DIFFERS:
            choices = ", ".join(map(repr, DIFFERS[1:]))
            raise _refused(f"differs={self.differs!r} is none of {choices}, None")

    @property
    def directory(self) -> Path:
        """The directory, absolute."""
        return Path(self.path).absolute()

    @staticmethod
    def of(given: Workspace | str | os.PathLike[str] | None) -> Workspace | None:
        """Return what a decorator was given as a workspace."""
        if given is None or isinstance(given, Workspace):
            return given
        return Workspace(given)


def _refused(reason: str) -> WorkspaceError:
    return WorkspaceError(f"{reason}.")
