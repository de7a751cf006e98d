"""Where git's indexes of a watched tree are: they make a snapshot of an unchanged tree cheap."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path


def inner_indexes(indexes: Path, path: str) -> Path:
    """Return where the indexes of a repository inside the tree are."""
    return indexes / hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def fresh_indexes(home: Path, run_id: str, session: int) -> Path:
    """Return the directory of a session's indexes, begun with those of the session before it.

    A killed session may leave a half-written index, and even a git that is still at work on it,
    so no session uses the directory of another.
    """
    folder = home / "index" / run_id
    mine = folder / str(session)
    if mine.exists():
        return mine
    older = sorted((int(p.name) for p in folder.glob("[0-9]*") if p.name.isdigit()), reverse=True)
    folder.mkdir(parents=True, exist_ok=True)
    if older:
        leftovers = shutil.ignore_patterns("*.lock")
        with contextlib.suppress(OSError, shutil.Error):  # it only saves time
            shutil.copytree(folder / str(older[0]), mine, ignore=leftovers)
    for number in older[1:]:
        shutil.rmtree(folder / str(number), ignore_errors=True)
    return mine
