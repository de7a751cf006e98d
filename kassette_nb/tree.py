"""A working tree that is being watched: snapshots of it, taken one after the other.

What is kept: every file that the tree's ``.gitignore`` does not name, and those it names that its
own repository tracks; executable bits and symbolic links; empty directories; the same for every
repository inside the tree. What is not: ignored files (unless asked for), files over a size, and
what git has no notion of (owners, times, sockets, other mode bits but those that keep others out).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import threading
from pathlib import Path

import msgspec

from . import enclosing, git, refs
from .aside import Aside, put_back
from .declared import MAX_FILE
from .errors import WorkspaceError
from .forced import Forced, repositories
from .indexes import inner_indexes
from .modes import Modes
from .snapshots import NAMED, Extras, Snapshots, folders_of

#: Paths handed to one call of git, so that no command line grows too long.
BATCH = 500
#: A tree that something else keeps changing is taken as it was at this look.
ROUNDS = 4


class Tree:
    """Takes snapshots of one directory.

    Args:
        path: The directory.
        snapshots: Where they are kept.
        indexes: A directory for git's indexes, which make a snapshot of an unchanged tree cheap.
        name: The run and session, for the refs that keep snapshots from being collected.
        ignored: Keep ignored files, too.
        max_file: Leave larger files out; bytes.
        hidden: A directory inside the tree that is not part of it (the journals).
    """

    def __init__(
        self,
        path: Path,
        snapshots: Snapshots,
        indexes: Path,
        name: str,
        *,
        ignored: bool = False,
        max_file: int = MAX_FILE,
        hidden: Path | None = None,
    ) -> None:
        self.path = path
        self.snapshots = snapshots
        self._indexes = indexes
        self._index = indexes / "root"
        self._name = name
        self._ignored = ignored
        #: What the index has, and the directories that this is in.
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._max_file = max_file
        self._hidden = hidden
        self._nested: dict[str, Tree] = {}
        self._forced = Forced(path)
        self._modes = Modes(path)
        self._refs_read: str | None = None
        self._refs_kept: str | None = None
        self._lock = threading.Lock()
        #: The newest snapshot, with its tree and what it says besides.
        self._commit: str | None = None
        self._written: str | None = None
        self._extras = Extras()
        self._seen = False
        self._root: Path | None = None
        self._within: str | None = None
        self._rules: tuple[str, ...] = ()
        #: What the last `put_back` moved out of its way.
        self.aside: Aside | None = None

    def take(self, parent: str | None = None) -> str:
        """Take a snapshot: durable on return; the same commit as before where nothing changed.

        Args:
            parent: The snapshot that this tree was last recorded as, for the first one taken.

        Raises:
            WorkspaceError: It could not be taken.
        """
        with self._lock:
            try:
                if self._seen:
                    return self._take()
                return self._first(parent)
            except BaseException as problem:
                # The index may be ahead of the newest snapshot now: look at everything anew.
                self._seen = False
                self._forced.forget()
                if isinstance(problem, OSError | ValueError):  # a path may hold any byte
                    raise WorkspaceError(f"cannot keep {self.path}: {problem}") from None
                raise

    def put_back(self, commit: str, *, head: bool = False) -> None:
        """Change the files to an earlier snapshot; what is there now is one already.

        What no snapshot has and stands in the way is moved aside; see `aside`.

        Args:
            commit: The snapshot.
            head: Move the tree's own repository back, too: for trees that are nobody else's.
        """
        with self._lock:
            assert self._commit is not None, "the present state is kept first"
            self._run("update-ref", f"refs/replaced/{self._commit}", self._commit)
            self.aside = Aside(self.snapshots.home)
            put_back(self.snapshots, self._commit, commit, self.path, self._indexes, self.aside)
            extras = self.snapshots.extras(commit)
            if head and extras.head is not None and git.directory(self.path) is not None:
                self.snapshots.move_head(self.path, extras)
            self._commit, self._extras = commit, extras
            self._written = self._run("rev-parse", f"{commit}^{{tree}}").decode().strip()
            self._seen = False
            self._nested.clear()

    @property
    def within(self) -> str | None:
        """Where in its repository the tree is, or was forked from, that is not its root."""
        return self._within

    @property
    def left_out(self) -> dict[str, str]:
        """What the newest snapshot does not have, with the reason."""
        return self._extras.left_out

    def _first(self, parent: str | None) -> str:
        self._indexes.mkdir(parents=True, exist_ok=True, mode=0o700)
        if parent is not None and not self.snapshots.has(parent):
            shutil.rmtree(self._indexes)  # they name objects that are gone with it
            self._indexes.mkdir(mode=0o700)
        elif parent is not None:
            self._commit, self._extras = parent, self.snapshots.extras(parent)
            self._written = self._run("rev-parse", f"{parent}^{{tree}}").decode().strip()
        if self._name:  # a repository inside the tree has rules of its own
            root = enclosing.root_of(self.path)
            if root is not None:
                self._within = self.path.resolve().relative_to(root).as_posix()
                self._root = None if enclosing.ignores(root, self.path) else root
        if self._within is None:  # a fork keeps to the rules of the tree that it comes from
            self._within, self._rules = self._extras.within, self._extras.rules
        try:
            self._refresh()
        except WorkspaceError:
            self._index.unlink(missing_ok=True)  # it only saves time, and can be made anew
            self._refresh()
        found = self._take()
        self._seen = True
        return found

    def _refresh(self) -> None:
        if not self._index.exists() and self._commit is not None:
            self._run("read-tree", self._commit)
        # Files that were only touched would be read again and again otherwise. It says so when
        # some really differ; that is not an error.
        self._run("update-index", "-q", "--refresh", lenient=True)
        out = self._run("ls-files", "-z")
        self._files = {os.fsdecode(path) for path in out.split(b"\0") if path}
        self._folders = {folder for path in self._files for folder in folders_of(path)}
        self._modes = Modes(self.path)
        self._modes.look(self._files)

    def _take(self) -> str:
        if self._root is not None:
            self._rules = enclosing.rules(self._root, self.path)
        let_go = self._let_go()
        changed, empty, nested = self._scan()
        left_out = self._extras.left_out
        written = self._written
        # One that is left out is always listed, also when it is small enough by now.
        if let_go or not self._seen or {path: self._unfit(path) for path in changed} != left_out:
            # Asked again, so that what is said of a tree does not depend on what it was before,
            # and because a directory in place of a file shows when the file is out of the index.
            for _ in range(ROUNDS):
                left_out = self._update(changed)
                changed, empty, nested = self._scan()
                if changed == left_out.keys():
                    break
            written = self._run("write-tree").decode().strip()
        head, branch = git.head(self.path)
        if head is not None and head != self._extras.head:
            self.snapshots.keep_head(self.path, head)
        self._modes.look()
        extras = Extras(
            head,
            branch,
            {
                path: self._inner(path).take(self._extras.nested.get(path))
                for path in sorted(nested)
            },
            tuple(sorted(empty)),
            left_out,
            self._extras.ignored if self._commit is not None else self._ignored_paths(),
            self._within,
            self._rules,
            self._refs(),
            self._modes.known,
        )
        if self._commit is None or written != self._written or extras != self._extras:
            assert written is not None, "the first look writes it"
            self._commit = self._record(written, extras)
            self._written, self._extras = written, extras
        return self._commit

    def _refs(self) -> str | None:
        text = refs.read(self.path)
        if text is None:
            return None
        if text != self._refs_read:
            self._refs_kept, self._refs_read = self.snapshots.keep_refs(text), text
        return self._refs_kept

    def _let_go(self) -> bool:
        """Take the files out of the index whose directory became a repository; it has its own."""
        made = repositories(self.path, self._folders)
        inside = {path for path in self._files if made and not made.isdisjoint(folders_of(path))}
        self._folders -= made
        self._remove(inside)
        return bool(inside)

    def _scan(self) -> tuple[set[str], set[str], set[str]]:
        """Return what may have changed, the empty directories, and the repositories inside."""
        forced = [] if self._ignored else self._forced.look(self._root)
        changed, empty, nested, whole = set(forced), set[str](), set[str](), set[str]()
        # Unlike "ls-files -m" it also names a file of which the mode alone changed.
        out = self._run("diff-files", "-z", "--name-only")
        changed |= {os.fsdecode(path) for path in out.split(b"\0") if path}
        for path in self._listed("-o", "--directory"):
            self._sort(path, changed, empty, nested, whole)
        todo = sorted(whole)
        for start in range(0, len(todo), BATCH):
            some = [f":(literal){path}" for path in todo[start : start + BATCH]]
            found = self._listed("-o", "--", *some)
            # Git lists what is in a repository that is none to it, without a HEAD.
            folders = {folder for path in found for folder in folders_of(path)}
            made = repositories(self.path, folders)
            for path in found:
                within = [f"{folder}/" for folder in folders_of(path) if folder in made]
                self._sort([*within, path][0], changed, empty, nested, set())
            for path in todo[start : start + BATCH]:
                empty.update(self._empty_below(path))
        return changed, empty, nested

    def _sort(
        self, path: str, changed: set[str], empty: set[str], nested: set[str], whole: set[str]
    ) -> None:
        if not path.endswith("/"):
            changed.add(path)
            return
        path = path.rstrip("/")
        if os.path.lexists(self.path / path / ".git"):
            nested.add(path)
            return
        with contextlib.suppress(OSError), os.scandir(self.path / path) as inside:
            (whole if next(inside, None) is not None else empty).add(path)

    def _empty_below(self, path: str) -> list[str]:
        found = []
        hidden = self.path / self._hidden if self._hidden is not None else None
        for folder, names, files in os.walk(self.path / path):
            if hidden is not None and hidden.parent == Path(folder) and hidden.name in names:
                names.remove(hidden.name)  # a directory that has nothing else counts as empty
            if ".git" in names or ".git" in files:
                names.clear()
            elif not names and not files:
                found.append(os.path.relpath(folder, self.path))
        return found

    def _listed(self, *what: str) -> list[str]:
        options = [] if self._ignored else ["--exclude-per-directory=.gitignore"]
        own = git.directory(self.path)
        if own is not None and not self._ignored:
            exclude = git.common_directory(self.path) / "info" / "exclude"
            options += [f"--exclude-from={exclude}"] if exclude.exists() else []
        if self._rules and not self._ignored:
            lines = self._indexes / "rules"
            lines.write_bytes(b"".join(os.fsencode(rule) + b"\n" for rule in self._rules))
            options.append(f"--exclude-from={lines.absolute()}")
        if self._hidden is not None:
            escaped = re.sub(r"([\\*?\[ !#])", r"\\\1", self._hidden.as_posix())
            options.append(f"--exclude=/{escaped}/")
        out = self._run("ls-files", "-z", *options, *what)
        return [os.fsdecode(path) for path in out.split(b"\0") if path]

    def _ignored_paths(self) -> tuple[str, ...]:
        if self._ignored:
            return ()
        named = self._listed("-o", "-i", "--directory")
        hidden = f"{self._hidden.as_posix()}/" if self._hidden is not None else None
        return tuple(path for path in named if path != hidden)[:NAMED]

    def _update(self, changed: set[str]) -> dict[str, str]:
        """Bring the index up to date; return what is left out, with the reason."""
        left_out = {}
        folders = {folder for path in changed for folder in folders_of(path)}
        links = {folder for folder in folders if (self.path / folder).is_symlink()}
        # Their directory became a link, and git refuses to look behind one.
        gone = {path for path in changed if links and not links.isdisjoint(folders_of(path))}
        for path in changed - gone:
            reason = self._unfit(path)
            if reason is not None:
                left_out[path] = reason
        out = gone | left_out.keys()
        data = b"".join(os.fsencode(path) + b"\0" for path in sorted(changed - out))
        if data and not self._add_many(len(changed), data):
            self._run("update-index", "--add", "--remove", "--replace", "-z", "--stdin", data=data)
        self._files |= changed
        self._folders |= folders
        self._modes.look(changed - out)
        self._remove(out)
        return left_out

    def _remove(self, paths: set[str]) -> None:
        self._files -= paths
        if paths:
            self._modes.forget(paths)
            data = b"".join(os.fsencode(path) + b"\0" for path in sorted(paths))
            self._run("update-index", "--force-remove", "-z", "--stdin", data=data)

    def _add_many(self, count: int, data: bytes) -> bool:
        """Take many paths at once: ``git add`` syncs them together, but any odd one stops it."""
        if count <= BATCH:
            return False
        source = ("--pathspec-from-file=-", "--pathspec-file-nul")
        try:
            self._run("--literal-pathspecs", "add", "-f", "-A", *source, data=data)
        except WorkspaceError:
            return False
        return True

    def _unfit(self, name: str) -> str | None:
        path = self.path / name
        try:
            found = path.lstat()
        except OSError:
            return None  # deleted
        if not stat.S_ISREG(found.st_mode):
            return None
        if found.st_size > self._max_file:
            return f"larger than {self._max_file:,} bytes"
        if not os.access(path, os.R_OK):
            return "not readable"
        return None

    def _inner(self, path: str) -> Tree:
        known = self._nested.get(path)
        if known is None:
            known = self._nested[path] = Tree(
                self.path / path,
                self.snapshots,
                inner_indexes(self._indexes, path),
                "",
                ignored=self._ignored,
                max_file=self._max_file,
            )
        return known

    def _record(self, written: str, extras: Extras) -> str:
        parents = [
            commit for commit in (self._commit, extras.refs, *extras.nested.values()) if commit
        ]
        args = [arg for commit in dict.fromkeys(parents) for arg in ("-p", commit)]
        message = json.dumps(msgspec.to_builtins(extras), sort_keys=True)
        text = f"snapshot\n\n{message}\n".encode()
        made = self._run("commit-tree", written, *args, data=text).decode().strip()
        if self._name:
            self._run("update-ref", f"refs/runs/{self._name}", made)
        return made

    def _run(self, *args: str, data: bytes | None = None, lenient: bool = False) -> bytes:
        what = f"keep {self.path}"
        return self.snapshots.run(
            *args, tree=self.path, index=self._index, data=data, what=what, lenient=lenient
        )
