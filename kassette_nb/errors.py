"""Everything that kassette_nb raises on purpose.

Each error carries its facts as attributes, says in its message what to do next, and pickles.

    KassetteError
    ├── InvalidRunIdError        run_id
    ├── UnknownRunError          run_id, place, known
    ├── RunBusyError             run_id, holder
    ├── TerminalRunError         run_id, state
    │   └── RunCancelledError    run_id, state, reason
    ├── ArgumentError            workflow
    ├── MetadataMismatchError    run_id, what, recorded, given
    ├── VersionMismatchError     run_id, recorded, given
    ├── ReplayMismatchError      run_id, offset, asked, recorded
    ├── EventMismatchError       run_id, event, pending
    ├── EventAlreadyAnsweredError  run_id, event, by, at, value
    ├── JournalValueError        path, reason
    │   └── PayloadTooLargeError path, reason, size, limit
    ├── JournalCorruptionError   place, line, reason
    ├── ConcurrentUseError       run_id, asked
    ├── InterruptedRunError      run_id
    ├── StepFailedError          step_id, name, message
    │   └── InDoubtError         step_id, name, message
    ├── BudgetExceededError      run_id, what, limit, spent
    ├── FencedError              run_id
    ├── WorkspaceError
    │   └── WorkspaceChangedError  run_id, changes
    └── StorageError             place, reason

    Suspended (a BaseException, so that an agent's ``except Exception`` cannot swallow it)
    LiveForbidden (the same; only inside a verification)
    SessionStopped (the same; leaves a model call whose session has to stop: an SDK would take an
        Exception for weather and try again)
"""

from __future__ import annotations

from typing import Any


class KassetteError(Exception):
    """Root of all errors of this package.

    Args:
        message: What happened, where, and what to do next.
        facts: One keyword for each attribute that the class declares.
    """

    def __init__(self, message: str, /, **facts: object) -> None:
        super().__init__(message)
        # Unpickling calls the class with the message alone and fills __dict__ afterwards.
        self.__dict__.update(facts)

    def __str__(self) -> str:
        return str(self.args[0])


class InvalidRunIdError(KassetteError):
    """A run id that could not safely become a file name."""

    run_id: str


class UnknownRunError(KassetteError, KeyError):
    """No journal with this id in this storage."""

    run_id: str
    place: str
    known: int


class RunBusyError(KassetteError):
    """Another session holds the run; ``holder`` says who as far as that is known."""

    run_id: str
    holder: str


class TerminalRunError(KassetteError):
    """The run has ended (``state``: completed, failed or cancelled) and takes no more entries."""

    run_id: str
    state: str


class RunCancelledError(TerminalRunError):
    """The run was cancelled."""

    reason: str | None


class ArgumentError(KassetteError, TypeError):
    """What was given are not the workflow's arguments: one is missing, unknown or too many."""

    workflow: str


class MetadataMismatchError(KassetteError):
    """The workflow's name or an argument is not what the journal recorded."""

    run_id: str
    what: str
    recorded: object
    given: object


class VersionMismatchError(KassetteError):
    """The run was recorded by another version of the workflow."""

    run_id: str
    recorded: str | None
    given: str | None


class ReplayMismatchError(KassetteError):
    """The code asks for something else than what is recorded; nothing was written."""

    run_id: str
    offset: int | None
    asked: str
    recorded: str


class EventMismatchError(KassetteError):
    """Nobody waits for this event; ``pending`` lists what the run waits for."""

    run_id: str
    event: str
    pending: tuple[str, ...]


class EventAlreadyAnsweredError(KassetteError):
    """The first answer won; this one was not recorded."""

    run_id: str
    event: str
    by: str | None
    at: str
    value: object


class JournalValueError(KassetteError):
    """A value that JSON cannot carry back unchanged; ``path`` names the place inside it."""

    path: str
    reason: str


class PayloadTooLargeError(JournalValueError):
    """A value larger than the workflow's ``max_payload``, in bytes of JSON."""

    size: int
    limit: int


class JournalCorruptionError(KassetteError):
    """A journal that breaks the format; the file is left untouched. ``line`` counts from 1."""

    place: str
    line: int
    reason: str


class ConcurrentUseError(KassetteError):
    """A ctx was used from another task, or while another of its calls was in flight."""

    run_id: str
    asked: str


class InterruptedRunError(KassetteError):
    """The session stopped before the run settled; the run is open and can be continued."""

    run_id: str


class StepFailedError(KassetteError):
    """A step's function raised. The same error is raised on every replay.

    ``name`` is the original exception's class name, ``message`` its text.
    """

    step_id: str | None
    name: str
    message: str


class InDoubtError(StepFailedError):
    """A tool may have acted in a session that died, and its workflow said ``on_doubt="fail"``.

    Recorded as the tool's error, and raised again on every replay.
    """


class BudgetExceededError(KassetteError):
    """The run has spent its budget; ``what`` names the limit, of a `Budget`'s fields."""

    run_id: str
    what: str
    limit: float
    spent: float


class FencedError(KassetteError):
    """Somebody else has written to the journal since this session read it."""

    run_id: str


class StorageError(KassetteError):
    """The disk or store refused: nothing unacknowledged stays, the run can be continued."""

    place: str
    reason: str


class WorkspaceError(KassetteError):
    """A working tree could not be kept, found or put back; what the journal says is untouched."""


class WorkspaceChangedError(WorkspaceError):
    """A run's working tree is not what its journal recorded; nothing was executed.

    ``changes`` lists what differs, one line each (``M src/app.py``).
    """

    run_id: str
    changes: tuple[str, ...]


class Suspended(BaseException):
    """Leaves the workflow when it has to wait for an answer. Let it pass; do not catch it."""

    def __init__(self, run_id: str, event: str) -> None:
        super().__init__(
            f"run {run_id!r} waits for the event {event!r}. This is not a failure: the session "
            f"ends here, and resume({run_id!r}, {event!r}, value) continues the run. "
            "Workflow code must let this exception pass."
        )
        self.run_id = run_id
        self.event = event

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.run_id, self.event))


class LiveForbidden(BaseException):
    """Ends a verification at the first live act; ``asked`` says what it would have been.

    ``hint`` is what more can be told of it, if the run should not have gone live there.
    """

    def __init__(self, asked: str, hint: str = "") -> None:
        super().__init__(asked)
        self.asked = asked
        self.hint = hint


class SessionStopped(BaseException):
    """Leaves a model call when the session has to stop; what comes out of the run is ``reason``."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__(str(reason))
        self.reason = reason
