"""Calling a coroutine from code that cannot await, in a script and inside a live event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end and return its result.

    Where a loop is running in this thread, the coroutine gets a thread and a loop of its own and
    this thread blocks. Ctrl-C interrupts the coroutine, and is raised when it has settled.

    Args:
        make: Makes the coroutine, on the thread that it runs in.
    """
    if not _in_loop():
        return asyncio.run(make())
    runner = _Runner(make)
    thread = threading.Thread(target=runner.run, name="kassette sync")
    thread.start()
    interrupted: KeyboardInterrupt | None = None
    # Not thread.join: interrupted by Ctrl-C, it takes a running thread for one that has ended.
    while not runner.done.is_set():
        try:
            runner.done.wait()
        except KeyboardInterrupt as stop:
            interrupted = stop
            runner.cancel()
    if interrupted is not None:
        raise interrupted
    if runner.error is not None:
        raise runner.error
    result: T = runner.result  # set where there is no error
    return result


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Runner:
    def __init__(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._make = make
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = threading.Event()

    def run(self) -> None:
        try:
            self.result = self._context.run(asyncio.run, self._main())
        except BaseException as problem:
            self.error = problem
        finally:
            self.done.set()

    async def _main(self) -> Any:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        return await self._make()

    def cancel(self) -> None:
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
