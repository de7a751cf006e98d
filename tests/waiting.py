"""Waiting for what has to have happened, instead of for a time in which it should."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any

from kassette_nb.storage import Storage


async def until_recorded(storage: Storage, run_id: str = "r", lines: int = 1) -> None:
    """Wait until a run has so many lines."""
    while True:
        try:
            found = storage.read(run_id)
        except KeyError:
            found = None
        if found is not None and found[0].count(b"\n") >= lines:
            return
        await asyncio.sleep(0.005)


async def outlived(
    session: Coroutine[Any, Any, Any],
    storage: Storage,
    called: threading.Event,
    go: threading.Event,
    run_id: str = "r",
) -> None:
    """Cancel a session once its thread has been called, let that go on, and wait until it is over.

    Args:
        session: The session's call.
        storage: Where its run is.
        called: Set by the thread.
        go: What the thread waits for.
        run_id: The run.
    """
    task = asyncio.create_task(session)
    await asyncio.to_thread(called.wait)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled(), "a cancelled caller gets its exception at once"
    go.set()
    while storage.holder(run_id) is not None:  # noqa: ASYNC110  # a thread frees it
        await asyncio.sleep(0.01)
