"""Calling a storage from a coroutine without holding up its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from .base import Storage

T = TypeVar("T")


async def beside(storage: Storage, call: Callable[..., T], /, *args: Any) -> T:
    """Call at once, or in a thread where the storage takes network time.

    A thread cannot be stopped, so a cancelled caller gets its exception when the call is over:
    what it did is done.
    """
    if not storage.blocking:
        return call(*args)
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    outcome: list[T] = []
    problems: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(call(*args))
        except BaseException as problem:
            problems.append(problem)
        finally:
            with contextlib.suppress(RuntimeError):  # its loop is gone, and so is the caller
                loop.call_soon_threadsafe(over.set_result, None)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), name="kassette storage").start()
    await settled(over)
    if problems:
        raise problems[0]
    return outcome[0]


async def settled(over: asyncio.Future[None]) -> None:
    """Wait until the future is done, also when cancelled meanwhile; that is raised then."""
    cancelled: asyncio.CancelledError | None = None
    while not over.done():
        try:
            await asyncio.shield(over)
        except asyncio.CancelledError as stop:
            if over.cancelled():
                raise
            cancelled = stop
        except BaseException:
            break  # the future's own; whoever owns it looks
    if cancelled is not None:
        raise cancelled
