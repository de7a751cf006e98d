"""Journals as files in a directory, guarded by the operating system's advisory locks."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import filelock

from ..errors import StorageError
from .base import Busy, Conflict, Token, check_run_id

SUFFIX = ".jsonl"


class LocalStorage:
    """One file a run, ``{directory}/{run_id}.jsonl``; readable only by its owner.

    Args:
        directory: Where the journals live; created on the first write.
    """

    blocking = False

    def __init__(self, directory: str | os.PathLike[str] = ".kassette") -> None:
        self._given = os.fspath(directory)
        # Resolved once: a notebook that changes its directory must not lose its runs.
        self._directory = Path(self._given).absolute()
        # Building a Path costs more than the system call that it is for.
        self._prefix = f"{self._directory}{os.sep}"
        self._descriptors: dict[str, int] = {}
        self._guard = threading.Lock()

    def __repr__(self) -> str:
        return f"LocalStorage({self._given!r})"

    @property
    def url(self) -> str:
        """The directory as it was given, behind ``file:``."""
        return f"file:{self._given}"

    @property
    def place(self) -> str:
        """The absolute path of the directory."""
        return str(self._directory)

    def locate(self, run_id: str) -> str:
        """Return the journal's absolute path."""
        return f"{self._prefix}{check_run_id(run_id)}{SUFFIX}"

    def read(self, run_id: str, since: Token | None = None) -> tuple[bytes, Token] | None:
        """See `Storage.read`. The token is the file's inode and length."""
        name = f"{self._prefix}{check_run_id(run_id)}{SUFFIX}"
        try:
            if since is not None:  # whoever follows a run asks often, and mostly for nothing
                status = os.stat(name)
                if (status.st_ino, status.st_size) == since:
                    return None
            with open(name, "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                data = file.readall()
        except FileNotFoundError:
            raise KeyError(run_id) from None
        except OSError as problem:
            raise self._refused(run_id, "read", problem) from problem
        return data, (status.st_ino, len(data))

    def create(self, run_id: str, data: bytes) -> Token:
        """See `Storage.create`. A new name is linked to the finished file, never overwriting."""
        path = self._path(run_id)
        scratch = path.with_name(f".{run_id}.{secrets.token_hex(4)}.tmp")
        try:
            self._make_directory(self._directory)
            # The caller holds the run, so what another process left half made is nobody's.
            # Exactly its: a dot and hexadecimal digits may be part of another run's id.
            for left in self._directory.glob(f".{run_id}.{'[0-9a-f]' * 8}.tmp"):
                left.unlink(missing_ok=True)
            try:
                descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                try:
                    _write(descriptor, data)
                    _sync(descriptor)
                    inode = os.fstat(descriptor).st_ino
                finally:
                    os.close(descriptor)
                self._publish(scratch, path)
            finally:
                scratch.unlink(missing_ok=True)
            try:
                _sync_directory(self._directory)
            except BaseException:
                # The name may not outlive a power cut, so the run was never acknowledged.
                with contextlib.suppress(OSError):
                    path.unlink()
                raise
        except FileExistsError:
            raise Conflict(f"run {run_id!r} exists already", run_id=run_id) from None
        except OSError as problem:
            raise self._refused(run_id, "create", problem) from problem
        return inode, len(data)

    def append(self, run_id: str, data: bytes, expected: Token, keep: int | None = None) -> Token:
        """See `Storage.append`. While the run is held, its file stays open between appends."""
        descriptor, kept, fresh = self._descriptors.get(run_id, -1), True, False
        if descriptor < 0:
            fresh = True
            try:
                descriptor, kept = self._open(run_id)
            except OSError as problem:
                raise self._refused(run_id, "open", problem) from problem
        try:
            # The name, not only the open file: an editor that keeps a backup leaves our file as
            # it was under another name. An open file keeps its inode, so it is asked once.
            inode, size = self._named(run_id)
            if (inode, size) != expected or (fresh and os.fstat(descriptor).st_ino != inode):
                raise Conflict(f"the journal {self.locate(run_id)} has changed", run_id=run_id)
            if keep is not None:
                size = keep
                os.ftruncate(descriptor, size)
            try:
                written = os.write(descriptor, data)
                if written != len(data):
                    raise _short(written, len(data))
                _sync(descriptor)
            except BaseException:
                # What was not synced was never acknowledged. An fsync that failed once may
                # report success on the next try without the data, so it is never repeated.
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise
            return inode, size + len(data)
        except OSError as problem:
            raise self._refused(run_id, "append to", problem) from problem
        finally:
            if not kept:
                os.close(descriptor)

    def hold(self, run_id: str, who: str) -> LocalHold:
        """See `Storage.hold`. The lock is freed by the kernel when its process is killed."""
        path = self._lock_path(run_id)
        try:
            self._make_directory(self._directory)
            path.parent.mkdir(mode=0o700, exist_ok=True)  # need not outlive a power cut
            # thread_local: the last thread of a session frees it. A soft lock would outlive a
            # killed process, so a file system without flock is refused instead.
            lock = filelock.FileLock(path, thread_local=False, fallback_to_soft=False, mode=0o600)
            lock.acquire(timeout=0)
        except filelock.Timeout:
            holder = _read_hint(path)
            raise Busy(f"{holder} holds run {run_id!r}", run_id=run_id, holder=holder) from None
        except (OSError, NotImplementedError) as problem:
            raise self._refused(run_id, "lock", problem) from problem
        # Only a hint for the message of whoever comes too late; the lock is the kernel's.
        with contextlib.suppress(OSError):
            path.write_text(who)
        with self._guard:
            self._descriptors[run_id] = -1
        return LocalHold(self, run_id, lock)

    def holder(self, run_id: str) -> str | None:
        """See `Storage.holder`. An absent lock file is not created."""
        # A browser of runs asks of every open run, and most have no lock file.
        found = os.path.exists(f"{self._prefix}.locks{os.sep}{check_run_id(run_id)}.lock")
        if not found and run_id not in self._descriptors:
            return None
        path = self._lock_path(run_id)
        with self._guard:
            if run_id in self._descriptors:
                return _read_hint(path)
        return _read_hint(path) if _locked(path) else None

    def list(self, after: str = "", limit: int | None = None) -> Iterator[str]:
        """See `Storage.list`."""
        return iter([run_id for run_id, _ in self.tokens(after)][:limit])

    def tokens(self, after: str = "") -> Iterator[tuple[str, Token]]:
        """See `Storage.tokens`. One look at each file's status."""
        found: list[tuple[str, tuple[int, int]]] = []
        try:
            with os.scandir(self._directory) as files:
                for file in files:
                    run_id = file.name.removesuffix(SUFFIX)
                    if run_id == file.name or run_id.startswith(".") or run_id <= after:
                        continue
                    status = file.stat()
                    if status.st_size > 0:
                        found.append((run_id, (status.st_ino, status.st_size)))
        except FileNotFoundError:
            return iter(())
        except OSError as problem:
            raise StorageError(
                f"cannot list {self.place}: {problem.strerror}. Check the path and its rights.",
                place=self.place,
                reason=str(problem.strerror),
            ) from problem
        return iter(sorted(found))

    def _path(self, run_id: str) -> Path:
        return self._directory / (check_run_id(run_id) + SUFFIX)

    def _lock_path(self, run_id: str) -> Path:
        return self._directory / ".locks" / (check_run_id(run_id) + ".lock")

    def _named(self, run_id: str) -> tuple[int | None, int]:
        """Return inode and length of the file that bears the run's name now."""
        try:
            status = os.stat(f"{self._prefix}{run_id}{SUFFIX}")
        except FileNotFoundError:
            return None, 0
        return status.st_ino, status.st_size

    def _open(self, run_id: str) -> tuple[int, bool]:
        """Return a new descriptor, and whether it is kept open for the holder."""
        flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0)
        descriptor = os.open(self._path(run_id), flags)
        with self._guard:
            held = run_id in self._descriptors
            if held:
                self._descriptors[run_id] = descriptor
        return descriptor, held

    def _close(self, run_id: str) -> None:
        with self._guard:
            descriptor = self._descriptors.pop(run_id, -1)
        if descriptor >= 0:
            os.close(descriptor)

    def _publish(self, scratch: Path, path: Path) -> None:
        if path.exists() and b"\n" not in path.read_bytes():
            # No whole line: a run that never began. Its first session was killed or the disk
            # was full, and nothing in it was acknowledged.
            os.replace(scratch, path)
            return
        try:
            os.link(scratch, path)
        except FileExistsError:
            raise
        except OSError:
            # A file system without hard links. The caller holds the run's lock, so among our
            # own processes nobody can create the name in between.
            if path.exists():
                raise FileExistsError(path) from None
            os.replace(scratch, path)

    def _make_directory(self, directory: Path) -> None:
        if directory.is_dir():
            return
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        _sync_directory(directory.parent)

    def _refused(self, run_id: str, verb: str, problem: Exception) -> StorageError:
        place = self.locate(run_id)
        reason = getattr(problem, "strerror", None) or str(problem)
        return StorageError(
            f"cannot {verb} {place}: {reason}. Nothing unacknowledged was kept; free the space or "
            "fix the rights, then start the run again.",
            place=place,
            reason=reason,
        )


class LocalHold:
    """The right to write one run of a `LocalStorage`."""

    def __init__(self, storage: LocalStorage, run_id: str, lock: filelock.BaseFileLock) -> None:
        self._storage = storage
        self._run_id = run_id
        self._lock: filelock.BaseFileLock | None = lock

    def release(self) -> None:
        """Give the run free; a second call does nothing."""
        lock, self._lock = self._lock, None
        if lock is not None:
            self._storage._close(self._run_id)
            lock.release(force=True)


def _locked(path: Path) -> bool:
    """Tell whether a writer has this lock; a directory that cannot be written has none of ours."""
    if not path.exists():
        return False
    if os.name == "nt":
        try:
            filelock.FileLock(path, fallback_to_soft=False).acquire(timeout=0).lock.release()
        except filelock.Timeout:
            return True
        except (OSError, NotImplementedError):
            return False
        return False
    import fcntl

    # Shared: of two that look at once, neither must take the other for a writer.
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process forked meanwhile has it too
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _read_hint(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip() or "another session"
    except OSError:
        return "another session"


def _write(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    if written != len(data):
        raise _short(written, len(data))


def _short(written: int, wanted: int) -> OSError:
    return OSError(errno.ENOSPC, f"only {written} of {wanted} bytes were written (disk full?)")


if sys.platform == "darwin":  # fsync on macOS stops at the drive's cache
    import fcntl

    def _sync(descriptor: int) -> None:
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)

else:

    def _sync(descriptor: int) -> None:
        os.fsync(descriptor)


def _sync_directory(directory: Path) -> None:
    if os.name == "nt":  # directories cannot be opened there; NTFS journals its metadata
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
