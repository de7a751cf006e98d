"""Answering a suspended run, and making it ready to go on: the compare-and-set on the journal."""

from __future__ import annotations

from . import lease
from .answers import answer, asked, find_question, refuse_answered, refuse_ended
from .definition import Definition, Ready, cancel_overdue
from .errors import RunBusyError
from .journal import Journal, find, read
from .storage import Storage, beside
from .values import JSON


async def take(
    definition: Definition,
    storage: Storage,
    run_id: str,
    event: str,
    value: JSON,
    *,
    by: str | None,
    note: str | None,
    exact: bool = False,
) -> Ready:
    """Hold a run and check that this answer is for a question that waits; write nothing.

    Args:
        definition: The workflow.
        storage: Where the run is.
        run_id: The run.
        event: What it waits for.
        value: The answer.
        by: Who answers.
        note: Why, for the record.
        exact: See `find_question`.

    Returns:
        The run, held; `Ready.run` records the answer, goes on and frees it.

    Raises:
        KassetteError: See `Workflow.resume`; the run is free again.
    """
    # Asked first without the lock: a late answer is told at once, and an unknown run leaves no
    # lock file behind.
    known = await beside(storage, read, storage, run_id)
    folded = definition.fold(known)
    question = find_question(run_id, folded, event, exact=exact)
    try:
        patience = lease.PATIENCE if asked(folded, question) else 0.0
        hold = await lease.acquire(storage, run_id, patience)
    except RunBusyError:
        # Whoever was first may still be running on the answer.
        known = await beside(storage, read, storage, run_id)
        refuse_answered(run_id, definition.fold(known), event)
        raise
    try:
        journal = await beside(storage, _answerable, definition, storage, run_id, known)
        folded = definition.fold(journal)
        # Of the question that was looked at, not of a later one of the same name.
        opening = answer(run_id, folded, question.step_id, value, by, note, exact=True)
        return definition.ready(storage, run_id, hold, journal, {}, opening)
    except BaseException:
        hold.release()
        raise


def _answerable(definition: Definition, storage: Storage, run_id: str, known: Journal) -> Journal:
    """Return a held run's journal; cancel it where nobody answered in time."""
    journal = find(storage, run_id, known) or read(storage, run_id)
    overdue = definition.overdue(journal)
    if overdue is not None:
        cancel_overdue(storage, journal, definition.clock, overdue)
        refuse_ended(run_id, definition.fold(read(storage, run_id)))
    return journal
