"""What a task waits for while a thread works for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any


class Arrival:
    """One task waits, any thread says when; the task runs in the very turn that hears of it.

    A future tells its task one turn of the loop later, and turns are most of what a short call in
    a thread costs. So this is a future as far as a task uses one.

    Source: the documentation of ``asyncio.isfuture``, on objects like futures.
    """

    _asyncio_future_blocking = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._arrived = False
        self._cancelled: asyncio.CancelledError | None = None
        self._wake: Callable[[Any], object] | None = None
        self._context: Context | None = None

    def arrive(self) -> None:
        """Wake the task, now or as soon as it waits. Callable from any thread.

        Raises:
            RuntimeError: Its loop is closed.
        """
        with self._lock:
            self._arrived = True
            wake, self._wake = self._wake, None
        if wake is not None:
            self._loop.call_soon_threadsafe(wake, self, context=self._context)

    def __await__(self) -> Generator[Arrival, None, None]:
        self._asyncio_future_blocking = True
        yield self

    # ------------------------------------------------------------------- what a task calls

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the task's loop."""
        return self._loop

    def add_done_callback(
        self, wake: Callable[[Any], object], *, context: Context | None = None
    ) -> None:
        """Take how the task is woken."""
        with self._lock:
            if not self._arrived:
                self._wake, self._context = wake, context
                return
        self._loop.call_soon(wake, self, context=context)

    def cancel(self, msg: Any = None) -> bool:
        """Wake the task with a CancelledError; False where it is being woken already."""
        with self._lock:
            wake, self._wake = self._wake, None
        if wake is None:
            return False
        self._cancelled = asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)
        self._loop.call_soon(wake, self, context=self._context)
        return True

    def result(self) -> None:
        """Raise the CancelledError, if it was one that woke the task."""
        cancelled, self._cancelled = self._cancelled, None
        if cancelled is not None:
            raise cancelled
