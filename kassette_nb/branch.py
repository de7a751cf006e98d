"""One sequential strand of a run, and the guard around each call that is made on it."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Protocol

import msgspec

from .errors import (
    ConcurrentUseError,
    InterruptedRunError,
    KassetteError,
    LiveForbidden,
    StepFailedError,
    Suspended,
)
from .replay import Names


class Branch:
    """Where ids are counted and calls are made one at a time.

    Args:
        path: The ids of the block keys that lead here, joined by ``/``; empty for the workflow.

    Attributes:
        names: Gives the ids.
        task: The one task that may call; set when it begins.
        in_flight: What is being called now, for the error of a second call.
        closed: What every call raises once this branch has suspended.
    """

    __slots__ = ("closed", "in_flight", "names", "path", "task")

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.names = Names(path)
        self.task: asyncio.Task[Any] | None = None
        self.in_flight: Call | None = None
        self.closed: BaseException | None = None


class Models(Protocol):
    """What the guard needs of a session's model calls; true while one is not settled."""

    def __bool__(self) -> bool: ...

    def settle(self, branch: Branch, asked: str) -> None: ...


class Closing(Protocol):
    """What the guard needs of a session."""

    run_id: str
    transient: tuple[type[BaseException], ...]
    closed: BaseException | None

    @property
    def models(self) -> Models: ...

    @property
    def abandoned(self) -> bool: ...

    def close(self, reason: BaseException) -> None: ...


class Call(msgspec.Struct):
    """The guard around one call; see `Session.call`. As a text, what is asked for."""

    session: Closing
    branch: Branch
    verb: str
    name: str

    def __str__(self) -> str:
        return f"{self.verb} {self.name!r}" if self.name else self.verb

    def __enter__(self) -> None:
        session, branch = self.session, self.branch
        if session.abandoned:
            # At the end of asyncio.run the workflow's task may hear of it before its caller's
            # does. Clean-up after a cancellation may not act: it would be out of order.
            stopped = f"run {session.run_id!r}: {self} was called after its caller was cancelled."
            session.close(InterruptedRunError(stopped, run_id=session.run_id))
        closed = session.closed or branch.closed
        if closed is not None:
            raise closed.with_traceback(None)
        if branch.in_flight is not None or current_task() is not branch.task:
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
        if session.models:
            try:
                session.models.settle(branch, str(self))
            except BaseException as problem:
                session.close(problem)
                raise
        branch.in_flight = self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.branch.in_flight = None
        if problem is None or isinstance(problem, StepFailedError):
            return
        if isinstance(problem, Suspended | LiveForbidden):
            # Only this strand has come to its end; its siblings go on to theirs.
            self.branch.closed = problem
        else:
            self.session.close(self._interruption(problem))

    def _interruption(self, problem: BaseException) -> BaseException:
        """Return what a session that was stopped by ``problem`` says from now on."""
        session = self.session
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


def current_task() -> asyncio.Task[Any] | None:
    """Return the running task; None in a thread without a loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return None
