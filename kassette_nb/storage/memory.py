"""Journals in this process's memory: for tests and for trying things out."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from .base import Busy, Conflict, Token, check_run_id


class MemoryStorage:
    """Keeps journals in a dict. ``memory:`` and ``memory:name`` open the same one again."""

    blocking = False

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._journals: dict[str, bytes] = {}
        self._held: dict[str, str] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"MemoryStorage({self._name!r})"

    @property
    def url(self) -> str:
        """``memory:`` and the name."""
        return f"memory:{self._name}"

    @property
    def place(self) -> str:
        """The same as `url`."""
        return self.url

    def locate(self, run_id: str) -> str:
        """Return ``memory:name/run_id``."""
        return f"{self.url}/{run_id}"

    def read(self, run_id: str, since: Token | None = None) -> tuple[bytes, Token] | None:
        """See `Storage.read`."""
        data = self._journals[check_run_id(run_id)]
        token = len(data)
        return None if token == since else (data, token)

    def create(self, run_id: str, data: bytes) -> Token:
        """See `Storage.create`."""
        with self._lock:
            if b"\n" in self._journals.get(check_run_id(run_id), b""):
                raise Conflict(f"run {run_id!r} exists already", run_id=run_id)
            self._journals[run_id] = data
            return len(data)

    def append(self, run_id: str, data: bytes, expected: Token, keep: int | None = None) -> Token:
        """See `Storage.append`."""
        with self._lock:
            old = self._journals.get(run_id, b"")
            if len(old) != expected:
                raise Conflict(f"the journal of {run_id!r} has changed", run_id=run_id)
            self._journals[run_id] = old[:keep] + data
            return len(self._journals[run_id])

    def hold(self, run_id: str, who: str) -> MemoryHold:
        """See `Storage.hold`."""
        with self._lock:
            holder = self._held.get(check_run_id(run_id))
            if holder is not None:
                raise Busy(f"{holder} holds run {run_id!r}", run_id=run_id, holder=holder)
            self._held[run_id] = who
            return MemoryHold(self._held, run_id)

    def holder(self, run_id: str) -> str | None:
        """See `Storage.holder`."""
        return self._held.get(run_id)

    def list(self, after: str = "", limit: int | None = None) -> Iterator[str]:
        """See `Storage.list`."""
        return iter([run_id for run_id, _ in self.tokens(after)][:limit])

    def tokens(self, after: str = "") -> Iterator[tuple[str, Token]]:
        """See `Storage.tokens`."""
        found = [(i, len(data)) for i, data in self._journals.items() if b"\n" in data]
        return iter(sorted(each for each in found if each[0] > after))


class MemoryHold:
    """The right to write one run of a `MemoryStorage`."""

    def __init__(self, held: dict[str, str], run_id: str) -> None:
        self._held: dict[str, str] | None = held
        self._run_id = run_id

    def release(self) -> None:
        """Give the run free; a second call does nothing."""
        held, self._held = self._held, None
        if held is not None:
            held.pop(self._run_id, None)
