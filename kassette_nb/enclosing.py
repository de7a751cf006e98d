"""The git repository that a directory lies in without being its root.

Its rules of what is ignored hold in the directory, too. And git, asked in a directory that is no
repository, climbs up to one: what a fork does must not reach the user's.

Source: gitignore(5) for what a pattern means; gitrepository-layout(5) for a ``.git`` that is a
file.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator
from pathlib import Path

from . import git

#: What the ``.git`` above the trees of forks points at: no such place can be made by a run.
NOWHERE = "../this-fork-has-no-git-repository"


def root_of(tree: Path) -> Path | None:
    """Return the root of the repository that a directory is a part of.

    Returns:
        None where it is in none, or the root of one itself.
    """
    place = tree.resolve()
    if os.path.lexists(place / ".git"):
        return None
    for above in place.parents:
        if git.directory(above) is not None:
            return above
        if (above / ".git").is_file():
            return None  # git stops there, too
    return None


def fence(folder: Path) -> None:
    """Let git's climbing stop at a directory that lies in a repository: "not a git repository".

    Where no repository is above, none is made: commands that need no repository (``git apply``)
    are stopped by it like all others.
    """
    if root_of(folder) is None:
        return
    made = folder / f".git-{os.getpid()}"
    made.write_text(f"gitdir: {NOWHERE}\n")
    made.rename(folder / ".git")


def ignores(root: Path, tree: Path) -> bool:
    """Whether a repository ignores the directory as a whole: then its rules are none for it."""
    place = tree.resolve().relative_to(root).as_posix()
    asked = ("check-ignore", "-z", "--", place)
    return bool(git.call(*asked, cwd=root, what=f"ask what {root} ignores", lenient=True))


def rules(root: Path, tree: Path) -> tuple[str, ...]:
    """Return what a repository ignores in a directory inside of it.

    Returns:
        Lines as of a ``.gitignore`` in the directory; the later wins.
    """
    below = tree.resolve().relative_to(root).parts
    found = list(_lines(git.common_directory(root) / "info" / "exclude", below))
    for depth in range(len(below)):
        source = root.joinpath(*below[:depth], ".gitignore")
        found += _lines(source, below[depth:])
    return tuple(found)


def _lines(source: Path, below: tuple[str, ...]) -> Iterator[str]:
    try:
        text = os.fsdecode(source.read_bytes())
    except OSError:
        return
    for line in text.split("\n"):
        pattern = re.sub(r"(?<!\\)[ \t\r]+\Z", "", line)
        if not pattern or pattern.startswith("#"):
            continue
        sign, pattern = ("!", pattern[1:]) if pattern.startswith("!") else ("", pattern)
        end = "/" if pattern.endswith("/") else ""
        body = pattern.rstrip("/")
        if "/" not in body:
            yield f"{sign}{pattern}"  # a name, at any depth
            continue
        for rest in _inside(body.lstrip("/").split("/"), below):
            yield f"{sign}/{rest}{end}"


def _inside(pattern: list[str], below: tuple[str, ...]) -> Iterator[str]:
    """Return what is left of an anchored pattern behind the way down to the directory."""
    if not pattern:
        return
    if not below:
        yield "/".join(pattern)
    elif pattern[0] == "**":
        yield from _inside(pattern[1:], below)
        yield from _inside(pattern, below[1:])
    elif re.match(_expression(pattern[0]), below[0]):
        yield from _inside(pattern[1:], below[1:])


def _expression(component: str) -> str:
    spelled = re.sub(r"\\(.)", r"[\1]", component).replace("[^", "[!")
    return fnmatch.translate(spelled)
