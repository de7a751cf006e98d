"""Re-executing a run with all live work forbidden: does this code still fit what is recorded?"""

from __future__ import annotations

import msgspec

from . import values
from .definition import Definition
from .entries import Complete, Failure
from .errors import (
    BudgetExceededError,
    KassetteError,
    LiveForbidden,
    MetadataMismatchError,
    ReplayMismatchError,
    VersionMismatchError,
)
from .failures import describe
from .journal import Journal

_Mismatch = (ReplayMismatchError, VersionMismatchError, MetadataMismatchError)


class Verification(msgspec.Struct, frozen=True):
    """What a verification found.

    ``replayed`` counts the recorded steps and answers that were handed back; nothing went live.
    ``divergence`` is the first thing that does not fit, None where all does. ``next`` says what
    the run would have done first, None for a run that has ended. ``unasked`` are recorded model
    calls beside the workflow's own task that the code, come to its end, has not asked for.
    """

    run_id: str
    replayed: int
    divergence: KassetteError | None = None
    next: str | None = None
    live: int = 0
    unasked: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the code fits the whole record."""
        return self.divergence is None

    @property
    def line(self) -> str:
        """What to tell a person before a fork goes on."""
        steps = "step" if self.replayed == 1 else "steps"
        told = f"{self.replayed} {steps} replayed, {self.live} live"
        return f"{told}, prefix verified" if self.fits else f"{told}; {self.divergence}"

    def __repr__(self) -> str:
        told = f"{self.replayed} replayed, {self.live} live"
        if self.divergence is not None:
            return f"<verification of {self.run_id!r}: {told}; differs: {self.divergence}>"
        then = f", next is {self.next}" if self.next else ", to the recorded end"
        if self.unasked:
            count = len(self.unasked)
            calls = "1 model call is" if count == 1 else f"{count} model calls are"
            then += f"; {calls} recorded that the code does not ask for"
        return f"<verification of {self.run_id!r}: {told}{then}>"


async def verify(definition: Definition, journal: Journal) -> Verification:
    """Re-execute a run against its journal; writes nothing and takes no lock."""
    run_id = journal.run_id
    try:
        metadata = definition.check(journal)
    except _Mismatch as problem:
        return Verification(run_id, 0, problem)
    session = definition.session(run_id, journal)
    ending = journal.ending
    outcome: list[str] = []

    async def call(branch: object) -> None:
        """Take the end of the workflow for what is compared, not for a live act."""
        try:
            value = await definition.call(session, metadata)(branch)
        except Exception as problem:
            if isinstance(problem, KassetteError) and session.closed is not None:
                raise
            outcome.append(f"to fail with {describe(problem).name}")
        else:
            outcome.append("the end of the workflow")
            if isinstance(ending, Complete):
                _compare(run_id, ending, value, definition.max_payload)
        session.cursor.go_live("", outcome[0])
        raise LiveForbidden(outcome[0])

    from .llm.clients import refusing  # what no process needs that does not verify

    try:
        with refusing():
            await session.run(call)
    except LiveForbidden as stopped:
        if not isinstance(ending, Complete | Failure):  # open, or cancelled at whatever point
            return Verification(
                run_id, session.replayed, next=stopped.asked if ending is None else None
            )
        wanted = "the end of the workflow"
        if isinstance(ending, Failure):
            wanted = f"to fail with {ending.error.name}"
        # A spent budget stops the code at whatever it was about to do.
        spent = isinstance(ending, Failure) and ending.error.name == BudgetExceededError.__name__
        if outcome == [wanted] or (spent and not outcome):
            unasked = tuple(session.cursor.unasked()) if outcome else ()
            return Verification(run_id, session.replayed, unasked=unasked)
        return Verification(run_id, session.replayed, _other_end(run_id, ending, stopped))
    except _Mismatch as problem:
        return Verification(run_id, session.replayed, problem)
    raise AssertionError("a verification never ends by itself")


def _compare(run_id: str, ending: Complete, value: object, limit: int) -> None:
    encoded = values.encode(value, what="result of the workflow", limit=limit)
    if not values.same(values.decode(encoded), values.decode(ending.result)):
        raise _other_end(
            run_id, ending, LiveForbidden("the end of the workflow with another result")
        )


def _other_end(
    run_id: str, ending: Complete | Failure, stopped: LiveForbidden
) -> ReplayMismatchError:
    asked = stopped.asked
    recorded = "the end" if isinstance(ending, Complete) else f"the failure {ending.error.name}"
    return ReplayMismatchError(
        f"run {run_id!r}: the code comes to {asked} where entry {ending.offset} recorded "
        f"{recorded}. The code has changed since; nothing was written.{stopped.hint}",
        run_id=run_id,
        offset=ending.offset,
        asked=asked,
        recorded=recorded,
    )
