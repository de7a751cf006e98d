"""Where git's indexes of a watched tree are: they make a snapshot of an unchanged tree cheap."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from pathlib import Path


def inner_indexes(indexes: Path, path: str) -> Path:
    """Return where the indexes of a repository inside the tree are."""
    return indexes / hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def fresh_indexes(home: Path, run_id: str, session: int) -> Path:
    """Return the directory of a session's indexes, begun with those of the session before it.

    A killed session may leave a half-written index, a lock, and even a git that is still at work
    on it, so no session uses the directory of another. One that was killed before its first line
    had the same number.
    """
    folder = home / "index" / run_id
    mine = folder / f"{session}-{secrets.token_hex(4)}"
    older = sorted(folder.glob("[0-9]*"), key=_age, reverse=True)
    folder.mkdir(parents=True, exist_ok=True)
    if older:
        leftovers = shutil.ignore_patterns("*.lock")
        with contextlib.suppress(OSError, shutil.Error):  # it only saves time
            shutil.copytree(older[0], mine, ignore=leftovers)
    for place in older[1:]:
        shutil.rmtree(place, ignore_errors=True)
    return mine


def _age(place: Path) -> tuple[int, int]:
    number = place.name.partition("-")[0]
    try:
        return int(number) if number.isdigit() else -1, place.stat().st_mtime_ns
    except OSError:
        return -1, 0
