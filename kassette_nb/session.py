"""One attempt at a run: replay what is recorded, go live, settle, end, free the lock.

Three rules hold everywhere here. A branch belongs to the task that got it. Once a session begins
to end it is closed: every call raises the same thing again and nothing is written. And a session
settles all that it started before it ends and frees the lock.

What a workflow calls (steps, waits, parallel blocks) is built on this in modules of its own.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

import msgspec
from msgspec import UNSET, field

from . import values
from .branch import Branch
from .calls import Workers
from .clock import Clock
from .entries import (
    Cancel,
    Complete,
    ErrorInfo,
    Failure,
    Known,
    Payload,
    Resume,
    Start,
    Step,
    Suspend,
)
from .errors import (
    ConcurrentUseError,
    InterruptedRunError,
    KassetteError,
    RunCancelledError,
    StepFailedError,
    Suspended,
)
from .journal import Writer
from .replay import Cursor
from .storage import Hold
from .values import JSON


class LiveForbidden(BaseException):
    """Ends a verification at the first live act; ``asked`` says what it would have been."""

    def __init__(self, asked: str) -> None:
        super().__init__(asked)
        self.asked = asked


class Ending(msgspec.Struct):
    """How a session ended: with a terminal entry, or with the suspensions it waits for."""

    terminal: Complete | Failure | Cancel | None = None
    suspends: list[Suspend] = field(default_factory=list)


class Session:
    """Drives one call of a workflow's function against a journal.

    Args:
        cursor: What is recorded.
        writer: Appends; None to verify: nothing may go live.
        hold: Freed when all that the session started has settled; None to verify.
        opening: The entry that opens the session, written just before the first live act; None
            when it is on record already.
        clock: Tells when steps start, and how long to sleep.
        max_payload: The largest value to record, in bytes of JSON.
        transient: Exceptions that interrupt instead of failing a step or the run.
    """

    def __init__(
        self,
        cursor: Cursor,
        writer: Writer | None,
        hold: Hold | None,
        opening: Start | Resume | None,
        clock: Clock,
        max_payload: int = values.MAX_PAYLOAD,
        transient: tuple[type[BaseException], ...] = (),
    ) -> None:
        self.run_id = cursor.run_id
        self.number = writer.session if writer else 0
        self.replaying = True
        self.replayed = 0
        self.cursor = cursor
        self.clock = clock
        self.max_payload = max_payload
        self.transient = transient
        self.workers = Workers()
        self.suspends: list[Suspend] = []
        #: How many branches run side by side: alone, an entry is written without a turn's delay.
        self.strands = 1
        self._writer = writer
        self._hold = hold
        self._opening = opening
        self._live: set[str] = set()
        self._task: asyncio.Task[Ending] | None = None
        self._closed: BaseException | None = None
        self._cancel: Cancel | None = None
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

    def cancel(self, reason: str | None) -> None:
        """End the run with a ``cancel`` entry once what is in flight has settled.

        Must be called on the session's own loop.
        """
        self._cancel = self._cancel or Cancel(session=self.number, reason=reason)
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
        return Call(self, branch, verb, name)

    def recall(self, branch: Branch, name: str) -> Step | None:
        """Return the step recorded next on the branch, if this is it and nothing forbids the call.

        A replay that fits takes this short way; None sends the caller the long one, with all its
        checks and their errors. Nothing is taken then.
        """
        if (
            self._closed is not None
            or branch.closed is not None
            or branch.in_flight is not None
            or _current_task() is not branch.task
        ):
            return None
        step = self.cursor.recall(branch.path, branch.names, name)
        if step is not None:
            self.replayed += 1
        return step

    def go_live(self, branch: str, asked: str) -> None:
        """Pass from replay to live: nothing recorded may be left over; open the session."""
        if branch in self._live:
            return  # nothing was left over, and a journal grows at its end only
        self.cursor.go_live(branch, asked)
        if self._writer is None:
            raise LiveForbidden(asked)
        self._live.add(branch)
        self.replaying = False
        opening, self._opening = self._opening, None
        if opening is not None:
            self._writer.append(opening)
            if isinstance(opening, Resume):
                self.cursor.answers.setdefault(opening.step_id or opening.event_name, opening)

    async def record(self, entry: Known) -> None:
        """Append an entry; durable on return. Branches that are ready together share one write."""
        assert self._writer is not None, "only a live session records"
        if self.strands == 1:
            self._writer.append(entry)
        else:
            await self._writer.join(entry)

    def record_now(self, entry: Known) -> None:
        """Append an entry from any thread; durable on return."""
        assert self._writer is not None, "only a live session records"
        self._writer.append(entry)

    def wait(self, asked: str) -> None:
        """Take note that the workflow is about to wait in this process."""
        if self._writer is None:
            raise LiveForbidden(asked)

    def optional(self, value: JSON, what: str) -> Payload:
        """Return a value's JSON, or nothing for None."""
        if value is None:
            return UNSET
        return values.encode(value, what=what, limit=self.max_payload)

    def close(self, reason: BaseException) -> None:
        """Let every later call raise this; the first reason counts."""
        if self._closed is None:
            self._closed = reason

    @property
    def closed(self) -> BaseException | None:
        """What every call raises, once the session has begun to end."""
        return self._closed

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
        if self._hold is not None:
            self._hold.release()

    # ------------------------------------------------------------------------------- the end

    async def _drive(self, body: Callable[[Branch], Awaitable[Any]]) -> Ending:
        branch = Branch()
        branch.task = asyncio.current_task()
        problem: BaseException | None = None
        value: Any = None
        try:
            try:
                value = await body(branch)
            except BaseException as raised:
                problem = raised
            if self._cancel is not None:
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
        if self._cancel is not None:
            self.record_now(self._cancel)  # opens its session itself where nothing else did
            return Ending(terminal=self._cancel)
        if problem is not None and not isinstance(problem, Exception | Suspended):
            raise problem  # cancelled, or the process is told to stop: whatever else was going on
        if self._closed is not None:
            raise self._closed
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
            ending: Complete | Failure = Complete(session=self.number, result=encoded)
        elif isinstance(problem, StepFailedError) or not isinstance(
            problem, (KassetteError, *self.transient)
        ):
            ending = failure(self.number, problem)
            self.go_live("", f"to fail with {ending.error.name}")
        else:
            raise problem
        self.record_now(ending)
        return Ending(terminal=ending)

    def _suspend(self) -> Ending:
        """Write every question of this session, together, so that a torn group is seen."""
        for entry in self.suspends[:-1]:
            entry.more = True
        assert self._writer is not None, "going live comes before a suspension"
        self._writer.append(*self.suspends)
        return Ending(suspends=self.suspends)


class Call:
    """The guard around one call; see `Session.call`. As a text, what is asked for."""

    __slots__ = ("_branch", "_name", "_session", "_verb")

    def __init__(self, session: Session, branch: Branch, verb: str, name: str) -> None:
        self._session = session
        self._branch = branch
        self._verb = verb
        self._name = name

    def __str__(self) -> str:
        return f"{self._verb} {self._name!r}" if self._name else self._verb

    def __enter__(self) -> None:
        session, branch = self._session, self._branch
        closed = session.closed or branch.closed
        if closed is not None:
            raise closed.with_traceback(None)
        if branch.in_flight is not None or _current_task() is not branch.task:
            reason = (
                f"while {branch.in_flight} is still in flight"
                if branch.in_flight
                else "from another task or thread than the one that got this ctx (gather, "
                "TaskGroup and wait_for make tasks of their own)"
            )
            error = ConcurrentUseError(
                f"run {session.run_id!r}: {self} was called {reason}. Ids depend on the order of "
                "calls, so a ctx takes one call at a time, from its own task: await each call "
                "where you make it, use ctx.parallel to do things side by side and "
                "ctx.with_options(timeout=…) to limit their time.",
                run_id=session.run_id,
                asked=str(self),
            )
            session.close(error)
            raise error
        branch.in_flight = self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._branch.in_flight = None
        if problem is None or isinstance(problem, StepFailedError):
            return
        if isinstance(problem, Suspended):
            self._branch.closed = problem
        else:
            self._session.close(self._interruption(problem))

    def _interruption(self, problem: BaseException) -> BaseException:
        """Return what a session that was stopped by ``problem`` says from now on."""
        session = self._session
        if isinstance(problem, (KassetteError, *session.transient)):
            return problem
        if not isinstance(problem, Exception | asyncio.CancelledError):
            return problem  # KeyboardInterrupt and its like reach the caller as they are
        what = f"({type(problem).__name__}: {problem})" if str(problem) else "(cancelled)"
        hint = (
            " To limit the time of a step, use ctx.with_options(timeout=…) instead of a timeout "
            "around it."
            if isinstance(problem, asyncio.CancelledError)
            else ""
        )
        error = InterruptedRunError(
            f"run {session.run_id!r}: {self} was interrupted {what}; it was not recorded, and the "
            f"session has stopped. Start the run again to continue.{hint}",
            run_id=session.run_id,
        )
        error.__cause__ = problem
        return error


def failure(session: int, problem: BaseException) -> Failure:
    """Return the entry of an exception that ends the run."""
    return Failure(
        session=session,
        error=describe(problem),
        traceback=_text("".join(traceback.format_exception(problem))),
        step_id=problem.step_id if isinstance(problem, StepFailedError) else None,
    )


def describe(error: BaseException) -> ErrorInfo:
    """Return an exception as it is recorded; a failed step's is the original's."""
    if isinstance(error, StepFailedError):
        return ErrorInfo(name=error.name, message=_text(error.message))
    return ErrorInfo(name=type(error).__name__, message=_text(str(error)))


def told(error: BaseException) -> ErrorInfo:
    """Return an exception with its traceback, from the function of the step on."""
    info = describe(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(_OURS):
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    info.traceback = _text("".join(lines))[-TRACEBACK:]
    return info


#: The end of a traceback is what tells; characters.
TRACEBACK = 8_000
_OURS = ("kassette_nb.", "tenacity", "asyncio.")


def _text(text: str) -> str:
    """Return a text that UTF-8 can carry; an exception's message is not a value to refuse."""
    return text.encode(errors="backslashreplace").decode()


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return None


def _retrieve(task: asyncio.Task[Ending]) -> None:
    """Take note of how a settled session ended; its caller has its exception already."""
    if not task.cancelled():
        task.exception()
