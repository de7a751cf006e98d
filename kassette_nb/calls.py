"""Running a step's function, on the loop or in a thread that may outlive it.

A thread cannot be cancelled, and what it does is paid for. So a plain function that is still
running when its caller is interrupted is recorded when it returns, by the thread itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any

import msgspec

from .arrival import Arrival
from .errors import JournalValueError

_SPECIAL = (
    inspect.CO_COROUTINE
    | inspect.CO_GENERATOR
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)
#: What is not done by a step's function but to it.
INTERRUPTIONS = (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)
Job = Callable[[], None]
_Jobs = SimpleQueue[tuple[Job, Job] | None]


class Outcome(msgspec.Struct):
    """What a function did: returned ``value``, or raised ``error``."""

    value: Any = None
    error: BaseException | None = None


class Workers:
    """Threads for plain functions, kept from one step to the next of a session."""

    def __init__(self) -> None:
        self._idle: list[_Jobs] = []
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, job: Job, told: Job) -> None:
        """Run the job in an idle thread, or in a new one; then ``told``, which must be short.

        The thread counts as idle before ``told``: whoever hears from it and goes on at once finds
        it, and the two do not meet at the lock.
        """
        with self._lock:
            queue = self._idle.pop() if self._idle else None
        if queue is None:
            queue = SimpleQueue()
            # Not a daemon: the interpreter must not end in the middle of a side effect.
            threading.Thread(target=self._work, args=(queue,), name="kassette step").start()
        queue.put((job, told))

    def close(self) -> None:
        """Let the idle threads end; busy ones end when their job is done."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for queue in idle:
            queue.put(None)

    def _work(self, queue: _Jobs) -> None:
        while (work := queue.get()) is not None:
            job, told = work
            job()
            with self._lock:
                closed = self._closed
                if not closed:
                    self._idle.append(queue)
            told()
            del work, job, told
            if closed:
                return


class ThreadCall:
    """One call of a plain function. Exactly one side takes its outcome: the awaiting coroutine,
    or, when that was interrupted first, ``late``.

    Args:
        late: Called with the outcome when nobody waits for it any more.
    """

    def __init__(self, workers: Workers, late: Callable[[Outcome], None]) -> None:
        self._workers = workers
        self._late = late
        self._lock = threading.Lock()
        self._outcome: Outcome | None = None
        self._abandoned = False

    async def run(self, fn: Callable[[], Any]) -> Outcome:
        """Run ``fn`` in a thread, with the caller's context variables."""
        arrival = Arrival(asyncio.get_running_loop())
        context = contextvars.copy_context()

        def job() -> None:
            try:
                outcome = Outcome(value=context.run(fn))
            except BaseException as error:  # SystemExit too: it must not end a worker silently
                outcome = Outcome(error=error)
            with self._lock:
                self._outcome = outcome
                abandoned = self._abandoned
            if abandoned:
                self._late(outcome)

        def told() -> None:
            # A closed loop refuses it; its interrupted coroutine takes the outcome, or did.
            with contextlib.suppress(RuntimeError):
                arrival.arrive()

        self._workers.submit(job, told)
        try:
            await arrival
        except BaseException:
            with self._lock:
                self._abandoned = True
                outcome = self._outcome
            if outcome is not None:
                self._late(outcome)
            raise
        assert self._outcome is not None, "the job sets it before it says so"
        return self._outcome


def is_async(fn: Callable[..., object]) -> bool:
    """Tell whether calling ``fn`` gives a coroutine.

    Raises:
        JournalValueError: It is a generator function, whose result nobody could record.
    """
    given: object = fn
    if not callable(given):
        if inspect.iscoroutine(given):
            given.close()
        raise JournalValueError(
            f"a step takes a function and its arguments, not {type(given).__name__!r}: write "
            "ctx.step('name', fn, x) instead of ctx.step('name', fn(x)). Nothing was recorded.",
            path="fn",
            reason="not a function",
        )
    code = getattr(fn, "__code__", None)
    if code is not None:
        special = code.co_flags & _SPECIAL
        if special in (0, inspect.CO_COROUTINE):
            return bool(special)
    if inspect.iscoroutinefunction(fn):
        return True
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise JournalValueError(
            f"{getattr(fn, '__qualname__', fn)!r} is a generator function; a step records one "
            "value. Collect what it yields in a function that returns a list.",
            path="fn",
            reason="a generator function",
        )
    return inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004  # async __call__


async def settle(fn: Callable[..., Awaitable[Any]], /, *args: Any, **kwargs: Any) -> Outcome:
    """Call an async function and return what it did, a refused argument included.

    Interruptions pass.
    """
    try:
        return Outcome(value=await fn(*args, **kwargs))
    except INTERRUPTIONS:
        raise
    except BaseException as error:  # SystemExit is what the function did, not our end
        return Outcome(error=error)


async def awaited(value: Awaitable[Any]) -> Any:
    """Await what a function returned."""
    return await value
