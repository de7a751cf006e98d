"""The model calls of a session that are not settled yet, and what becomes of them.

A transport sees requests, not calls: whether a failed one was the last attempt shows only when
the workflow goes on with something else. Until then the call is unsettled: the same request again
is its next attempt, and whatever comes instead settles it first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from .branch import Branch

T = TypeVar("T")


class Unsettled(Protocol):
    """A model call that has failed, or whose answer is still being read."""

    #: Who makes it: a task or a thread.
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

    def abandon(self) -> None:
        """Take note that nobody will read the rest: the session ends."""
        ...


def _finished(branch: Branch, path: str) -> bool:
    below = not path or branch.path.startswith(f"{path}/")
    return below and branch.task is not None and branch.task.done()


class ModelCalls:
    """What a session knows of its model calls."""

    def __init__(self) -> None:
        #: Whether code beside the workflow's own task may still call a model.
        self.accepts = True
        #: The session's own loop, once it runs.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._unsettled: list[Unsettled] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        #: The failure that was handed back last, by who asked: an SDK that tries again gets the
        #: same one.
        self.failures: dict[object, tuple[Any, int, Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._unsettled)

    def add(self, call: Unsettled) -> None:
        """Keep a call until it is settled."""
        if call not in self._unsettled:
            self._unsettled.append(call)

    def remove(self, call: Unsettled) -> None:
        """Forget a call: it is settled."""
        if call in self._unsettled:
            self._unsettled.remove(call)

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
            elif not call.ordered and isinstance(call.caller, asyncio.Task) and call.caller.done():
                call.give_up()

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
