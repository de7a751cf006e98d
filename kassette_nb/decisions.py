"""Acting on a run from outside: take it, check, append one line, and let it go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import UNSET

from . import answers, background, blocking, imported, lease, state
from .clock import SystemClock
from .definition import cancel_overdue, live
from .entries import Cancel
from .errors import EventMismatchError, JournalValueError, KassetteError, RunBusyError
from .identity import person
from .journal import Journal, Writer
from .model import RunModel
from .storage import beside
from .values import JSON
from .verification import Verification, verify
from .workflow import Workflow
from .workspace import Recorder


def respond(
    run: RunModel, value: JSON, event: str, by: str | None, note: str | None, start: bool = True
) -> None:
    """Record an answer; where the workflow's code is loaded, go on in the background.

    The answer is spent only if that code still fits what is recorded: it is replayed first, with
    all live work forbidden, while the run is held. The ``resume`` line is durable on return.

    Args:
        run: The run.
        value: The answer.
        event: The question.
        by: Who answers.
        note: Why.
        start: Go on. False records the answer alone, whether or not any code fits.

    Raises:
        KassetteError: See `kassette_nb.run.Run.respond`; nothing was written.
    """
    by = person() if by is None else by
    folded = run.fold()
    question = answers.find_question(run.run_id, folded, event, exact=True)
    patience = lease.PATIENCE if answers.asked(folded, question) else 0.0
    workflow = run.workflow if start else None
    try:
        hold = lease.acquire_blocking(run.storage, run.run_id, patience)
    except RunBusyError:
        answers.refuse_answered(run.run_id, run.fold(), event)
        raise
    files = None
    try:
        journal = run.journal
        folded = state.fold(journal.entries, SystemClock().now(), held=False)
        overdue = state.overdue(folded)
        if overdue is not None:
            cancel_overdue(run.storage, journal, SystemClock(), overdue)
            answers.refuse_ended(run.run_id, run.fold())
        # Of the question that was looked at, not of a later one of the same name.
        step_id = question.step_id
        entry = answers.answer(run.run_id, folded, step_id, value, by, note, exact=True)
        if workflow is not None:
            files = _check_fit(workflow, run, journal)
        writer = Writer(run.storage, run.run_id, journal, SystemClock())
        writer.append(entry)
        if workflow is None:
            hold.release()
            return
        ready = workflow.definition.ready(
            run.storage, run.run_id, hold, run.journal, {}, writer=writer, files=files
        )
    except BaseException:
        if files is not None:
            files.release()
        hold.release()
        raise
    background.start(run.storage.locate(run.run_id), ready.run, run.run_id)


def settle(
    run: RunModel,
    action: str,
    value: JSON,
    event: str | None,
    by: str | None,
    note: str | None,
    attempt: int | None = None,
    start: bool = True,
) -> None:
    """Record what became of a tool in doubt; see `respond`.

    Raises:
        KassetteError: See `kassette_nb.run.Run.settle`; nothing was written.
    """
    parts = {"record": "result", "retry": None, "fail": "error"}
    if action not in parts:
        raise JournalValueError(
            f"settle({action!r}): say 'record' (it happened; with its result), 'retry' or 'fail' "
            "(with the error). Nothing was recorded.",
            path="action",
            reason="not an action",
        )
    answer: dict[str, JSON] = {"action": action}
    part = parts[action]
    if action == "record" and value is UNSET:
        raise JournalValueError(
            "settle('record') needs the tool's result: settle('record', result), None if it has "
            "none. Nothing was recorded.",
            path="value",
            reason="no result",
        )
    if part is not None and value is not UNSET:
        answer[part] = value
    elif value is not UNSET:
        raise JournalValueError(
            "settle('retry') takes no value: the tool runs again. Nothing was recorded.",
            path="value",
            reason="not taken",
        )
    if attempt is not None:
        answer["attempt"] = attempt
    if event is None:
        folded = run.fold()
        doubts = [doubt.step_id for doubt in folded.doubts]
        if len(doubts) != 1:
            answers.refuse_ended(run.run_id, folded)
            told = f"{len(doubts)} tools of it are" if doubts else "no tool of it is"
            raise EventMismatchError(
                f"run {run.run_id!r}: {told} in doubt"
                + (f"; name one: event={' or '.join(map(repr, doubts))}." if doubts else "."),
                run_id=run.run_id,
                event=state.IN_DOUBT,
                pending=tuple(doubts),
            )
        event = doubts[0]
    respond(run, answer, event, by, note, start)


def go_on(run: RunModel, workflow: Workflow, *, sure: bool = False) -> None:
    """Continue an interrupted or ready run in the background.

    Args:
        run: The run.
        workflow: Its code.
        sure: Replay it first, so that a run which the code no longer fits is refused, not begun.

    Raises:
        KassetteError: See `kassette_nb.run.Run.resume`; nothing was written.
    """
    _refuse_settled(run)
    hold = lease.acquire_blocking(run.storage, run.run_id)
    files = None
    try:
        _refuse_settled(run)  # another session may have gone on with it in between
        if sure:
            files = _check_fit(workflow, run, run.journal)
        ready = workflow.definition.ready(
            run.storage, run.run_id, hold, run.journal, {}, files=files
        )
    except BaseException:
        if files is not None:
            files.release()
        hold.release()
        raise
    background.start(run.storage.locate(run.run_id), ready.run, run.run_id)


def recover(run: RunModel) -> str | None:
    """Continue a run that a dead process left behind, in the background, or cancel an overdue one.

    Returns:
        What was done; None where there is nothing to do, or the code is not loaded here.

    Raises:
        RunBusyError: Another session holds it.
        KassetteError: It stays as it is: the code no longer fits.
    """
    folded, workflow = run.fold(), run.workflow
    unstarted = folded.copied and folded.length <= max(1, folded.copied)
    if workflow is None or unstarted:
        return None
    overdue = state.overdue(folded)
    if overdue is None:
        if folded.status not in (state.INTERRUPTED, state.READY):
            return None
        go_on(run, workflow, sure=True)
        return "goes on"
    hold = lease.acquire_blocking(run.storage, run.run_id)
    try:
        if state.overdue(run.fold()) is None:
            return None  # somebody else was here in between
        cancel_overdue(run.storage, run.journal, SystemClock(), overdue)
    finally:
        hold.release()
    return "cancelled"


def _refuse_settled(run: RunModel) -> None:
    """Raise where there is nothing to go on with: the run has ended, or waits for an answer."""
    folded = state.fold(run.journal.entries, SystemClock().now(), held=False)
    answers.refuse_ended(run.run_id, folded)
    if folded.status == state.SUSPENDED:
        waits = ", ".join(repr(question.step_id) for question in folded.pending)
        doubt = any(question.event == state.IN_DOUBT for question in folded.pending)
        ways = "settle()" if doubt else "approve(), reject() or respond()"
        raise EventMismatchError(
            f"run {run.run_id!r} waits for {waits} and goes on when that is answered; use {ways}.",
            run_id=run.run_id,
            event="",
            pending=tuple(question.step_id for question in folded.pending),
        )


def cancel(run: RunModel, reason: str | None) -> None:
    """Record that a run is called off.

    The ``cancel`` line is durable on return; a session that lives in this process writes it as
    its last one, once what is in flight has settled.

    Raises:
        KassetteError: See `kassette_nb.run.Run.cancel`; nothing was written.
    """
    answers.refuse_ended(run.run_id, run.fold())
    here = live(run.storage.locate(run.run_id))
    if here is not None and here[0].call_off(reason):
        session, loop = here
        background.call_home(loop, lambda: session.cancel(reason))
        return
    hold = lease.acquire_blocking(run.storage, run.run_id)
    try:
        answers.refuse_ended(run.run_id, run.fold())
        writer = Writer(run.storage, run.run_id, run.journal, SystemClock())
        writer.append(Cancel(session=0, reason=reason or None))
    finally:
        hold.release()


def decision(yes: bool, note: str | None, schema: JSON) -> JSON:
    """Return what a plain yes or no means for a question with this schema."""
    if isinstance(schema, dict) and schema.get("type") == "boolean":
        return yes
    value: dict[str, JSON] = {"approved": yes}
    properties = schema.get("properties") if isinstance(schema, dict) else {"note": None}
    if isinstance(properties, dict) and "note" in properties:
        value["note"] = note or ""
    return value


def event_of(run: RunModel, event: str | None) -> str:
    """Return what an answer is for: what is named, else the only thing that the run waits for."""
    if event is not None:
        return event
    folded = run.fold()
    waiting = [question.step_id for question in folded.waits]
    if len(waiting) == 1:
        return waiting[0]
    if not waiting and folded.decisions:
        return folded.decisions[-1].step_id  # too late: the error says who was first
    answers.refuse_ended(run.run_id, folded)
    raise answers.mismatch(run.run_id, folded, "an unnamed event")


def code_of(run: RunModel, what: str) -> Workflow:
    """Return the workflow of a run.

    Raises:
        KassetteError: It is not loaded here, so the run cannot do what is wanted, or the run was
            imported from another agent.
    """
    imported.refuse(run.run_id, run.journal.entries)
    workflow = run.workflow
    if workflow is None:
        name = run.journal.opening.workflow
        missing = (
            f"its workflow {name!r} is not loaded in this process; import the module or run the "
            "cell that defines it"
            if name
            else "its journal does not name a workflow; use that workflow's own start()"
        )
        raise KassetteError(f"run {run.run_id!r} cannot {what} here: {missing}.")
    return workflow


async def settled(run: RunModel) -> None:
    """Wait until nothing is at work on a run, here or in another process."""
    session = run.session
    if session is not None:
        await session.wait()
    # Another process's session can only be seen in its file and its lock.
    while (await beside(run.storage, run.fold)).status == state.RUNNING:  # noqa: ASYNC110
        await asyncio.sleep(1.0 if run.storage.blocking else 0.05)


def verified(workflow: Workflow, journal: Journal) -> Verification:
    """Replay a journal with live work forbidden, from code that cannot await."""
    return blocking.run(lambda: verify(workflow.definition, journal))


def checker(
    workflow: Workflow | None, found: list[Verification], strict: bool
) -> Callable[[Journal], None] | None:
    """Return what a fork is checked with before it is written.

    Args:
        workflow: Its code; None where that is not loaded.
        found: Gets the verification.
        strict: Refuse what does not fit.
    """
    if workflow is None:
        return None

    def check(draft: Journal) -> None:
        found.append(verified(workflow, draft))
        if strict and found[0].divergence is not None:
            raise found[0].divergence

    return check


def _check_fit(workflow: Workflow, run: RunModel, journal: Journal) -> Recorder | None:
    """Replay, and look at the files: what does not fit must not cost the answer.

    Returns:
        The files, for the session: only the first look at them knows what was put back.
    """
    found = verified(workflow, journal)
    if found.divergence is not None:
        raise found.divergence
    return workflow.definition.files(run.storage, run.run_id, journal, journal.last_session + 1)
