"""What a storm plays on: a loop of virtual time, a disk, and processes that can be killed.

A process is a storage: what it holds is freed and what it writes is torn when it dies, and nothing
that it tries afterwards reaches the disk.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from kassette_nb.errors import StorageError
from kassette_nb.storage import Busy, Conflict, Hold, Token, check_run_id
from tests.properties import journals

_START = datetime(2026, 1, 1, tzinfo=UTC)


class Killed(BaseException):
    """The process is dead; the simulation cannot let its coroutines vanish, so they get this."""


class Stuck(AssertionError):
    """Everything waits, and nothing will ever happen."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting."""

    def __init__(self) -> None:
        self._jumps = _Jumps()
        super().__init__(self._jumps)

    def time(self) -> float:
        """Return the virtual time."""
        return self._jumps.now


class _Jumps(selectors.SelectSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck
        self.now += timeout
        return []


class Disk:
    """The bytes that survive, and the locks that do not."""

    def __init__(self) -> None:
        self.journals: dict[str, bytes] = {}
        self.versions: Counter[str] = Counter()
        self.held: dict[str, _Held] = {}

    def put(self, run_id: str, data: bytes) -> None:
        """Replace a journal's bytes; what was once whole lines stays for ever."""
        old = journals.whole(self.journals.get(run_id, b""))
        assert data.startswith(old), "a line was rewritten"
        self.journals[run_id] = data
        self.versions[run_id] += 1


class _Held:
    def __init__(self, process: Process, run_id: str) -> None:
        self.process = process
        self._run_id = run_id

    def release(self) -> None:
        held = self.process.disk.held
        if held.get(self._run_id) is self:
            del held[self._run_id]


class Process:
    """One process: a storage that can be killed in the middle of a write. Fits `Storage`.

    Args:
        disk: What survives it.
        number: Its number.
        chance: Decides where a write is torn.
        told: Called with the name of every disturbance, when it has happened.

    Attributes:
        alive: What it tries after its death does not reach the disk.
        disturbed: Something was done to it, so its call need not succeed.
        failed: One of its writes failed, and none after it can be made.
        strikes: What to do at which of its writes, counted from 1.
        deadly: Die inside the step function of which it is the so-manieth call.
    """

    blocking = False

    def __init__(
        self, disk: Disk, number: int, chance: random.Random, told: Callable[[str], None]
    ) -> None:
        self.disk = disk
        self._chance = chance
        self._told = told
        self.place = f"storm:{number}"
        self.url = self.place
        self.alive = True
        self.disturbed = False
        self.failed = False
        self.writes = 0
        self.acts = 0
        self.strikes: dict[int, str] = {}
        self.deadly = 0
        self.task: asyncio.Task[Any] | None = None

    def kill(self, phase: str) -> None:
        """End it here: its locks are freed, and nothing that it does matters any more."""
        if not self.alive:
            return
        self.alive = False
        self.disturbed = True
        held = self.disk.held
        for run_id in [run_id for run_id, hold in held.items() if hold.process is self]:
            del held[run_id]
        self._told(phase)
        if self.task is not None:
            self.task.cancel()

    def check(self) -> None:
        """Stop a dead process."""
        if not self.alive:
            raise Killed

    def locate(self, run_id: str) -> str:
        """See `Storage.locate`."""
        return f"{self.place}/{run_id}"

    def read(self, run_id: str, since: Token | None = None) -> tuple[bytes, Token] | None:
        """See `Storage.read`."""
        self.check()
        data = self.disk.journals[check_run_id(run_id)]
        token = self.disk.versions[run_id]
        return None if token == since else (data, token)

    def create(self, run_id: str, data: bytes) -> Token:
        """See `Storage.create`."""
        self.check()
        old = self.disk.journals.get(check_run_id(run_id), b"")
        if b"\n" in old:
            raise Conflict(f"run {run_id!r} exists already", run_id=run_id)
        return self._write(run_id, old, b"", data)

    def append(self, run_id: str, data: bytes, expected: Token, keep: int | None = None) -> Token:
        """See `Storage.append`."""
        self.check()
        old = self.disk.journals.get(run_id, b"")
        if self.disk.versions[run_id] != expected:
            raise Conflict(f"the journal of {run_id!r} has changed", run_id=run_id)
        assert keep is None or keep == len(journals.whole(old)), "only a torn tail is cut"
        assert keep is not None or old == journals.whole(old), "written behind a torn tail"
        holder = self.disk.held.get(run_id)
        assert holder is not None, "written without a hold"
        assert holder.process is self, "written under somebody else's hold"
        return self._write(run_id, old, old[:keep], data)

    def _write(self, run_id: str, old: bytes, base: bytes, data: bytes) -> Token:
        self.writes += 1
        how = self.strikes.get(self.writes)
        disk, chance = self.disk, self._chance
        if how == "kill before":
            disk.put(run_id, chance.choice((old, base)))
            self.kill("before a write")
            raise Killed
        if how == "kill within":
            disk.put(run_id, base + data[: chance.randrange(1, len(data))])
            self.kill("within a write")
            raise Killed
        if how == "fail":
            disk.put(run_id, base)
            self._fault()
        disk.put(run_id, base + data)
        if how == "kill after":
            self.kill("after a write")
            raise Killed
        if how == "lose":
            self._fault()
        return disk.versions[run_id]

    def _fault(self) -> None:
        self.disturbed = self.failed = True
        self._told("write failed")
        raise StorageError("the disk is full", place=self.place, reason="told to fail")

    def hold(self, run_id: str, who: str) -> Hold:
        """See `Storage.hold`."""
        self.check()
        if run_id in self.disk.held:
            holder = self.disk.held[run_id].process.place
            raise Busy(f"{holder} holds run {run_id!r}", run_id=run_id, holder=holder)
        self.disk.held[run_id] = held = _Held(self, run_id)
        return held

    def holder(self, run_id: str) -> str | None:
        """See `Storage.holder`."""
        held = self.disk.held.get(run_id)
        return held.process.place if held else None

    def list(self, after: str = "", limit: int | None = None) -> Iterator[str]:
        """See `Storage.list`."""
        self.check()
        return iter(sorted(i for i in self.disk.journals if i > after)[:limit])

    def tokens(self, after: str = "") -> Iterator[tuple[str, Token]]:
        """See `Storage.tokens`."""
        for run_id in self.list(after):
            found = self.read(run_id)
            assert found is not None
            yield run_id, found[1]


class Clock:
    """The storm's time: the loop's, and what it was told to skip."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.skipped = 0.0

    def now(self) -> datetime:
        """Return the virtual instant."""
        return _START + timedelta(seconds=self._loop.time() + self.skipped)

    async def sleep(self, seconds: float) -> None:
        """Wait in virtual time."""
        await asyncio.sleep(seconds)
