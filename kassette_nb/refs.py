"""The branches and tags of a repository, as they were when a snapshot of its tree was taken.

They are read from the files in which git keeps them: asking git would cost every snapshot a
process more.

Source: gitrepository-layout(5) for ``refs`` and ``packed-refs``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from . import git

#: The log that makes a stash what it is belongs to the user's repository and is not copied.
STASH = "refs/stash"
_LINE = re.compile(r"([0-9a-f]{40,64}) (\S+)")


def read(tree: Path) -> str | None:
    """Return a line for each ref, ``<commit or "ref: …"> <name>``, sorted by name.

    Returns:
        None for a tree that is not the root of a repository.
    """
    if git.directory(tree) is None:
        return None
    common = git.common_directory(tree)
    if (common / "reftable").is_dir():
        return _asked(tree)
    found: dict[str, str] = {}
    try:
        packed = (common / "packed-refs").read_text(errors="surrogateescape")
    except OSError:
        packed = ""
    for line in packed.splitlines():
        if match := _LINE.fullmatch(line):
            found[match[2]] = match[1]
    _loose(common / "refs", "refs", found)
    found.pop(STASH, None)
    return "".join(f"{found[name]} {name}\n" for name in sorted(found))


def _loose(folder: Path, prefix: str, found: dict[str, str]) -> None:
    try:
        inside = list(os.scandir(folder))
    except OSError:
        return
    for item in inside:
        name = f"{prefix}/{item.name}"
        if item.is_dir(follow_symlinks=False):
            _loose(Path(item.path), name, found)
        elif not name.endswith(".lock"):
            try:
                text = Path(item.path).read_text().strip()
            except (OSError, ValueError):
                continue  # deleted in between
            if text.startswith("ref: ") or re.fullmatch(r"[0-9a-f]{40,64}", text):
                found[name] = text


def _asked(tree: Path) -> str:
    form = "%(if)%(symref)%(then)ref: %(symref)%(else)%(objectname)%(end) %(refname)"
    out = git.call("for-each-ref", f"--format={form}", cwd=tree, what="read the refs")
    lines = out.decode(errors="surrogateescape").splitlines(keepends=True)
    return "".join(line for line in lines if not line.endswith(f" {STASH}\n"))


def write(place: Path, tree: Path, wanted: str | None, private: Path) -> None:
    """Let a repository have these refs and no others.

    Args:
        place: Its git directory.
        tree: Its working tree.
        wanted: As `read` gave them; None: as it has them, without the stash.
        private: The repository of the snapshots, which may have commits that this one lost.
    """
    what = f"give {tree} its branches"
    env = {"GIT_DIR": str(place), "GIT_WORK_TREE": str(tree)}
    if wanted is None:
        git.call("update-ref", "-d", STASH, env=env, what=what, lenient=True)
        return
    now = _by_name(git.call(
        "for-each-ref", "--format=%(objectname) %(refname)", env=env, what=what
    ).decode(errors="surrogateescape"))  # fmt: skip
    then = _by_name(wanted)
    links = {name: at[5:] for name, at in then.items() if at.startswith("ref: ")}
    plain = {name: at for name, at in then.items() if name not in links}
    have = _present(plain.values(), env, what)
    for commit in {*plain.values()} - have:
        fetch = ("-q", "--no-tags", "--no-write-fetch-head", "--update-shallow")
        git.call("fetch", *fetch, str(private), commit, env=env, what=what, lenient=True)
    have = _present(plain.values(), env, what) if {*plain.values()} - have else have
    lines = [f"delete {name}\n" for name in now if name not in then or name in links]
    lines += [
        f"update {name} {at}\n" for name, at in plain.items() if at in have and now.get(name) != at
    ]
    data = "".join(lines).encode(errors="surrogateescape")
    git.call("update-ref", "--no-deref", "--stdin", data=data, env=env, what=what)
    for name, target in links.items():
        git.call("symbolic-ref", name, target, env=env, what=what)


def _by_name(lines: str) -> dict[str, str]:
    return {name: at for at, _, name in (line.rpartition(" ") for line in lines.splitlines())}


def _present(commits: Iterable[str], env: dict[str, str], what: str) -> set[str]:
    names = sorted({*commits})
    data = "".join(f"{name}\n" for name in names).encode()
    out = git.call("cat-file", "--batch-check=%(objectname)", data=data, env=env, what=what)
    return {line for line in out.decode().splitlines() if not line.endswith(" missing")}
