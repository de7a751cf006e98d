"""File modes that git does not keep: those that let fewer people at a file than git's two do."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Mapping
from pathlib import Path


def private(mode: int) -> str | None:
    """Return a file's mode, octal, if it is stricter than what git would write; else None."""
    usual = 0o755 if mode & stat.S_IXUSR else 0o644
    bits = stat.S_IMODE(mode)
    return f"{bits:o}" if usual & ~bits else None


def give(directory: Path, modes: Mapping[str, str]) -> None:
    """Let the files of a directory have the modes that were recorded."""
    for path, mode in modes.items():
        place = directory / path
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISREG(place.lstat().st_mode):
                place.chmod(int(mode, 8))
