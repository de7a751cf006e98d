"""Who may write a run in an object store: a lease that is renewed while its holder lives.

The lease keeps two from working on one run in vain; it does not keep the journal whole, the
compare-and-set on the journal does. So a lease that is judged wrongly costs time, never data.

No machine's clock is believed. How old a lease is tells the server, who stamps objects: its present
is learnt by writing a small object and reading its time. A holder that could not renew for half
its time asks before it writes, and finds out that it was taken over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec

from ..clock import stamp
from ..errors import StorageError
from .base import Busy, Conflict
from .objectio import Object, Objects, Version

#: Seconds after which the run of a killed holder is free.
LEASE = 15.0
#: Servers stamp whole seconds, so two stamps tell an age only to this.
GRAIN = 1.0
#: Seconds for which a measured difference to the server's clock is believed.
MEASURED = 600.0


class Lease(msgspec.Struct, kw_only=True, rename="camel"):
    """What ``lease.json`` says. With no seconds left the run is free, and the owner was the last.

    ``holds`` counts how often the run has been taken; ``expires``, by the owner's clock, is for
    people. The write id makes every state of it unlike any other.
    """

    owner: str = ""
    holds: int = 0
    seconds: float = LEASE
    expires: str = ""
    write_id: str = ""


class ServerTime:
    """What time it is for the server, and whether a lease lives by that time.

    Args:
        objects: The bucket.
        key: An object that may be overwritten.
    """

    def __init__(self, objects: Objects, key: str) -> None:
        self._objects = objects
        self._key = key
        self._measured: tuple[datetime, _Since] | None = None
        self._seen: dict[str, tuple[Version, float, bool]] = {}

    def living(self, key: str, found: Object | None, *, measure: bool = False) -> str | None:
        """Return the owner of a lease that is not past; None where the run is free.

        Args:
            key: The lease's key.
            found: The lease as it was read.
            measure: May write an object to learn the server's time. Without it, and before
                anybody has, a viewer goes by its own clock, until it has watched the lease for
                as long as it lasts.
        """
        lease = _decode(found)
        if found is None or lease is None or not lease.seconds:
            return None
        watched = self._watched(key, found.version, lease.seconds)
        if watched is not None and not measure:
            return lease.owner if watched else None
        age = (self._now(measure) - found.modified).total_seconds()
        return None if age >= lease.seconds - GRAIN else lease.owner

    def _watched(self, key: str, version: Version, seconds: float) -> bool | None:
        """Return whether the lease was renewed before our eyes, or not at all; None: too early."""
        now = time.monotonic()
        seen = self._seen.get(key)
        if seen is None or seen[0] != version:
            seen = self._seen[key] = (version, now, seen is not None)
        if now - seen[1] >= seconds:
            return False
        return True if seen[2] else None

    def _now(self, measure: bool) -> datetime:
        known = self._measured
        old = known is None or known[1].elapsed() > MEASURED
        if measure and (known is None or old or known[1].doubtful()):
            since = _Since()
            stamped = self._objects.stamp(self._key, secrets.token_bytes(8))
            self._measured = stamped, since
            return stamped
        if known is None or old:
            return datetime.now(UTC)
        return known[0] + timedelta(seconds=known[1].elapsed())


class ObjectHold:
    """The right to write one run of an object store, as long as it is renewed.

    Args:
        objects: The bucket.
        server: Its time.
        key: The lease's key.
        run_id: The run.
        lease: The owner and the length of the lease.
    """

    def __init__(
        self, objects: Objects, server: ServerTime, key: str, run_id: str, lease: Lease
    ) -> None:
        self.run_id = run_id
        self.owner = lease.owner
        self._objects = objects
        self._server = server
        self._key = key
        self._lease = lease
        self._version: Version | None = None
        self._renewed = _Since()
        self._lost: str | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._over = threading.Event()
        self._forget: Callable[[ObjectHold], None] = lambda _: None
        self._pid = os.getpid()

    @property
    def held(self) -> bool:
        """Whether it has neither been freed nor lost."""
        return self._lost is None and not self._stop.is_set()

    @property
    def freed(self) -> bool:
        """Whether it has been freed, though the store may not have heard yet."""
        return self._lost is None and self._stop.is_set()

    def take(self, forget: Callable[[ObjectHold], None]) -> None:
        """Take the lease, and renew it from a thread of its own until `release`.

        Args:
            forget: Called when it has been freed.

        Raises:
            Busy: Its holder lives.
            StorageError: The store refuses.
        """
        found = self._objects.get(self._key)
        if self._server.living(self._key, found, measure=True) is not None:
            raise self._busy(found)
        last = _decode(found)
        self._lease.holds = last.holds + 1 if last is not None else 1
        self._renewed = _Since()
        version, there = self._objects.swap(
            self._key, found.version if found is not None else None, self._next()
        )
        if version is None:
            raise self._busy(there)
        self._version = version
        self._forget = forget
        threading.Thread(target=self._beat, name="kassette lease", daemon=True).start()

    def check(self) -> None:
        """Make sure that the lease is still ours, asking the store only where it may not be.

        Raises:
            Conflict: Somebody has taken it over.
            StorageError: It cannot be found out.
        """
        if self._renewed.elapsed() > self._lease.seconds / 2 and self._lost is None:
            self._renew()
        if self._lost is not None:
            raise Conflict(self._lost, run_id=self.run_id)

    def release(self) -> None:
        """Give the run free; a second call does nothing.

        Called on an event loop's thread it returns at once, and the store hears a moment later.
        """
        if self._stop.is_set() or os.getpid() != self._pid:
            return
        self._stop.set()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._free()
        else:
            # Not a daemon: a process that ends now must not leave the run to its lease.
            threading.Thread(target=self._free, name="kassette release").start()

    def wait_released(self) -> None:
        """Wait for the store to hear of a release that is under way."""
        if self._stop.is_set():
            self._over.wait(5)

    def _beat(self) -> None:
        while not self._stop.wait(self._lease.seconds / 4):
            # What cannot be renewed now is tried again; `check` asks before anything is written.
            with contextlib.suppress(StorageError):
                self._renew()
            if self._lost is not None:
                return

    def _renew(self) -> None:
        with self._lock:
            if self._stop.is_set() or self._lost is not None:
                return
            began = _Since()
            ours, lease = self._write(self._lease.seconds / 4)
            if ours:
                self._renewed = began
                return
            self._lost = (
                f"its lease was not renewed in time and {lease.owner} took it over"
                if lease is not None
                else "its lease was deleted"
            )

    def _write(self, patience: float) -> tuple[bool, Lease | None]:
        """Write the lease as it is now; return whether it is ours, and whose it is if not."""
        while True:
            version, there = self._objects.swap(
                self._key, self._version, self._next(), patience=patience
            )
            if version is not None:
                self._version = version
                return True, None
            lease = _decode(there)
            if there is None or lease is None or lease.holds != self._lease.holds:
                return False, lease
            # Our own, of a renewal that was given up before its reply came.
            self._version = there.version

    def _free(self) -> None:
        try:
            with self._lock, contextlib.suppress(StorageError):  # then the lease runs out
                if self._lost is None:
                    self._lease.seconds = 0.0
                    self._write(patience=3)
        finally:
            self._forget(self)
            self._over.set()

    def _next(self) -> bytes:
        self._lease.expires = stamp(datetime.now(UTC) + timedelta(seconds=self._lease.seconds))
        self._lease.write_id = secrets.token_hex(8)
        return msgspec.json.encode(self._lease) + b"\n"

    def _busy(self, found: Object | None) -> Busy:
        lease = _decode(found)
        owner = lease.owner if lease is not None else "somebody else"
        return Busy(
            f"{owner} holds run {self.run_id!r}",
            run_id=self.run_id,
            holder=owner,
            within=lease.seconds if lease is not None else None,
        )


class _Since:
    """How long ago it was, by the clock that says more.

    A suspended laptop's monotonic clock stands still, and a wall clock can be set: where they
    disagree, neither is believed by whoever can ask.
    """

    __slots__ = ("_monotonic", "_wall")

    def __init__(self) -> None:
        self._monotonic, self._wall = time.monotonic(), time.time()

    def elapsed(self) -> float:
        return max(self._both())

    def doubtful(self) -> bool:
        """Tell whether the two disagree by more than servers' stamps are exact to."""
        monotonic, wall = self._both()
        return abs(wall - monotonic) > GRAIN

    def _both(self) -> tuple[float, float]:
        return time.monotonic() - self._monotonic, time.time() - self._wall


def _decode(found: Object | None) -> Lease | None:
    """Return a lease; one that cannot be read counts as somebody's until it is past."""
    if found is None or found.data is None:
        return None
    try:
        return msgspec.json.decode(found.data, type=Lease)
    except msgspec.DecodeError:
        return Lease(owner="another program")
