"""Runs behind a queue: what a worker tells the queue about the message that named a run.

A message names a run, and may be delivered twice, late, or to a worker that dies with it: a run is
safe against all three, since whoever gets the message goes on where the journal ends. So the one
question a worker has is whether the message is done with. Acknowledged is what another delivery
could not change; the whole table, and recipes for queues, stand in ``DISPATCH.md``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
from msgspec import UNSET

from . import answers, blocking, resumption, state, values
from .clock import instant
from .errors import (
    ArgumentError,
    EventAlreadyAnsweredError,
    InvalidRunIdError,
    JournalCorruptionError,
    JournalValueError,
    MetadataMismatchError,
    ReplayMismatchError,
    RunBusyError,
    TerminalRunError,
    VersionMismatchError,
)
from .journal import read
from .results import RunResult
from .storage import beside, check_run_id
from .values import JSON
from .workflow import Workflow

#: Seconds until another delivery is worth its while.
BUSY, WEATHER, OTHER_CODE = 15.0, 5.0, 60.0

_DONE = (EventAlreadyAnsweredError, TerminalRunError)
_HOPELESS = (ArgumentError, MetadataMismatchError, InvalidRunIdError, JournalCorruptionError)
_CODE = (VersionMismatchError, ReplayMismatchError, JournalValueError)


class Verdict(msgspec.Struct, frozen=True):
    """What to tell the queue about a message.

    ``ack`` says whether the message is done with; without it, deliver it again after about
    ``wait`` seconds. ``result`` is where the run is, where that is known. ``error`` is what keeps
    it there. ``due`` counts the seconds until a suspended run goes on by itself, or is cancelled
    because nobody has answered: send the message again then.
    """

    ack: bool
    result: RunResult | None = None
    error: Exception | None = None
    wait: float = 0.0
    due: float | None = None

    def raise_for_retry(self) -> None:
        """Raise what keeps the run where it is, unless the message is done with.

        For queues whose handlers ask for another delivery by failing.
        """
        if not self.ack:
            assert self.error is not None, "only an error asks for another delivery"
            raise self.error


async def handle(workflow: Workflow, /, run_id: str = "", *args: Any, **kwargs: Any) -> Verdict:
    """Begin a run or go on with it, on behalf of a message.

    A message that is a mapping of ``run_id`` and the workflow's arguments is passed on as it is:
    ``await handle(triage, **message)``.

    Args:
        workflow: The workflow; every worker that may get the message opens the same storage.
        run_id: The run that the message names. Whoever sends the message chooses it, so that one
            sent or delivered twice begins one run. A message without one is done with, by an
            `InvalidRunIdError`.
        args: The workflow's arguments; needed for the first delivery only.
        kwargs: Its arguments by name.

    Returns:
        Whether the message is done with. What has happened is durable.

    Raises:
        TypeError: ``workflow`` is none.
    """
    _check(workflow)

    async def started() -> RunResult:
        given = workflow.definition.arguments.given(args, kwargs)
        try:
            values.encode(given, what=f"the message for run {run_id!r}")
        except JournalValueError as problem:
            raise _Unfit from problem
        return await workflow.start(*args, run_id=run_id, **kwargs)

    return await _judge(workflow, run_id, started)


async def handle_answer(
    workflow: Workflow,
    /,
    run_id: str = "",
    event: str = "",
    value: JSON = UNSET,
    *,
    by: str | None = None,
    note: str | None = None,
    **unknown: object,
) -> Verdict:
    """Answer a suspended run and go on with it, on behalf of a message; see `Workflow.resume`.

    A message that is a mapping is passed on as it is: ``await handle_answer(triage, **message)``.
    One that lacks a part of the answer, or has another one, is done with, by an `ArgumentError`.

    Args:
        workflow: The workflow.
        run_id: The run that the message names.
        event: The question's step id: its event's name, and where the workflow asks by one name
            again, ``approval#2``. A message that comes twice so never answers two questions.
        value: The answer.
        by: Who answers.
        note: Why, for the record.
        unknown: Nothing; whatever else the message has is told in the error.

    Returns:
        Whether the message is done with. One that is delivered again after its answer was
        recorded goes on with the run. One that came too late, since another answer (or the same,
        by somebody else) is on record, is acknowledged with `EventAlreadyAnsweredError`.

    Raises:
        TypeError: ``workflow`` is none.
    """
    _check(workflow)
    storage, definition = workflow.storage, workflow.definition

    async def answered() -> RunResult:
        lacking = [
            name for name, is_it in (("event", not event), ("value", value is UNSET)) if is_it
        ]
        texts: dict[str, object] = {"event": event, "by": by, "note": note}
        odd = [name for name, text in texts.items() if not isinstance(text, str | None)]
        if lacking or unknown or odd:
            raise _unlike_an_answer(definition.name, run_id, lacking, odd, list(unknown))
        try:
            ready = await resumption.take(
                definition, storage, run_id, event, value, by=by, note=note, exact=True
            )
        except JournalValueError as problem:
            raise _Unfit from problem
        except EventAlreadyAnsweredError:
            journal = await beside(storage, read, storage, run_id)
            if not answers.recorded(definition.fold(journal), event, value, by):
                raise
            # An earlier delivery of this message, whose worker may have died on the way.
            return await workflow.start(run_id=run_id)
        return await ready.run()

    return await _judge(workflow, run_id, answered)


def handle_sync(workflow: Workflow, /, run_id: str = "", *args: Any, **kwargs: Any) -> Verdict:
    """Do what `handle` does, from a handler that cannot await."""
    return blocking.run(lambda: handle(workflow, run_id, *args, **kwargs))


def handle_answer_sync(workflow: Workflow, /, *args: Any, **kwargs: Any) -> Verdict:
    """Do what `handle_answer` does, from a handler that cannot await."""
    return blocking.run(lambda: handle_answer(workflow, *args, **kwargs))


class _Unfit(Exception):
    """An answer that its question does not take, or an argument that no journal can hold."""


def _check(workflow: object) -> None:
    if not isinstance(workflow, Workflow):
        raise TypeError(
            f"handle takes the workflow itself, not {workflow!r}: the function that @kassette "
            "made, imported from its module"
        )


def _unlike_an_answer(
    workflow: str, run_id: str, lacking: list[str], odd: list[str], unknown: list[str]
) -> ArgumentError:
    problems = [f"lacks {name!r}" for name in lacking]
    problems += [f"has another {name!r} than a text" for name in odd]
    problems += [f"has {name!r}" for name in unknown]
    return ArgumentError(
        f"the message that answers run {run_id!r} {' and '.join(problems)}; an answer is made of "
        "run_id, event, value, by and note. Nothing was written.",
        workflow=workflow,
    )


async def _judge(
    workflow: Workflow, run_id: str, call: Callable[[], Awaitable[RunResult]]
) -> Verdict:
    try:
        check_run_id(run_id)
        result = await call()
        due = await beside(workflow.storage, _due, workflow, result)
    except _DONE as late:
        return Verdict(True, error=late)
    except _HOPELESS as problem:
        return Verdict(True, error=problem)
    except _Unfit as answer:
        return Verdict(True, error=cast(Exception, answer.__cause__))
    except RunBusyError as busy:
        return Verdict(False, error=busy, wait=BUSY)
    except _CODE as problem:
        return Verdict(False, error=problem, wait=OTHER_CODE)
    except Exception as problem:
        return Verdict(False, error=problem, wait=WEATHER)
    return Verdict(True, result, due=due)


def _due(workflow: Workflow, result: RunResult) -> float | None:
    """Return in how many seconds a suspended run has something to do without an answer."""
    if result.status != "suspended":
        return None
    definition = workflow.definition
    folded = definition.fold(read(workflow.storage, result.run_id))
    if folded.terminal or folded.status == state.READY:
        return 0.0
    moments = [instant(pending.deadline) for pending in folded.pending if pending.deadline]
    if not moments:
        return None
    return max(0.0, (min(moments) - definition.clock.now()).total_seconds())
