"""Entries that get ready together share one write."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from .entries import Known
from .storage import settled

_Queue = list[tuple[Known, asyncio.Future[None]]]


class Batches:
    """Gathers the entries of one turn of the loop and appends them as one batch.

    Args:
        append: Makes a batch durable; callable from any thread.
        blocking: Whether that takes network time: then it is called in a thread, one call at a
            time, and what gets ready meanwhile shares the next.
    """

    def __init__(self, append: Callable[..., None], blocking: bool) -> None:
        self._append = append
        self._blocking = blocking
        self._flying = False
        self._queue: _Queue = []

    async def join(self, entry: Known) -> None:
        """Append an entry with all that are ready. Durable on return, also when cancelled.

        Raises:
            KassetteError: Of the append; every entry of the batch gets the error.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._queue.append((entry, done))
        if len(self._queue) == 1:
            loop.call_soon(self._flush)
        if self._blocking:
            await settled(done)
            return done.result()
        try:
            await done
        except asyncio.CancelledError:
            self._flush()  # what it carries has happened, and the session may end now
            raise

    def _flush(self) -> None:
        if self._flying or not self._queue:
            return
        queue, self._queue = self._queue, []
        if not self._blocking:
            _tell(queue, self._attempt(queue))
            return
        loop = asyncio.get_running_loop()
        self._flying = True

        def fly() -> None:
            problem = self._attempt(queue)
            with contextlib.suppress(RuntimeError):  # the loop is gone, and who waited there
                loop.call_soon_threadsafe(self._land, queue, problem)

        # Not a daemon: the interpreter must not end in the middle of a write.
        threading.Thread(target=fly, name="kassette append").start()

    def _land(self, queue: _Queue, problem: BaseException | None) -> None:
        self._flying = False
        _tell(queue, problem)
        self._flush()

    def _attempt(self, queue: _Queue) -> BaseException | None:
        try:
            self._append(*(entry for entry, _ in queue))
        except BaseException as problem:
            return problem
        return None


def _tell(queue: _Queue, problem: BaseException | None) -> None:
    for _, done in queue:
        if done.done():
            continue
        if problem is None:
            done.set_result(None)
        else:
            done.set_exception(problem)
