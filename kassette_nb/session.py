"""One attempt at a run: replay what is recorded, go live, settle, end, free the lock.

Three rules hold everywhere here. A branch belongs to the task that got it. Once a session begins
to end it is closed: every call raises the same thing again and nothing is written. And a session
settles all that it started before it ends and frees the lock.

What a workflow calls (steps, waits, parallel blocks) is built on this in modules of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import field

from . import values
from .branch import Branch, Call
from .budget import Meter
from .calls import Workers
from .clock import Clock
from .entries import (
    Cancel,
    Complete,
    Failure,
    Note,
    Resume,
    Start,
    Step,
    Suspend,
)
from .errors import (
    BudgetExceededError,
    InterruptedRunError,
    KassetteError,
    LiveForbidden,
    RunCancelledError,
    SessionStopped,
    StepFailedError,
    Suspended,
    WorkspaceError,
)
from .failures import failure
from .journal import Writer
from .modelcalls import ModelCalls
from .recording import Recording
from .replay import Cursor
from .scope import Scope, scope
from .storage import Hold
from .usage import running

if TYPE_CHECKING:
    from .workspace import Recorder


class Ending(msgspec.Struct):
    """How a session ended: with a terminal entry, or with the suspensions it waits for."""

    terminal: Complete | Failure | Cancel | None = None
    suspends: list[Suspend] = field(default_factory=list)


class Session(Recording):
    """Drives one call of a workflow's function against a journal.

    Args:
        cursor: What is recorded.
        writer: Appends; None to verify: nothing may go live.
        hold: Freed when all that the session started has settled; None to verify.
        opening: The entry that opens the session, written just before the first live act; None
            when it is on record already.
        clock: Tells when steps start, and how long to sleep.
        meter: Counts what the run spends where it has a budget.
        max_payload: The largest value to record, in bytes of JSON.
        transient: Exceptions that interrupt instead of failing a step or the run.
        workspace: Keeps the files of the run, where it has any.
        directory: Where they are, for a verification, which looks at none.
    """

    def __init__(
        self,
        cursor: Cursor,
        writer: Writer | None,
        hold: Hold | None,
        opening: Start | Resume | None,
        clock: Clock,
        meter: Meter | None = None,
        max_payload: int = values.MAX_PAYLOAD,
        transient: tuple[type[BaseException], ...] = (),
        workspace: Recorder | None = None,
        directory: Path | None = None,
    ) -> None:
        super().__init__(cursor, writer, opening, meter, workspace, max_payload)
        self.clock = clock
        self.transient = transient
        self._directory = workspace.path if workspace is not None else directory
        self.workers = Workers()
        self.models = ModelCalls()
        self._hold = hold
        self._branches: dict[str, Branch] = {}
        self._task: asyncio.Task[Ending] | None = None
        self._caller: asyncio.Task[Any] | None = None
        #: When it began, on the monotonic clock.
        self.began = time.monotonic()
        self._cancels = 0
        #: What every call raises, once the session has begun to end.
        self.closed: BaseException | None = None
        self._cancel: Cancel | None = None
        #: Whether it is decided how the session ends: a cancellation comes too late now.
        self._decided = False
        # The session itself counts as one; every thread that outlives its caller as one more.
        self._open = 1
        self._lock = threading.Lock()

    async def run(self, body: Callable[[Branch], Awaitable[Any]]) -> Ending:
        """Call the workflow and settle what it started.

        Returns:
            How the session ended; its last entries are durable and the run is free.

        Raises:
            BaseException: The session was interrupted; the run is open. The run becomes free
                when the last thing that it started has returned.
        """
        # A task of its own, so that a cancelled caller gets its exception at once while the
        # session settles, and so that cancelling the run does not cancel the caller.
        self._caller = asyncio.current_task()
        self._cancels = self._caller.cancelling() if self._caller else 0
        self._task = task = asyncio.create_task(self._drive(body))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and not (caller and caller.cancelling()):
                raise InterruptedRunError(
                    f"run {self.run_id!r}: its task was cancelled from inside; the run is open. "
                    "Start it again to continue.",
                    run_id=self.run_id,
                ) from None
            # Code that cleans up after a cancellation may not act any more.
            stopped = f"run {self.run_id!r}: its caller was cancelled. Start it again to continue."
            self.close(InterruptedRunError(stopped, run_id=self.run_id))
            task.cancel()
            task.add_done_callback(_retrieve)
            raise

    def call_off(self, reason: str | None) -> bool:
        """Let the run end with a ``cancel`` entry, from any thread; see `cancel` for what is next.

        Returns:
            Whether it will. False: it has come to another end of its session meanwhile.
        """
        with self._lock:
            if not self._decided:
                self._cancel = self._cancel or Cancel(session=self.number, reason=reason or None)
            return self._cancel is not None

    def cancel(self, reason: str | None) -> None:
        """End a run that is called off once what is in flight has settled.

        Must be called on the session's own loop.
        """
        self.close(
            RunCancelledError(
                f"run {self.run_id!r} is being cancelled ({reason or 'no reason given'}).",
                run_id=self.run_id,
                state="cancelled",
                reason=reason,
            )
        )
        if self._task is not None:
            self._task.cancel()

    # ------------------------------------------------------------- for what a workflow calls

    def call(self, branch: Branch, verb: str, name: str = "") -> Call:
        """Guard one call of a workflow: one at a time, from the branch's task, on an open ctx."""
        self._branches[branch.path] = branch
        return Call(self, branch, verb, name)

    @property
    def in_flight(self) -> tuple[str, ...]:
        """The ids of what is being called now, for whoever looks on."""
        calls = [(branch.names, branch.in_flight) for branch in list(self._branches.values())]
        return tuple(names.newest(call.name) for names, call in calls if call and call.name)

    def recall(self, branch: Branch, name: str) -> Step | None:
        """Return the step recorded next on the branch, if this is it and nothing forbids the call.

        A replay that fits takes this short way; None sends the caller the long one, with all its
        checks and their errors. Nothing is taken then.
        """
        try:
            if (
                self.closed is not None
                or branch.closed is not None
                or branch.in_flight is not None
                or asyncio.current_task() is not branch.task
            ):
                return None
        except RuntimeError:  # a thread without a loop
            return None
        step = self.cursor.recall(branch.names, name)
        if step is not None:
            self.replayed += 1
        return step

    def close(self, reason: BaseException) -> None:
        """Let every later call raise this; the first reason counts."""
        if self.closed is None:
            self.closed = reason

    @property
    def directory(self) -> Path:
        """See `Context.workspace`."""
        if self._directory is None:
            raise WorkspaceError(
                f"run {self.run_id!r} has no workspace: declare one, @kassette(workspace=…)."
            )
        return self._directory

    @property
    def abandoned(self) -> bool:
        """Whether the caller has been cancelled since it called.

        The workflow's own task cannot be asked: a TaskGroup of Python 3.11 leaves it marked.
        """
        return self._caller is not None and self._caller.cancelling() > self._cancels

    @property
    def over(self) -> bool:
        """Whether the session has ended: code that goes on behind it is outside of the run."""
        return self._open == 0

    def enter(self) -> None:
        """Count one more thing that has to return before the run is free."""
        with self._lock:
            self._open += 1

    def leave(self) -> None:
        """Count one thing less; the last one frees the run."""
        with self._lock:
            self._open -= 1
            if self._open:
                return
        self.workers.close()
        if self._writer is not None:
            self._writer.close()
        if self.workspace is not None:
            self.workspace.release()
        if self._hold is not None:
            self._hold.release()

    # ------------------------------------------------------------------------------- the end

    async def _drive(self, body: Callable[[Branch], Awaitable[Any]]) -> Ending:
        branch = Branch()
        branch.task = asyncio.current_task()
        running.set(None)  # a run started inside another one's step is not part of that step
        scope.set(Scope(self, branch))
        self.models.loop = asyncio.get_running_loop()
        problem: BaseException | None = None
        value: Any = None
        try:
            try:
                value = await body(branch)
            except BaseException as raised:
                problem = raised
            problem = await self.models.settled(problem, cancel=self._cancel is not None)
            await self.models.leave()
            ends = problem is None or isinstance(problem, Exception | Suspended)
            if self._cancel is not None or (ends and self.closed is None):
                await self._others_settled()
            return self._end(branch, value, problem)
        except BaseException as raised:
            self.close(raised)
            raise
        finally:
            problem = None
            self.leave()

    async def _others_settled(self) -> None:
        """Wait for threads that outlive their caller: a terminal entry comes after theirs."""
        while self._open > 1:  # noqa: ASYNC110  # a thread sets it, perhaps long after
            await asyncio.sleep(0.01)

    def _end(self, branch: Branch, value: Any, problem: BaseException | None) -> Ending:
        """Write the session's last entries, or raise what interrupted it."""
        with self._lock:
            self._decided = True
        if self._cancel is not None:
            self.record_now(self._cancel)  # opens its session itself where nothing else did
            return Ending(terminal=self._cancel)
        if isinstance(problem, SessionStopped | BaseExceptionGroup) and (
            self.closed or branch.closed
        ):
            problem = None  # what closed the session, or the branch, is what is told
        if problem is not None and not isinstance(problem, Exception | Suspended):
            raise problem  # cancelled, or the process is told to stop: whatever else was going on
        if isinstance(self.closed, BudgetExceededError):
            spent = failure(self.number, self.closed)
            self.record_now(spent)
            return Ending(terminal=spent)
        if self.closed is not None:
            if type(self.closed) is InterruptedRunError and self._cancelling():
                # Cancelled, whatever its own clean-up made of it.
                raise asyncio.CancelledError from self.closed
            raise self.closed
        if isinstance(branch.closed, LiveForbidden):
            raise branch.closed
        if branch.closed is not None:
            return self._suspend()
        if isinstance(problem, Suspended):
            raise InterruptedRunError(
                f"run {self.run_id!r}: Suspended was raised by hand; use `await ctx.suspend(…)`.",
                run_id=self.run_id,
            ) from problem
        if problem is None:
            encoded = values.encode(value, what="result of the workflow", limit=self.max_payload)
            self.go_live("", "the end of the workflow")
            self.models.end("its end", "came to")
            ending: Complete | Failure = Complete(session=self.number, result=encoded)
        elif isinstance(problem, StepFailedError) or not isinstance(
            problem, (KassetteError, *self.transient)
        ):
            ending = failure(self.number, problem)
            try:
                self.go_live("", f"to fail with {ending.error.name}")
                told = f"{ending.error.name}: {ending.error.message}".removesuffix(": ")
                last = self.models.end(told, "failed with")
            except KassetteError as unfit:
                raise unfit from problem  # what failed is what its author looks for
            if last is not None and ending.step_id is None:
                ending.step_id = last.step_id
        else:
            raise problem
        if unasked := self.cursor.unasked():
            self.record_now(Note(session=self.number, kind="unasked", data=values.encode(unasked)))
        self.record_now(ending)
        return Ending(terminal=ending)

    def _cancelling(self) -> bool:
        return self._task is not None and self._task.cancelling() > 0

    def _suspend(self) -> Ending:
        """Write every question of this session, together, so that a torn group is seen."""
        for entry in self.suspends[:-1]:
            entry.more = True
        assert self._writer is not None, "going live comes before a suspension"
        self.models.end("a suspension", "came to")
        self._writer.append(*self.suspends)
        return Ending(suspends=self.suspends)


def _retrieve(task: asyncio.Task[Ending]) -> None:
    """Take note of how a settled session ended; its caller has its exception already."""
    if not task.cancelled():
        task.exception()
