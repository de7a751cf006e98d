"""One attempt at a run: replay what is recorded, go live, settle, end, free the lock.

Three rules hold everywhere here. A ctx belongs to the task that got it. Once a session begins to
end its ctx is closed: every call raises the same thing again and nothing is written. And a session
settles all it started before it ends and frees the lock.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec import UNSET, Raw

from . import values
from .calls import Outcome, ThreadCall, Workers, is_async, settle
from .clock import Clock, stamp
from .context import Context
from .entries import Complete, ErrorInfo, Failure, Known, Payload, Resume, Start, Step, Suspend
from .errors import (
    ConcurrentUseError,
    InterruptedRunError,
    JournalValueError,
    KassetteError,
    StepFailedError,
    Suspended,
)
from .journal import Writer
from .redact import redact
from .replay import Cursor, Names, check_name
from .state import RESERVED_EVENTS
from .storage import Hold
from .values import JSON

#: Arguments are kept for people to read; larger ones (bytes of JSON) would make a journal grow
#: with the square of a conversation's length.
ARGS_LIMIT = 8 * 1024


class LiveForbidden(BaseException):
    """Ends a verification at the first live act; ``asked`` says what it would have been."""

    def __init__(self, asked: str) -> None:
        super().__init__(asked)
        self.asked = asked


@dataclass(slots=True)
class Ending:
    """How a session ended: with terminal entries, or with the suspensions it waits for."""

    terminal: Complete | Failure | None = None
    suspends: list[Suspend] = field(default_factory=list)


class Session:
    """Drives one call of a workflow's function against a journal.

    Args:
        cursor: What is recorded.
        writer: Appends; None to verify: nothing may go live.
        hold: Freed when all that the session started has settled; None to verify.
        opening: The entry that opens the session, written just before the first live act; None
            when it is on record already.
        clock: Tells when steps start.
        max_payload: The largest value to record, in bytes of JSON.
    """

    def __init__(
        self,
        cursor: Cursor,
        writer: Writer | None,
        hold: Hold | None,
        opening: Start | Resume | None,
        clock: Clock,
        max_payload: int = values.MAX_PAYLOAD,
    ) -> None:
        self.run_id = cursor.run_id
        self.number = writer.session if writer else 0
        self.replaying = True
        self._cursor = cursor
        self._writer = writer
        self._hold = hold
        self._opening = opening
        self._clock = clock
        self._max_payload = max_payload
        self._workers = Workers()
        self._task: asyncio.Task[Any] | None = None
        self._in_flight: str | None = None
        self._closed: BaseException | None = None
        self._suspends: list[Suspend] = []
        # The session itself counts as one; every thread that outlives it as one more.
        self._open = 1
        self._lock = threading.Lock()

    async def run(self, body: Callable[[Context], Awaitable[Any]]) -> Ending:
        """Call the workflow and settle what it started.

        Returns:
            How the session ended; its last entries are durable and the run is free.

        Raises:
            BaseException: The session was interrupted; the run is open. The run becomes free
                when the last thing it started has returned.
        """
        self._task = asyncio.current_task()
        problem: BaseException | None = None
        value: Any = None
        try:
            value = await body(Context(self, Names()))
        except BaseException as raised:
            problem = raised
        try:
            return self._end(value, problem)
        except BaseException as raised:
            self._close(raised)
            raise
        finally:
            problem = None
            self._leave()

    async def step(
        self,
        names: Names,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> JSON:
        """See `Context.step`."""
        self._enter(f"step {name!r}")
        try:
            step_id = names.take(name)
            self._cursor.ask(names.branch, step_id, "step")
            recorded = self._cursor.steps.get(step_id)
            if recorded is not None:
                return self._replayed(recorded)
            coroutine = is_async(fn)
            self._go_live(names.branch, f"step {step_id!r}")
            entry = Step(
                session=self.number,
                step_id=step_id,
                name=check_name(name),
                kind="step",
                started_at=stamp(self._clock.now()),
                args=_readable(fn, args, kwargs),
            )
            if coroutine:
                outcome = await settle(fn(*args, **kwargs))
            else:
                call = ThreadCall(self._workers, partial(self._record_late, entry))
                with self._lock:
                    self._open += 1
                outcome = await call.run(partial(fn, *args, **kwargs))
                with self._lock:
                    self._open -= 1
                if asyncio.iscoroutine(outcome.value):  # a lambda around an async function
                    outcome = await settle(outcome.value)
            return self._record(entry, outcome)
        except StepFailedError:
            raise
        except BaseException as problem:
            self._close(_interruption(self.run_id, f"step {name!r}", problem))
            raise
        finally:
            self._in_flight = None

    async def suspend(
        self, names: Names, event: str, prompt: str | None, schema: JSON, context: JSON
    ) -> JSON:
        """See `Context.suspend`."""
        self._enter(f"suspend {event!r}")
        try:
            if event in RESERVED_EVENTS:
                raise JournalValueError(
                    f"the event name {event!r} is reserved for the runtime; use another one.",
                    path="event",
                    reason="a reserved name",
                )
            step_id = names.take(event)
            self._cursor.ask(names.branch, step_id, "suspend")
            recorded = self._cursor.answers.get(step_id)
            if recorded is not None:
                return values.decode(recorded.value, what=f"answer to {step_id!r}")
            entry = Suspend(
                session=self.number,
                event_name=check_name(event),
                step_id=step_id,
                prompt=prompt,
                schema=self._optional(schema, f"schema of {step_id!r}"),
                context=self._optional(redact(context), f"context of {step_id!r}"),
            )
            self._go_live(names.branch, f"suspend {step_id!r}", step_id)
            answer = self._cursor.answers.get(step_id)
            if answer is not None:
                return values.decode(answer.value, what=f"answer to {step_id!r}")
            self._suspends.append(entry)
            raise Suspended(self.run_id, event)
        except BaseException as problem:
            self._close(_interruption(self.run_id, f"suspend {event!r}", problem))
            raise
        finally:
            self._in_flight = None

    def _enter(self, asked: str) -> None:
        if self._closed is not None:
            raise self._closed.with_traceback(None)
        task = _current_task()
        if self._in_flight is not None or task is not self._task:
            reason = (
                f"{self._in_flight} is still in flight"
                if self._in_flight
                else "it comes from another task or thread than the workflow's"
            )
            error = ConcurrentUseError(
                f"run {self.run_id!r}: {asked} was called while {reason}. Ids depend on the order "
                "of calls, so a ctx takes one call at a time, from its own task: await each call "
                "where you make it.",
                run_id=self.run_id,
                asked=asked,
            )
            self._close(error)
            raise error
        self._in_flight = asked

    def _go_live(self, branch: str, asked: str, step_id: str | None = None) -> None:
        """Pass from replay to live: nothing recorded may be left over; open the session."""
        self._cursor.go_live(branch, asked)
        if self._writer is None:
            raise LiveForbidden(asked)
        self.replaying = False
        opening, self._opening = self._opening, None
        if opening is not None:
            self._writer.append(opening)
            if isinstance(opening, Resume):
                self._cursor.answers[opening.step_id or opening.event_name] = opening

    def _replayed(self, entry: Step) -> JSON:
        if entry.error is not None:
            raise _failed(entry.step_id, entry.error)
        return values.decode(entry.result, what=f"result of {entry.step_id!r}")

    def _record(self, entry: Step, outcome: Outcome) -> JSON:
        """Append a finished step and return what the workflow sees of it."""
        self._fill(entry, outcome)
        assert self._writer is not None, "only a live session runs a step"
        self._writer.append(entry)
        return self._replayed(entry)

    def _fill(self, entry: Step, outcome: Outcome) -> None:
        if outcome.error is None:
            entry.result = self._encode(outcome.value, f"result of step {entry.step_id!r}")
        elif isinstance(outcome.error, KassetteError) and not isinstance(
            outcome.error, StepFailedError
        ):
            raise outcome.error  # not the function's failure: a refusal or an interruption of ours
        else:
            entry.error = _describe(outcome.error)

    def _record_late(self, entry: Step, outcome: Outcome) -> None:
        """Record what a thread did after its caller was interrupted: it is paid for."""
        try:
            self._fill(entry, outcome)
            assert self._writer is not None, "only a live session runs a step"
            self._writer.append(entry)
        except BaseException as problem:
            self._close(problem)
        finally:
            self._leave()

    def _optional(self, value: JSON, what: str) -> Payload:
        return UNSET if value is None else self._encode(value, what)

    def _encode(self, value: JSON, what: str) -> Raw:
        return values.encode(value, what=what, limit=self._max_payload)

    def _close(self, reason: BaseException) -> None:
        if self._closed is None:
            self._closed = reason

    def _leave(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open:
                return
        self._workers.close()
        if self._writer is not None:
            self._writer.close()
        if self._hold is not None:
            self._hold.release()

    def _end(self, value: Any, problem: BaseException | None) -> Ending:
        """Write the session's last entries, or raise what interrupted it."""
        closed = self._closed
        if problem is not None and not isinstance(problem, Exception | Suspended):
            raise problem  # cancelled, or the process is told to stop: whatever else was going on
        if isinstance(closed, Suspended):
            for entry in self._suspends[:-1]:
                entry.more = True
            self._write_ending(*self._suspends)
            return Ending(suspends=self._suspends)
        if closed is not None:
            raise closed
        if isinstance(problem, Suspended):
            raise InterruptedRunError(
                f"run {self.run_id!r}: Suspended was raised by hand; use `await ctx.suspend(…)`.",
                run_id=self.run_id,
            ) from problem
        if isinstance(problem, KassetteError) and not isinstance(problem, StepFailedError):
            raise problem
        ending: Complete | Failure
        if problem is None:
            ending = Complete(
                session=self.number, result=self._encode(value, "result of the workflow")
            )
            self._go_live("", "the end of the workflow")
        else:
            ending = Failure(
                session=self.number,
                error=_describe(problem),
                traceback=_text("".join(traceback.format_exception(problem))),
                step_id=problem.step_id if isinstance(problem, StepFailedError) else None,
            )
            self._go_live("", f"to fail with {ending.error.name}")
        self._write_ending(ending)
        return Ending(terminal=ending)

    def _write_ending(self, *batch: Known) -> None:
        assert self._writer is not None, "going live comes before an ending"
        self._writer.append(*batch)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return None


def _describe(error: BaseException) -> ErrorInfo:
    if isinstance(error, StepFailedError):
        return ErrorInfo(name=error.name, message=_text(error.message))
    return ErrorInfo(name=type(error).__name__, message=_text(str(error)))


def _text(text: str) -> str:
    """Return a text that UTF-8 can carry; an exception's message is not a value to refuse."""
    return text.encode(errors="backslashreplace").decode()


def _failed(step_id: str, error: ErrorInfo) -> StepFailedError:
    return StepFailedError(
        f"step {step_id!r} failed: {error.name}: {error.message}",
        step_id=step_id,
        name=error.name,
        message=error.message,
    )


def _interruption(run_id: str, asked: str, problem: BaseException) -> BaseException:
    """Return what a session that was stopped by ``problem`` says from now on."""
    if isinstance(problem, KassetteError | Suspended | LiveForbidden):
        return problem
    error = InterruptedRunError(
        f"run {run_id!r}: {asked} was interrupted ({type(problem).__name__}); it was not "
        "recorded, and the session has stopped. Start the run again to continue.",
        run_id=run_id,
    )
    error.__cause__ = problem
    return error


def _readable(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Payload:
    """Return the arguments by name for people to read, or nothing where JSON cannot carry them."""
    if not args and not kwargs:
        return UNSET
    code = getattr(fn, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code else ()
    if hasattr(fn, "__self__"):
        names = names[1:]
    named = {
        names[index] if index < len(names) else str(index): value
        for index, value in enumerate(args)
    }
    try:
        payload: Raw = values.encode(redact({**named, **kwargs}), limit=ARGS_LIMIT)
    except (JournalValueError, RecursionError):
        return UNSET
    return payload
