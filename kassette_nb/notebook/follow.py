"""Following journals as they grow, also those that another process writes.

One clock for all that is followed in a kernel, however many panels there are. A look costs one
question for the file's size, or one conditional GET that a thread makes; the lock is only probed
where the answer can have changed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from .. import background
from ..errors import KassetteError
from ..storage import Storage, beside

#: Seconds between two looks: a change is seen within half a second.
INTERVAL = 0.4
#: The same where each look is a request that somebody pays for.
INTERVAL_REMOTE = 1.0
#: Seconds without a sign from any view after which nobody is looking any more.
SILENCE = 60.0
#: Seconds between two looks at who holds an open run.
PROBE = 1.0
#: Seconds by which a look comes too late when a cell has kept the kernel's loop to itself.
BLOCKED = 1.5


class Followed(Protocol):
    """What is followed: anything whose state has a comparable version."""

    def version(self, probe: bool) -> object:
        """Return something that differs after a change; ``probe`` also asks who holds it."""
        ...

    @property
    def over(self) -> bool:
        """Whether nothing can change any more."""
        ...

    def left(self) -> None:
        """Take note that nobody looks any more."""
        ...

    def stood_still(self, seconds: float) -> None:
        """Take note that a cell has blocked the kernel's loop for so long."""
        ...


class Follower:
    """Calls ``changed`` on the kernel's loop after each change, while somebody looks.

    Args:
        target: What to follow.
        changed: Called with nothing. Where a look takes network time it is called in a thread.
        failed: Called with what it raised, which Jupyter would lose; the following ends then.
        storage: Where the target is kept.
    """

    def __init__(
        self,
        target: Followed,
        changed: Callable[[], None],
        failed: Callable[[Exception], None],
        storage: Storage,
    ) -> None:
        self._target = target
        self._changed = changed
        self._failed = failed
        self._storage = storage
        self._interval = INTERVAL_REMOTE if storage.blocking else 0.0
        self._next = 0.0
        self._away: asyncio.Task[None] | None = None
        self._over = False
        self._seen: object = None
        self._heard: dict[str, float] = {}
        self._probed = 0.0

    @property
    def following(self) -> bool:
        """Whether it looks now."""
        return self in _clock.followers

    def here(self, view: str = "") -> None:
        """Take note that a view is there; begin to follow if nobody was."""
        self._heard[view] = time.monotonic()
        loop = background.home()
        if loop is not None and not self.following:  # without one there is no kernel to wait in
            background.call_home(loop, self._begin)

    def gone(self, view: str) -> None:
        """Take note that a view was closed; the last one ends the following."""
        self._heard.pop(view, None)
        if not self._heard:
            self.stop()
            self._target.left()

    def stop(self) -> None:
        """Stop following."""
        _clock.followers.discard(self)

    def poll(self, probe: bool = True) -> bool:
        """Look once, and report a change. Returns whether there was one."""
        seen = self._look(probe)
        if seen == self._seen:
            return False
        self._seen = seen
        self._changed()
        return True

    def tick(self, now: float, late: float) -> None:
        """Look, if anybody still does; called by the clock."""
        probe = now - self._probed >= PROBE
        if not self._interval:
            self._probed = now if probe else self._probed
            self._try(probe, late)
        elif now >= self._next and (self._away is None or self._away.done()):
            self._next, self._probed = now + self._interval, now
            look = beside(self._storage, self._try, True, late)
            self._away = asyncio.get_running_loop().create_task(look)
        # The time that a cell took from the loop is nobody's silence.
        for view, heard in list(self._heard.items()):
            self._heard[view] = heard + late
            if now - heard - late >= SILENCE:
                del self._heard[view]
        if not self._heard:
            self._target.left()
        if not self._heard or self._over:
            self.stop()

    def _begin(self) -> None:
        if not self._storage.blocking:
            self._seen = self._look(probe=True)
        if not self.following and not self._over:
            _clock.add(self)

    def _try(self, probe: bool, late: float) -> None:
        try:
            if late:
                self._target.stood_still(late)
            self.poll(probe)
        except Exception as problem:
            self.stop()
            self._failed(problem)

    def _look(self, probe: bool) -> object:
        try:
            seen = self._target.version(probe)
            self._over = self._target.over
        except (KassetteError, KeyError) as problem:
            return str(problem)
        return seen


class _Clock:
    """The one task that looks, as long as there is anything to follow."""

    def __init__(self) -> None:
        self.followers: set[Follower] = set()
        self._task: asyncio.Task[None] | None = None

    def add(self, follower: Follower) -> None:
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            if self._task is not None and self._task.get_loop().is_closed():
                self.followers.clear()
            self._task = loop.create_task(self._run())
        self.followers.add(follower)

    async def _run(self) -> None:
        before = time.monotonic()
        while self.followers:
            await asyncio.sleep(INTERVAL)
            now = time.monotonic()
            late = max(0.0, now - before - INTERVAL)
            for follower in list(self.followers):
                follower.tick(now, late if late >= BLOCKED else 0.0)
            before = time.monotonic()


_clock = _Clock()
