"""The model calls of a session that are not settled yet, and what becomes of them.

A transport sees requests, not calls: whether a failed one was the last attempt shows only when
the workflow goes on with something else. Until then the call is unsettled: the same request again
is its next attempt, and whatever comes instead settles it first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from .branch import Branch

T = TypeVar("T")


class Unsettled(Protocol):
    """A model call that has failed, or whose answer is still being read."""

    #: Who makes it: a task or a thread; None once it has given up.
    caller: object
    #: Where it is made, and its id there.
    branch: Branch
    step_id: str
    #: Whether it has its place in the order of its branch.
    ordered: bool

    def is_for(self, request: Any) -> bool:
        """Tell whether a request is this call's next attempt."""
        ...

    def settle(self, asked: str, did: str = "went on to") -> None:
        """Record its failure, since the workflow goes on.

        Args:
            asked: What the workflow does now …
            did: … and in which way it came to it, for a sentence.

        Raises:
            KassetteError: What was read of it cannot be recorded; the session must stop.
        """
        ...

    async def leave(self) -> None:
        """Take note that the workflow is over and reads no further; close the connection."""
        ...

    def give_up(self) -> None:
        """Record its failure, if it has failed: whoever made it cannot try again."""
        ...

    def gave_up(self) -> None:
        """Take note that its caller was cancelled; nobody makes it any more."""
        ...

    def tell_unheard(self) -> None:
        """Record that its caller had given up before the workflow went on."""
        ...

    def abandon(self) -> None:
        """Take note that nobody will read the rest: the session ends."""
        ...


def _finished(branch: Branch, path: str) -> bool:
    below = not path or branch.path.startswith(f"{path}/")
    return below and branch.task is not None and branch.task.done()


def _gone(caller: object) -> bool:
    return caller is None or (isinstance(caller, asyncio.Task) and caller.done())


class ModelCalls:
    """What a session knows of its model calls."""

    def __init__(self) -> None:
        #: Whether code beside the workflow's own task may still call a model.
        self.accepts = True
        #: The session's own loop, once it runs.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._unsettled: list[Unsettled] = []
        #: Those that a task waits for, with how often it had been cancelled before.
        self._awaited: dict[Unsettled, tuple[asyncio.Task[Any], int]] = {}
        #: Those whose callers have given up, until the workflow goes on.
        self._unheard: list[Unsettled] = []
        #: How many replayed calls wait for their callers to give up again.
        self.silent = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        #: The failure that was handed back last, by who asked: an SDK that tries again gets the
        #: same one.
        self.failures: dict[object, tuple[Any, int, Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._unsettled or self._unheard or self._awaited)

    def add(self, call: Unsettled) -> None:
        """Keep a call until it is settled."""
        if call not in self._unsettled:
            self._unsettled.append(call)

    def remove(self, call: Unsettled) -> None:
        """Forget a call: it is settled."""
        if call in self._unsettled:
            self._unsettled.remove(call)

    @contextmanager
    def awaited(self, call: Unsettled) -> Iterator[None]:
        """Let a call be known while the task that made it waits for its answer."""
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._awaited[call] = task, task.cancelling()
        try:
            yield
        finally:
            del self._awaited[call]

    def gave_up(self, call: Unsettled) -> None:
        """Take note that the caller of a call was cancelled while the session goes on.

        It counts when the workflow goes on without the answer: where it is interrupted instead,
        and begins anew, the answer may be in time.
        """
        self._unheard.append(call)

    def _tell_unheard(self, of: Callable[[Unsettled], bool]) -> None:
        for call in [call for call in self._unheard if of(call)]:
            self._unheard.remove(call)
            call.tell_unheard()

    def again(self, caller: object, request: Any) -> Unsettled | None:
        """Return the call whose next attempt this request is, if there is one."""
        own = (call for call in self._unsettled if call.caller is caller)
        return next((call for call in own if call.is_for(request)), None)

    def settle_of(self, caller: object, asked: str) -> None:
        """Settle what a task or thread outside of the branches left behind."""
        for call in [c for c in self._unsettled if c.caller is caller and not c.ordered]:
            call.settle(asked)

    def settle(self, branch: Branch, asked: str) -> None:
        """Settle what a branch, or a finished one on it, left behind.

        What another task got as a failure, and is done, may be why the branch acts now: it stands
        before that.

        Raises:
            KassetteError: See `Unsettled.settle`.
        """
        for call in list(self._unsettled):
            if call.ordered and (call.branch is branch or _finished(call.branch, branch.path)):
                call.settle(asked)
            elif not call.ordered and _gone(call.caller):
                call.give_up()
        for waiting, (task, count) in self._awaited.items():
            if task.cancelling() > count and waiting.branch.closed is None:
                waiting.gave_up()  # it hears of it at its next turn
        path = branch.path
        self._tell_unheard(lambda c: c.branch is branch or _finished(c.branch, path))

    async def leave(self) -> None:
        """Close the streams that the workflow has left open: what came of them becomes a note."""
        for call in list(self._unsettled):
            if call.ordered:
                await call.leave()

    def end(self, asked: str, did: str) -> Unsettled | None:
        """Settle all before the session's last entries.

        Args:
            asked: See `Unsettled.settle`.
            did: The same.

        Returns:
            The newest of those that the workflow itself made, None if there is none.

        Raises:
            KassetteError: See `Unsettled.settle`.
        """
        last = None
        for call in list(self._unsettled):
            if call.ordered:
                call.settle(asked, did)
                last = call
            else:
                call.abandon()
        self._tell_unheard(lambda _: True)
        return last

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a call in a task that outlives whoever asked for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller has it, or is gone

    async def settled(
        self, problem: BaseException | None, cancel: bool = False
    ) -> BaseException | None:
        """Take no further calls and wait for the tasks, through cancellations of the waiting one.

        Args:
            problem: What ended the workflow; a cancellation cancels them, too.
            cancel: Cancel them: the run is called off.

        Returns:
            What ended the workflow, or the cancellation that came meanwhile.
        """
        self.accepts = False
        cancel = cancel or isinstance(problem, asyncio.CancelledError)
        while self._tasks:
            if cancel:
                for task in self._tasks:
                    task.cancel()
            try:
                await asyncio.wait(self._tasks)
            except asyncio.CancelledError as stop:
                problem, cancel = stop, True
        return problem
