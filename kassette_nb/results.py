"""Where a call left a run."""

from __future__ import annotations

import msgspec

from . import values
from .entries import Cancel, Complete, ErrorInfo, Failure, Suspend
from .errors import InterruptedRunError, RunCancelledError, StepFailedError
from .state import RunState
from .values import JSON


class RunResult(msgspec.Struct, frozen=True):
    """Where a call left the run.

    ``status`` is ``success``, ``suspended``, ``failed`` or ``cancelled``. ``value`` is the decoded
    result where there is one; ``event`` the first and ``events`` all step ids of what a suspended
    run waits for; ``error`` the recorded exception of a failed one; ``reason`` that of a
    cancelled one.
    """

    status: str
    run_id: str
    value: JSON = None
    event: str | None = None
    events: tuple[str, ...] = ()
    error: ErrorInfo | None = None
    reason: str | None = None

    @property
    def result(self) -> JSON:
        """The decoded result of a run that succeeded.

        A step that runs another workflow returns this: where that run has none yet, the step is
        interrupted, and both stay open; where it failed, the step fails.

        Raises:
            InterruptedRunError: The run is suspended.
            StepFailedError: It failed.
            RunCancelledError: It was cancelled.
        """
        if self.status == "success":
            return self.value
        if self.error is not None:
            raise StepFailedError(
                f"run {self.run_id!r} failed: {self.error.name}: {self.error.message}",
                step_id=None,
                name=self.error.name,
                message=self.error.message,
            )
        if self.status == "cancelled":
            raise RunCancelledError(
                f"run {self.run_id!r} was cancelled ({self.reason or 'no reason given'}); it has "
                "no result.",
                run_id=self.run_id,
                state="cancelled",
                reason=self.reason,
            )
        raise InterruptedRunError(
            f"run {self.run_id!r} waits for {', '.join(map(repr, self.events))} and has no result "
            "yet. Answer it first.",
            run_id=self.run_id,
        )

    def __repr__(self) -> str:
        told = [f"{self.status}: {self.run_id!r}"]
        if self.events:
            told.append(f"waits for {', '.join(map(repr, self.events))}")
        if self.status == "success":
            told.append(f"result={self.value!r}")
        if self.error is not None:
            told.append(f"{self.error.name}: {self.error.message}")
        if self.reason is not None:
            told.append(self.reason)
        return f"<{', '.join(told)}>"


def ended(run_id: str, ending: Complete | Failure | Cancel) -> RunResult:
    """Return a terminal entry as the result of a call."""
    if isinstance(ending, Complete):
        return RunResult("success", run_id, value=values.decode(ending.result, what="result"))
    if isinstance(ending, Failure):
        return RunResult("failed", run_id, error=ending.error)
    return RunResult("cancelled", run_id, reason=ending.reason)


def suspended(run_id: str, entries: list[Suspend]) -> RunResult:
    """Return the suspensions that ended a session as the result of a call."""
    events = tuple(entry.step_id or entry.event_name for entry in entries)
    return RunResult("suspended", run_id, event=events[0], events=events)


def recorded(run_id: str, state: RunState) -> RunResult:
    """Return the recorded state of a suspended or ended run as the result of a call."""
    if state.ending is not None:
        return ended(run_id, state.ending)
    events = tuple(question.step_id for question in state.pending)
    return RunResult("suspended", run_id, event=events[0] if events else None, events=events)
