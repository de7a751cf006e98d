"""Which question an answer is for: the compare of the compare-and-set, before anything is set."""

from __future__ import annotations

import os
import socket

from . import values
from .entries import Cancel, Resume
from .errors import (
    EventAlreadyAnsweredError,
    EventMismatchError,
    JournalValueError,
    RunCancelledError,
    TerminalRunError,
)
from .schema import DOUBT_SCHEMA, check_answer
from .state import BUDGET, CANCELLED, IN_DOUBT, Pending, RunState
from .values import JSON


def answer(
    run_id: str,
    state: RunState,
    event: str,
    value: JSON,
    by: str | None,
    note: str | None,
    *,
    exact: bool = False,
) -> Resume:
    """Return the entry that answers a question of a run; the caller holds it and appends.

    What is said about a tool in doubt may name the ``attempt`` that was looked at. All attempts
    are asked about under one step id, so this is what keeps an answer to an earlier one, which
    somebody else answered meanwhile, from being taken for the newest.

    Raises:
        EventAlreadyAnsweredError, EventMismatchError, TerminalRunError: See `find_question`; or
            the answer names an attempt that is not the one in doubt.
        JournalValueError: The value does not survive JSON or does not fit the schema.
    """
    question = find_question(run_id, state, event, exact=exact)
    encoded = values.encode(value, what=f"answer to {question.step_id!r}")
    said = values.decode(encoded)
    if question.event == IN_DOUBT and isinstance(said, dict) and "attempt" in said:
        _same_attempt(run_id, state, question, said.pop("attempt"))
    check_answer(said, question.schema, question.step_id)
    return Resume(
        session=0,
        event_name=question.event,
        step_id=question.step_id,
        value=encoded,
        by=by or None,
        note=note or None,
        pid=os.getpid(),
        host=socket.gethostname(),
    )


def find_question(run_id: str, state: RunState, event: str, *, exact: bool = False) -> Pending:
    """Return the pending suspension that an answer to ``event`` is for.

    Args:
        run_id: The run, for errors.
        state: Its state.
        event: The event's name, or the step id of the suspension.
        exact: An answered question's step id does not mean a later question of the same name, so
            that an answer that comes twice does not answer two.

    Raises:
        EventAlreadyAnsweredError: Somebody was first.
        RunCancelledError, TerminalRunError: The run has ended.
        EventMismatchError: Nobody waits for it, or the name is pending more than once.
    """
    questions = _open(state)
    found = [q for q in questions if event in (q.step_id, q.event)]
    named = [q for q in found if q.step_id == event]
    if named:
        return named[0]
    if exact and any(decision.step_id == event for decision in state.decisions):
        refuse_answered(run_id, state, event)
    if len(found) == 1:
        return found[0]
    pending = tuple(q.step_id for q in questions)
    if found:
        raise EventMismatchError(
            f"run {run_id!r} waits for {event!r} in {len(found)} places; answer one of them by "
            f"its step id: {', '.join(map(repr, pending))}.",
            run_id=run_id,
            event=event,
            pending=pending,
        )
    refuse_answered(run_id, state, event)
    refuse_ended(run_id, state)
    raise mismatch(run_id, state, repr(event))


def _same_attempt(run_id: str, state: RunState, question: Pending, seen: JSON) -> None:
    """Refuse what was decided about another attempt of the tool than the one in doubt now.

    Raises:
        EventAlreadyAnsweredError, EventMismatchError: It was.
    """
    step_id = question.step_id
    if type(seen) is not int:
        raise JournalValueError(
            f"attempt={seen!r} is not the number of an attempt. Nothing was recorded.",
            path="attempt",
            reason="not a number",
        )
    now = next((doubt.attempt for doubt in state.doubts if doubt.step_id == step_id), None)
    if now == seen:
        return
    refuse_answered(run_id, state, step_id)
    raise EventMismatchError(
        f"run {run_id!r}: attempt {now} of {step_id!r} is in doubt, not attempt {seen}; look again "
        "whether that one happened.",
        run_id=run_id,
        event=step_id,
        pending=(step_id,),
    )


def _open(state: RunState) -> list[Pending]:
    """Return what can be answered: the pending suspensions, and doubts nobody was asked about yet.

    A session that has died could not ask. Its doubt can be decided all the same before the next
    one begins.
    """
    if state.terminal:
        return []
    asked = {question.step_id for question in state.waits}
    return state.waits + [
        Pending(
            IN_DOUBT,
            doubt.step_id,
            doubt.offset,
            doubt.timestamp,
            schema=values.encode(DOUBT_SCHEMA),
        )
        for doubt in state.doubts
        if doubt.step_id not in asked
    ]


def asked(state: RunState, question: Pending) -> bool:
    """Tell whether a session has asked this, so that its answer may wait until the run is free.

    A doubt that nobody has asked about is one only if no session is alive. What a person saw of
    a call that was still running may be wrong when the run becomes free.
    """
    return any(question.step_id == wait.step_id for wait in state.waits)


def recorded(state: RunState, event: str, value: JSON, by: str | None) -> bool:
    """Tell whether this very answer, by the same person, is on record."""
    said = values.decode(values.encode(value, what=f"answer to {event!r}"))
    given = [decision for decision in state.decisions if decision.step_id == event]
    return any(
        decision.by == (by or None) and values.same(said, values.decode(decision.value))
        for decision in given or [one for one in state.decisions if one.event == event]
    )


def refuse_plain(run_id: str, question: Pending) -> None:
    """Refuse a yes or no where neither is an answer.

    Raises:
        EventMismatchError: The question is about a tool in doubt, or about a budget.
    """
    wanted = {
        IN_DOUBT: 'settle("record", result), settle("retry") or settle("fail", error)',
        BUDGET: 'respond({"max_cost_usd": …}) with new limits',
    }.get(question.event)
    if wanted is not None:
        raise EventMismatchError(
            f"run {run_id!r}: {question.step_id!r} is not a question of yes or no; use {wanted}.",
            run_id=run_id,
            event=question.step_id,
            pending=(question.step_id,),
        )


def mismatch(run_id: str, state: RunState, event: str) -> EventMismatchError:
    """Return the error of an answer that the run does not wait for."""
    pending = tuple(question.step_id for question in state.waits)
    waits = f"it waits for {', '.join(map(repr, pending))}" if pending else "it waits for nothing"
    return EventMismatchError(
        f"run {run_id!r} ({state.status}) does not wait for {event}; {waits}.",
        run_id=run_id,
        event=event,
        pending=pending,
    )


def refuse_answered(run_id: str, state: RunState, event: str) -> None:
    """Raise where the event has its answer already.

    Raises:
        EventAlreadyAnsweredError: With the facts of the answer that won.
    """
    found = [one for one in state.decisions if event in (one.step_id, one.event)]
    if not found:
        return
    decision = ([one for one in found if one.step_id == event] or found)[-1]
    raise EventAlreadyAnsweredError(
        f"{event!r} of run {run_id!r} was answered first by {decision.by or 'somebody'} "
        f"at {decision.at} (entry {decision.offset}); this answer was not recorded.",
        run_id=run_id,
        event=event,
        by=decision.by,
        at=decision.at,
        value=values.decode(decision.value),
    )


def refuse_ended(run_id: str, state: RunState) -> None:
    """Raise where the run takes no more entries.

    Raises:
        RunCancelledError: It was cancelled.
        TerminalRunError: It has completed or failed.
    """
    if state.status == CANCELLED:
        reason = state.ending.reason if isinstance(state.ending, Cancel) else None
        raise RunCancelledError(
            f"run {run_id!r} was cancelled ({reason or 'no reason given'}); fork it to go on.",
            run_id=run_id,
            state=CANCELLED,
            reason=reason,
        )
    if state.terminal:
        raise TerminalRunError(
            f"run {run_id!r} has {state.status}; fork it to go on from an earlier step.",
            run_id=run_id,
            state=state.status,
        )
