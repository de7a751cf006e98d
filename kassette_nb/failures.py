"""Exceptions as they are recorded."""

from __future__ import annotations

import traceback

from .entries import ErrorInfo, Failure
from .errors import StepFailedError


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
