"""Directories with everything in them that makes keeping files hard, and edits of them."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
from pathlib import Path

IDENTITY = {
    "GIT_AUTHOR_NAME": "Ana", "GIT_AUTHOR_EMAIL": "ana@example.org",
    "GIT_COMMITTER_NAME": "Ana", "GIT_COMMITTER_EMAIL": "ana@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1",
}  # fmt: skip


def git(tree: Path, *args: str) -> str:
    """Run git as the user would, in a tree; what it printed."""
    done = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *args],
        cwd=tree,
        env={**os.environ, **IDENTITY},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def picture(tree: Path) -> dict[str, tuple[str, bytes]]:
    """Everything in a tree but its repositories: kind and executable bit, and the bytes."""
    found: dict[str, tuple[str, bytes]] = {}
    for folder, names, files in os.walk(os.fsencode(tree)):
        if b".git" in names:
            names.remove(b".git")
        for name in [*files, *names]:
            path = os.path.join(folder, name)
            key = os.fsdecode(os.path.relpath(path, os.fsencode(tree)))
            if key == ".git" or key.endswith("/.git"):
                continue
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                found[key] = ("link", os.readlink(path))
            elif stat.S_ISDIR(mode):
                if not os.listdir(path):
                    found[key] = ("empty", b"")
            elif stat.S_ISREG(mode):
                executable = "x" if mode & stat.S_IXUSR else "-"
                with open(path, "rb") as file:
                    found[key] = (executable, file.read())
    return found


def repository(tree: Path) -> dict[str, object]:
    """What a user's repository says of itself; reading it changes nothing."""
    index = tree / ".git" / "index"
    return {
        "status": git(tree, "--no-optional-locks", "status", "--porcelain=v2", "--branch"),
        "refs": git(tree, "for-each-ref"),
        "stash": git(tree, "stash", "list"),
        "index": index.read_bytes() if index.exists() else b"",
        "log": git(tree, "log", "--all", "--oneline"),
        "objects": sorted(str(p) for p in (tree / ".git" / "objects").rglob("*")),
    }


def sample(tree: Path) -> None:
    """Make a repository with commits, a branch, a stash, staged and ignored files, a submodule."""
    library = tree.parent / f"{tree.name}-library"
    library.mkdir(parents=True)
    git(library, "init", "-q", "-b", "main")
    (library / "lib.py").write_text("x = 1\n")
    git(library, "add", "-A")
    git(library, "commit", "-q", "-m", "library")
    tree.mkdir()
    git(tree, "init", "-q", "-b", "trunk")
    (tree / ".gitattributes").write_text("*.txt text eol=lf\n*.bat text eol=crlf\n*.bin binary\n")
    (tree / ".gitignore").write_text("*.log\nbuild/\n")
    (tree / "src").mkdir()
    (tree / "src" / "app.py").write_text("print('hello')\n")
    (tree / "crlf.txt").write_bytes(b"one\r\ntwo\r\n")
    (tree / "mixed.bat").write_bytes(b"one\ntwo\r\n$Id$\n")
    (tree / "kept.log").write_text("tracked although ignored\n")
    (tree / "run.sh").write_text("#!/bin/sh\n")
    (tree / "run.sh").chmod(0o755)
    git(tree, "add", "-A")
    git(tree, "add", "-f", "kept.log")
    git(tree, "submodule", "--quiet", "add", str(library), "vendored")
    git(tree, "commit", "-q", "-m", "first")
    git(tree, "switch", "-q", "-c", "work")
    (tree / "src" / "app.py").write_text("print('hello, world')\n")
    git(tree, "stash")
    (tree / "staged.txt").write_text("staged\n")
    git(tree, "add", "staged.txt")
    (tree / "build").mkdir()
    (tree / "build" / "out.o").write_bytes(b"\0\1")


NAMES = [
    "a.txt", "b.bat", "src/mod.py", "deep/er/x.bin", "naïve.txt", "日本語/文.md", "e\u0301.txt",
    "with space.txt", "-dash", "quote\"'.txt", "back\\slash", "new\nline", "tab\there", "git~1",
    os.fsdecode(b"bad-\xff-bytes"), "*.star", ":(top)magic", "kept.log",
]  # fmt: skip


def edit(tree: Path, random: random.Random) -> str:
    """Change something in the tree; what was done."""
    kinds = [
        create, create, modify, modify, delete, rename, chmod, symlink, binary, crlf, big, nested,
        submodule, empty, replace_by_directory, commit,
    ]  # fmt: skip
    kind = random.choice(kinds)
    kind(tree, random)
    return kind.__name__


def _files(tree: Path) -> list[Path]:
    return sorted(
        p
        for p in tree.rglob("*")
        if p.is_file() and not p.is_symlink() and ".git" not in p.parts and p.name[0] != "."
    )


def _place(tree: Path, random: random.Random) -> Path:
    path = tree / random.choice(NAMES)
    for above in [*path.relative_to(tree).parents][-2::-1]:
        if (tree / above).is_symlink() or (tree / above).is_file():
            (tree / above).unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_symlink():
        path.unlink()
    return path


def create(tree: Path, random: random.Random) -> None:
    _place(tree, random).write_text(f"{random.random()}\n" * random.randint(0, 5))


def modify(tree: Path, random: random.Random) -> None:
    path = random.choice(_files(tree))
    size = path.stat().st_size
    # Also within the same second and of the same length, where only the content tells.
    path.write_bytes(random.randbytes(size))


def delete(tree: Path, random: random.Random) -> None:
    if len(found := _files(tree)) > 1:
        random.choice(found).unlink()


def rename(tree: Path, random: random.Random) -> None:
    source, target = random.choice(_files(tree)), _place(tree, random)
    if source.exists():
        source.rename(target)


def chmod(tree: Path, random: random.Random) -> None:
    path = random.choice(_files(tree))
    path.chmod(path.stat().st_mode ^ 0o111)


def symlink(tree: Path, random: random.Random) -> None:
    path = _place(tree, random)
    path.unlink(missing_ok=True)
    path.symlink_to(random.choice(["src/app.py", "nowhere", "../outside", "src"]))


def binary(tree: Path, random: random.Random) -> None:
    _place(tree, random).write_bytes(random.randbytes(2_000) + b"\0\r\n\n\r")


def crlf(tree: Path, random: random.Random) -> None:
    _place(tree, random).write_bytes(b"a\r\nb\nc\r" * random.randint(1, 4))


def big(tree: Path, random: random.Random) -> None:
    (tree / "big.bin").write_bytes(random.randbytes(5 * 1024 * 1024))


def nested(tree: Path, random: random.Random) -> None:
    place = tree / random.choice(["inner", "src/inner", "bare-of-commits"])
    if not place.exists():
        place.mkdir(parents=True)
        git(place, "init", "-q", "-b", "inside")
    (place / f"{random.randint(0, 3)}.txt").write_text(f"{random.random()}\n")
    if place.name == "inner" and random.random() < 0.5:
        git(place, "add", "-A")
        git(place, "commit", "-q", "--allow-empty", "-m", "inside")


def submodule(tree: Path, random: random.Random) -> None:
    if (tree / "vendored").is_dir():
        (tree / "vendored" / "lib.py").write_text(f"x = {random.random()}\n")


def empty(tree: Path, random: random.Random) -> None:
    (tree / "hollow" / str(random.randint(0, 2))).mkdir(parents=True, exist_ok=True)


def replace_by_directory(tree: Path, random: random.Random) -> None:
    path = _place(tree, random)
    if path.name == "kept.log":
        return  # what is inside would be ignored
    path.unlink(missing_ok=True)
    path.mkdir()
    (path / "inside.txt").write_text("in\n")


def commit(tree: Path, random: random.Random) -> None:
    if random.random() < 0.3:
        git(tree, "switch", "-q", "-c", f"try-{random.randint(0, 10**6)}")
    git(tree, "-c", "advice.addEmbeddedRepo=false", "add", "src", ".gitignore")
    git(tree, "commit", "-q", "--allow-empty", "-m", f"step {random.random()}")
