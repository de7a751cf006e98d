"""Following journals as they grow, also those that another process writes.

One poll a run and kernel, whoever looks at it. It costs one look at the file's size, or one
conditional GET that a thread makes; the lock is only probed where the answer can have changed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from .. import background
from ..errors import KassetteError
from ..storage import Storage, beside

#: Seconds between two looks: a change is seen within half a second, at most four times a second.
INTERVAL = 0.25
#: The same where each look is a request that somebody pays for.
INTERVAL_REMOTE = 1.0
#: Seconds without a sign from any view after which nobody is looking any more.
SILENCE = 60.0
#: Seconds between two looks at who holds an open run.
PROBE = 1.0


class Followed(Protocol):
    """What is followed: anything whose state has a comparable version."""

    def version(self, probe: bool) -> object:
        """Return something that differs after a change; ``probe`` also asks who holds it."""
        ...


class Follower:
    """Calls ``changed`` on the kernel's loop after each change, while somebody looks.

    Args:
        target: What to follow.
        changed: Called with nothing; must not raise. Where a look takes network time it is
            called in a thread.
        storage: Where the target is kept.
    """

    def __init__(self, target: Followed, changed: Callable[[], None], storage: Storage) -> None:
        self._target = target
        self._changed = changed
        self._storage = storage
        self._interval = INTERVAL_REMOTE if storage.blocking else INTERVAL
        self._task: asyncio.Task[None] | None = None
        self._seen: object = None
        self._heard = 0.0

    @property
    def following(self) -> bool:
        """Whether it polls now."""
        return self._task is not None and not self._task.done()

    def here(self) -> None:
        """Take note that a view is there; begin to follow if nobody was."""
        self._heard = time.monotonic()
        loop = background.home()
        if loop is not None and not self.following:  # without one there is no kernel to wait in
            background.call_home(loop, self._begin)

    def _begin(self) -> None:
        if not self.following:
            if not self._storage.blocking:
                self._seen = self._look(probe=True)
            self._task = asyncio.get_running_loop().create_task(self._follow())

    def stop(self) -> None:
        """Stop following."""
        task, self._task = self._task, None
        if task is not None:
            background.call_home(task.get_loop(), task.cancel)  # type: ignore[arg-type]  # bool

    def poll(self, probe: bool = True) -> bool:
        """Look once, and report a change. Returns whether there was one."""
        seen = self._look(probe)
        if seen == self._seen:
            return False
        self._seen = seen
        self._changed()
        return True

    async def _follow(self) -> None:
        probed = time.monotonic()
        if self._storage.blocking:
            self._seen = await beside(self._storage, self._look, True)
        while time.monotonic() - self._heard < SILENCE:
            await asyncio.sleep(self._interval)
            probe = time.monotonic() - probed >= PROBE
            if probe:
                probed = time.monotonic()
            await beside(self._storage, self.poll, probe)

    def _look(self, probe: bool) -> object:
        try:
            return self._target.version(probe)
        except (KassetteError, KeyError) as problem:
            return str(problem)
