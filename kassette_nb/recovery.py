"""Going on with what a dead process left behind."""

from __future__ import annotations

import asyncio

import msgspec

from . import lease
from .definition import Definition, cancel_overdue
from .errors import RunBusyError
from .journal import Journal, read
from .results import RunResult
from .shelf import read_all
from .state import INTERRUPTED, READY
from .storage import Storage, beside


class Recovered(msgspec.Struct, frozen=True):
    """What became of one run: its ``result``, or the ``error`` that keeps it as it was."""

    run_id: str
    result: RunResult | None = None
    error: BaseException | None = None


async def recover(definition: Definition, storage: Storage) -> list[Recovered]:
    """Continue every interrupted and ready run of a workflow, and cancel overdue ones.

    Runs that another session holds are passed over, and so are forks that were never started.
    All go on side by side.

    Returns:
        One `Recovered` for each run that was touched or could not be; sorted by id.
    """
    journals = await beside(storage, _journals, definition, storage)
    wanted = [journal for journal in journals if _due(definition, journal)]
    found = await asyncio.gather(*(_one(definition, storage, j.run_id) for j in wanted))
    return [each for each in found if each is not None]


def _journals(definition: Definition, storage: Storage) -> list[Journal]:
    return [
        journal
        for _, journal in read_all(storage)
        # Damaged, or gone meanwhile: not ours to repair.
        if isinstance(journal, Journal) and journal.opening.workflow == definition.name
    ]


def _due(definition: Definition, journal: Journal) -> bool:
    folded = definition.fold(journal)
    unstarted = folded.copied and folded.length <= max(1, folded.copied)
    overdue = definition.overdue(journal) is not None
    return overdue or (folded.status in (INTERRUPTED, READY) and not unstarted)


async def _one(definition: Definition, storage: Storage, run_id: str) -> Recovered | None:
    try:
        hold = await lease.acquire(storage, run_id)
    except RunBusyError:
        return None
    try:
        journal = await beside(storage, read, storage, run_id)
        overdue = definition.overdue(journal)
        if overdue is not None:
            result = await beside(
                storage, cancel_overdue, storage, journal, definition.clock, overdue
            )
            hold.release()
            return Recovered(run_id, result)
        if not _due(definition, journal):
            hold.release()
            return None  # somebody else went on with it in between
        ready = definition.ready(storage, run_id, hold, journal, {})
    except Exception as problem:
        hold.release()
        return Recovered(run_id, error=problem)
    except BaseException:
        hold.release()
        raise
    try:
        return Recovered(run_id, await ready.run())
    except Exception as problem:
        return Recovered(run_id, error=problem)
