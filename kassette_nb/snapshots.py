"""Snapshots of a working tree, as commits in a private bare repository outside of it.

The tree's own repository, if it has one, is only read: its index, refs and stash are never
touched, and files are kept as bytes, whatever its attributes say about line ends. What git does
not keep beside the files (empty directories, repositories inside the tree, where HEAD was) stands
in the commit's message.

Source: gitattributes(5) for the precedence of ``info/attributes``; git-config(1), ``core.fsync``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import field

from . import git, modes, repository
from .errors import WorkspaceError
from .indexes import inner_indexes

#: At most this many ignored paths are named.
NAMED = 20
_SETTINGS = {
    "core.autocrlf": "false",
    "core.safecrlf": "false",
    "core.fileMode": "true",
    "core.symlinks": "true",
    "core.ignoreCase": "false",
    "core.precomposeUnicode": "false",
    "core.protectNTFS": "false",
    "core.protectHFS": "false",
    "core.excludesFile": os.devnull,
    "core.attributesFile": os.devnull,
    # A step is recorded as soon as its snapshot is: the objects have to be on the disk by then.
    "core.fsync": "loose-object,pack,pack-metadata,reference",
    "core.fsyncMethod": "batch",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "fetch.fsckObjects": "false",
    "uploadpack.allowAnySHA1InWant": "true",
}


class Extras(msgspec.Struct, frozen=True):
    """What a snapshot says besides its files.

    ``head`` and ``branch`` are those of the tree's own repository. ``nested`` gives the snapshots
    of repositories inside the tree by path, ``empty`` the empty directories, ``left_out`` files
    that were not kept, with the reason, ``ignored`` some of what ``.gitignore`` names.
    ``within`` is where in its repository a tree is that is not the root of one, and ``rules``
    what that repository ignores in it. ``refs`` is a commit that keeps the refs of the tree's own
    repository. ``modes`` are those that are stricter than git's.
    """

    head: str | None = None
    branch: str | None = None
    nested: dict[str, str] = field(default_factory=dict)
    empty: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    within: str | None = None
    rules: tuple[str, ...] = ()
    refs: str | None = None
    modes: dict[str, str] = field(default_factory=dict)


class Change(msgspec.Struct, frozen=True):
    """One file that differs: ``A`` added, ``M`` modified, ``D`` deleted, ``T`` another type."""

    status: str
    path: str
    added: int | None = None
    removed: int | None = None

    def __str__(self) -> str:
        return f"{self.status} {self.path}"


class Snapshots:
    """The private repository.

    Args:
        home: Its directory; made on the first snapshot, complete or not at all.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.repository = home / "snapshots.git"
        self._extras: dict[str, Extras] = {}

    def open(self) -> None:
        """Make the repository if there is none yet.

        Raises:
            WorkspaceError: git is missing or too old, or the directory cannot be written.
        """
        git.check_version()
        if (self.repository / "HEAD").exists():
            return
        made = self.home / f".making-{secrets.token_hex(6)}"
        try:
            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            git.call("init", "-q", "--bare", "--template=", str(made), what="keep snapshots")
            lines: list[str] = []
            for name, value in _SETTINGS.items():
                section, _, key = name.partition(".")
                lines.append(f"[{section}]\n\t{key} = {value}\n")
            with (made / "config").open("a") as config:
                config.write("".join(lines))
            (made / "info").mkdir(exist_ok=True)
            # The highest precedence there is: a tree's own attributes cannot rewrite a byte.
            (made / "info" / "attributes").write_text(
                "* -text -eol -filter -ident -working-tree-encoding\n"
            )
            with contextlib.suppress(OSError):  # another process was first
                made.rename(self.repository)
        except OSError as problem:
            raise WorkspaceError(f"cannot keep snapshots in {self.home}: {problem}") from None
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def has(self, commit: str) -> bool:
        """Whether the commit is kept here.

        Raises:
            WorkspaceError: There is no git that could say so.
        """
        if not (self.repository / "HEAD").exists():
            return False
        asked = ("cat-file", "-t", f"{commit}^{{commit}}")
        return self.run(*asked, what="look", lenient=True).strip() == b"commit"

    def full(self, commit: str) -> str | None:
        """Return the whole name of a snapshot, which may be cut short; None if it is not here."""
        if not re.fullmatch(r"[0-9a-f]{4,64}", commit) or not self.has(commit):
            return None
        return self.run("rev-parse", f"{commit}^{{commit}}", what="look").decode().strip()

    def extras(self, commit: str) -> Extras:
        """Return what a snapshot says besides its files."""
        known = self._extras.get(commit)
        if known is None:
            text = self.run("cat-file", "commit", commit, what=f"read snapshot {commit[:12]}")
            body = text.partition(b"\n\n")[2].partition(b"\n\n")[2]
            # The standard library's codec: a file name need not be valid UTF-8.
            known = self._extras[commit] = msgspec.convert(json.loads(body), Extras)
        return known

    def run(
        self,
        *args: str,
        tree: Path | None = None,
        index: Path | None = None,
        data: bytes | None = None,
        what: str,
        lenient: bool = False,
    ) -> bytes:
        """Run git on the private repository."""
        env = {"GIT_DIR": str(self.repository)}
        if tree is not None:
            env["GIT_WORK_TREE"] = str(tree)
        if index is not None:
            env["GIT_INDEX_FILE"] = str(index)
        return git.call(*args, cwd=tree, env=env, data=data, what=what, lenient=lenient)

    def keep_head(self, tree: Path, head: str) -> None:
        """Copy the commit that a tree's own repository is at, with what leads to it."""
        kept = f"refs/heads-of-trees/{head}"
        if (self.repository / kept).exists() or self.has(head):
            return
        args = ("-q", "--no-tags", "--update-shallow", "--no-write-fetch-head")
        what = f"keep the commits of {tree}"
        self.run("fetch", *args, str(tree.absolute()), f"+HEAD:{kept}", what=what)

    def keep_refs(self, text: str) -> str:
        """Keep the refs of a tree's own repository; equal ones are the same commit."""
        what = "keep the branches"
        data = text.encode(errors="surrogateescape")
        blob = self.run("hash-object", "-w", "--stdin", data=data, what=what).strip()
        tree = self.run("mktree", data=b"100644 blob %s\trefs\n" % blob, what=what).strip()
        who = b"kassette_nb <kassette_nb@localhost> 0 +0000"
        commit = b"tree %s\nauthor %s\ncommitter %s\n\nrefs\n" % (tree, who, who)
        made = self.run("hash-object", "-t", "commit", "-w", "--stdin", data=commit, what=what)
        return made.decode().strip()

    def refs(self, extras: Extras) -> str | None:
        """Return the refs that a snapshot keeps; None if it is an old one, or has none."""
        if extras.refs is None:
            return None
        text = self.run("cat-file", "blob", f"{extras.refs}:refs", what="read the branches")
        return text.decode(errors="surrogateescape")

    # ------------------------------------------------------------------------------- comparing

    def changes(self, before: str, after: str, *, count: bool = True) -> list[Change]:
        """Return the files that differ between two snapshots, those of nested repositories too.

        Args:
            before: A snapshot.
            after: Another one.
            count: Say how many lines were added and removed.
        """
        found = list(self._changes(before, after, count))
        ours, theirs = self.extras(before), self.extras(after)
        for path in sorted({*ours.nested, *theirs.nested}):
            old, new = ours.nested.get(path), theirs.nested.get(path)
            if old == new:
                continue
            if old is None or new is None:
                found.append(Change("A" if old is None else "D", f"{path}/"))
                continue
            inside = self.changes(old, new, count=count)
            found += [Change(c.status, f"{path}/{c.path}", c.added, c.removed) for c in inside] or [
                Change("M", f"{path}/")
            ]
        for path in sorted({*ours.empty} ^ {*theirs.empty}):
            gone = path in ours.empty
            if not any(c.path.startswith(f"{path}/") for c in found):
                found.append(Change("D" if gone else "A", f"{path}/"))
        return found

    def _changes(self, before: str, after: str, count: bool) -> Iterator[Change]:
        options = ("--no-renames", "-z", "-r", "--raw")
        out = self.run(
            "diff-tree", *options, *(["--numstat"] if count else []), before, after,
            what="compare two snapshots",
        )  # fmt: skip
        fields = iter(out.split(b"\0"))
        lines: dict[str, tuple[int | None, int | None]] = {}
        statuses: dict[str, str] = {}
        for item in fields:
            if item.startswith(b":"):
                statuses[os.fsdecode(next(fields))] = item.rsplit(b" ", 1)[1].decode()[0]
            elif item:
                added, removed, path = item.split(b"\t", 2)
                lines[os.fsdecode(path)] = (_number(added), _number(removed))
        for name, status in statuses.items():
            yield Change(status, name, *lines.get(name, (None, None)))

    def diff(self, before: str, after: str, path: str | None = None, *, inside: str = "") -> str:
        """Return the difference of two snapshots as a unified diff.

        Args:
            before: A snapshot.
            after: Another one.
            path: Only this file.
            inside: Where in the tree the two are, for those of a repository inside it.
        """
        only = ["--", f":(literal){path}"] if path else []
        out = self.run(
            "diff-tree", "-r", "-p", "--no-renames", "--no-color", "--no-ext-diff", "--no-textconv",
            "--full-index", f"--src-prefix=a/{inside}", f"--dst-prefix=b/{inside}",
            before, after, *only, what="compare two snapshots",
        )  # fmt: skip
        text = out.decode(errors="replace")
        ours, theirs = self.extras(before), self.extras(after)
        for inner in sorted({*ours.nested} & {*theirs.nested}):
            old, new = ours.nested[inner], theirs.nested[inner]
            if old != new and (path is None or path.startswith(f"{inner}/")):
                below = path and path.removeprefix(f"{inner}/")
                text += self.diff(old, new, below, inside=f"{inside}{inner}/")
        return text

    # ------------------------------------------------------------------------------- restoring

    def write_whole(self, commit: str, place: Path, origin: Path | None, indexes: Path) -> None:
        """Write a snapshot, with the repository that the tree had, to a place: whole or not.

        Args:
            commit: The snapshot.
            place: Not there yet, or an empty directory.
            origin: See `give_repository`.
            indexes: See `restore`; what is in it already is replaced.
        """
        closed = place.with_name(f".making-{secrets.token_hex(6)}")
        made = closed / "tree"
        try:
            shutil.rmtree(indexes, ignore_errors=True)
            place.parent.mkdir(parents=True, exist_ok=True)
            closed.mkdir(mode=0o700)  # until the modes of private files are theirs again
            self.restore(commit, made, indexes)
            self.give_repository(commit, made, origin)
            made.rename(place)
        except OSError as problem:
            if not place.is_dir() or not any(place.iterdir()):  # else somebody was first
                raise WorkspaceError(f"cannot make {place}: {problem}") from None
        finally:
            shutil.rmtree(closed, ignore_errors=True)

    def restore(self, commit: str, directory: Path, indexes: Path) -> None:
        """Write a snapshot's files into an empty directory, byte for byte.

        Args:
            commit: The snapshot.
            directory: Empty, or not there yet.
            indexes: Where the indexes that fit the written files are kept.
        """
        extras = self.extras(commit)
        directory.mkdir(parents=True, exist_ok=True)
        indexes.mkdir(parents=True, exist_ok=True)
        index = indexes / "root"
        what = f"write snapshot {commit[:12]} to {directory}"
        self.run("read-tree", commit, index=index, what=what)
        self.run("checkout-index", "-a", "-f", "-q", "-u", tree=directory, index=index, what=what)
        modes.give(directory, extras.modes)
        for path in extras.empty:
            (directory / path).mkdir(parents=True, exist_ok=True)
        for path, inner in extras.nested.items():
            self.restore(inner, directory / path, inner_indexes(indexes, path))

    def move_head(self, tree: Path, extras: Extras) -> None:
        """Let a tree's own repository be at the commit and branch that a snapshot says."""
        known = self.refs(extras)
        repository.point(self.repository, tree, extras.head, extras.branch, known)

    def give_repository(self, commit: str, directory: Path, origin: Path | None) -> None:
        """Give restored files the repository that the tree had: same HEAD, branch and commits.

        Args:
            commit: The snapshot that was restored.
            directory: Where; without a ``.git`` of its own.
            origin: The tree that the snapshot is of: its refs, tags, settings and hooks are
                taken, too, if it is still there.
        """
        extras = self.extras(commit)
        if extras.head is not None or extras.branch is not None:
            there = origin if origin is not None and git.directory(origin) else None
            known = self.refs(extras)
            repository.clone(self.repository, there, directory, extras.head, extras.branch, known)
        for path, inner in extras.nested.items():
            self.give_repository(inner, directory / path, origin / path if origin else None)


def folders_of(path: str) -> list[str]:
    """Return the directories that a path of a tree lies in, the outermost first."""
    return [path[:place] for place, sign in enumerate(path) if sign == "/"]


def _number(text: bytes) -> int | None:
    return None if text == b"-" else int(text)
