"""Calling the ``git`` program: always with an environment of our own, never with the user's.

Two kinds of repositories are talked to. The private one, where snapshots are kept, gets every
setting from here. Of a user's repository only what is recorded beside a snapshot is read: where
HEAD is, and the commits that it leads to.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .errors import WorkspaceError

#: The oldest git that can be told to sync what it writes (``core.fsync``).
OLDEST = (2, 36)
_HEAD = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")


def call(
    *args: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    data: bytes | None = None,
    what: str,
    lenient: bool = False,
) -> bytes:
    """Run git and return what it printed.

    Args:
        args: Its arguments.
        cwd: Where it runs.
        env: Variables besides the neutral ones (``GIT_DIR`` and so on).
        data: Its standard input.
        what: What was wanted, for the error.
        lenient: A failing status is an answer, too.

    Raises:
        WorkspaceError: It failed, or there is no git.
    """
    try:
        done = subprocess.run(
            ["git", *args],
            cwd=cwd,
            env={**_environment(), **(env or {})},
            input=data,
            stdin=None if data is not None else subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        if cwd is not None and not cwd.is_dir():
            raise WorkspaceError(f"cannot {what}: there is no directory {cwd}.") from None
        raise WorkspaceError(
            "a workspace needs the git program, and there is none on the PATH. Install git "
            f"{OLDEST[0]}.{OLDEST[1]} or newer, or leave workspace= out."
        ) from None
    if done.returncode and not lenient:
        said = done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}"
        raise WorkspaceError(f"cannot {what}: git {args[0]}: {said}")
    return done.stdout


def _environment() -> dict[str, str]:
    """Return the process's environment without anything that would change what git does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {
        **kept,
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",  # the tree may belong to another user
        "GIT_CONFIG_VALUE_0": "*",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",  # reading a user's repository must not refresh its index
        "GIT_AUTHOR_NAME": "kassette_nb",
        "GIT_AUTHOR_EMAIL": "kassette_nb@localhost",
        "GIT_COMMITTER_NAME": "kassette_nb",
        "GIT_COMMITTER_EMAIL": "kassette_nb@localhost",
    }


@functools.cache
def check_version() -> None:
    """Refuse a git that is missing or too old.

    Raises:
        WorkspaceError: Says which is needed.
    """
    said = call("version", what="ask git for its version").decode(errors="replace")
    found = re.search(r"(\d+)\.(\d+)", said)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        raise WorkspaceError(
            f"a workspace needs git {OLDEST[0]}.{OLDEST[1]} or newer; this is {said.strip()!r}."
        )


def directory(tree: Path) -> Path | None:
    """Return the git directory of a tree that is the root of a repository, else None."""
    marker = tree / ".git"
    if marker.is_dir():
        return marker if (marker / "HEAD").exists() else None
    try:
        text = _read(marker) if marker.is_file() else ""
    except OSError:
        return None
    if not text.startswith("gitdir:") or "\0" in text:
        return None
    found = (tree / text[len("gitdir:") :].strip()).resolve()
    return found if (found / "HEAD").exists() else None


def head(tree: Path) -> tuple[str | None, str | None]:
    """Return the commit and the branch that a tree's own repository is at.

    Returns:
        (None, None) without a repository; (None, branch) before its first commit;
        (commit, None) with a detached HEAD.
    """
    place = directory(tree)
    if place is None:
        return None, None
    text = _read(place / "HEAD").strip()
    if not text.startswith("ref:"):
        return (text if _HEAD.match(text) else None), None
    ref = text[len("ref:") :].strip()
    if "\0" in ref:
        return None, None
    if ref == "refs/heads/.invalid":  # refs in a table, not in files
        return _asked(tree)
    return _resolved(common_directory(tree), ref), ref.removeprefix("refs/heads/")


def _read(place: Path) -> str:
    # A name in it need not be text; and where an agent wrote over it, nothing in it need be.
    return os.fsdecode(place.read_bytes())


def common_directory(tree: Path) -> Path:
    """Return where a repository keeps what its linked trees share."""
    place = directory(tree)
    if place is None:
        raise WorkspaceError(f"{tree} is not the root of a git repository.")
    if (place / "commondir").exists():
        return (place / _read(place / "commondir").strip()).resolve()
    return place


def _resolved(common: Path, ref: str) -> str | None:
    try:
        found = _read(common / ref).strip()
        return found if _HEAD.match(found) else None
    except OSError:
        pass
    try:
        lines = _read(common / "packed-refs").splitlines()
    except OSError:
        return None
    return next((line[: line.index(" ")] for line in lines if line.endswith(f" {ref}")), None)


def _asked(tree: Path) -> tuple[str | None, str | None]:
    def ask(*args: str) -> str | None:
        try:
            return os.fsdecode(call(*args, cwd=tree, what="read HEAD")).strip() or None
        except WorkspaceError:
            return None

    return ask("rev-parse", "-q", "--verify", "HEAD"), ask("symbolic-ref", "-q", "--short", "HEAD")
