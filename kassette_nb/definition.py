"""A workflow's function with what its runs are checked against, and a run made ready to go on."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from . import results, state, values
from .arguments import Arguments
from .budget import Budget, Meter, limits
from .clock import Clock
from .context import Context
from .declared import Workspace
from .entries import Cancel, Resume, Start
from .errors import VersionMismatchError
from .journal import Journal, Writer
from .replay import Cursor, refuse_foreign
from .results import RunResult
from .session import Ending, Session
from .state import RunState
from .storage import Hold, Storage
from .values import JSON

if TYPE_CHECKING:
    from .workspace import Recorder

Body = Callable[..., Awaitable[Any]]
#: Sessions that live in this process, by the place of their journal, with the loop they run on.
_live: dict[str, tuple[Session, asyncio.AbstractEventLoop]] = {}


class Definition(msgspec.Struct, frozen=True):
    """What `kassette` was told about a workflow."""

    fn: Body
    name: str
    arguments: Arguments
    clock: Clock
    version: str | None = None
    fingerprint: str | None = None
    label: str | None = None
    budget: Budget | None = None
    max_payload: int = values.MAX_PAYLOAD
    transient: tuple[type[BaseException], ...] = ()
    workspace: Workspace | None = None
    outcome: Callable[[JSON], JSON] | None = None

    def fold(self, journal: Journal) -> RunState:
        """Return the state of a run that the caller holds, or that nobody needs to hold."""
        return state.fold(journal.entries, self.clock.now(), held=False)

    def check(self, journal: Journal) -> dict[str, JSON]:
        """Return the recorded input of a run that is about to execute this code.

        Raises:
            MetadataMismatchError, VersionMismatchError: It was recorded by other code.
            ReplayMismatchError: It has entries that cannot be replayed.
        """
        metadata = self.arguments.recorded(journal, {})
        latest = journal.latest_start
        if latest is not None:  # a fork without an entry of its own takes this code's
            self._same(journal.run_id, "version", latest.version, self.version)
            self._same(journal.run_id, "fingerprint", latest.fingerprint, self.fingerprint)
        refuse_foreign(journal.run_id, journal.entries)
        return metadata

    def overdue(self, journal: Journal) -> str | None:
        """Return the question of an open run whose deadline has passed, or None."""
        return state.overdue(self.fold(journal))

    def ready(
        self,
        storage: Storage,
        run_id: str,
        hold: Hold,
        journal: Journal | None,
        given: Mapping[str, Any],
        answer: Resume | None = None,
        writer: Writer | None = None,
        files: Recorder | None = None,
    ) -> Ready:
        """Check everything that can be checked before code runs; write nothing.

        Args:
            storage: Where the run is.
            run_id: The run.
            hold: Held by the caller; the returned object frees it when it has run.
            journal: As read under the hold; None for a new run.
            given: The arguments of a new run.
            answer: The entry that opens the session; None opens with a start entry.
            writer: Whose opening entry is on record already.
            files: As `files` gave them; None: they are still to be looked at.
        """
        metadata = (
            self.arguments.new(given, self.max_payload) if journal is None else self.check(journal)
        )
        opening: Start | Resume | None = answer
        if writer is None:
            writer = Writer(storage, run_id, journal, self.clock)
            opening = answer or self._start(writer.session, metadata, journal is None)
        files = files or self.files(storage, run_id, journal, writer.session)
        session = self.session(run_id, journal, writer, hold, opening, files)
        return Ready(self, session, metadata, storage.locate(run_id))

    def session(
        self,
        run_id: str,
        journal: Journal | None,
        writer: Writer | None = None,
        hold: Hold | None = None,
        opening: Start | Resume | None = None,
        files: Recorder | None = None,
    ) -> Session:
        """Return a session over a journal; without a writer it verifies."""
        declared = self.workspace.directory if self.workspace else None
        lines = journal.entries if journal else []
        budget = limits(lines, opening, self.budget)
        meter = Meter(run_id, lines, budget, opening) if budget is not None else None
        return Session(
            Cursor(run_id, lines),
            writer,
            hold,
            opening,
            self.clock,
            meter,
            self.max_payload,
            self.transient,
            files,
            declared,
        )

    def files(
        self, storage: Storage, run_id: str, journal: Journal | None, session: int
    ) -> Recorder | None:
        """Check a run's files and make them ready for a session; None without a workspace."""
        if self.workspace is None:
            return None
        from .kept import say_where
        from .workspace import prepare

        say_where(storage, self.name)
        return prepare(storage, run_id, journal, self.workspace, session)

    def call(self, session: Session, metadata: dict[str, JSON]) -> Callable[[Any], Awaitable[Any]]:
        """Return the workflow's function as a session calls it."""
        return lambda branch: self.fn(Context(session, branch), **metadata)

    def _start(self, session: int, metadata: dict[str, JSON], new: bool) -> Start:
        return Start(
            session=session,
            version=self.version,
            metadata=values.encode(metadata, what="arguments", limit=self.max_payload),
            workflow=self.name,
            label=self.label if new else None,
            fingerprint=self.fingerprint,
            budget=self.budget.encoded() if self.budget is not None else UNSET,
            pid=os.getpid(),
            host=socket.gethostname(),
        )

    def _same(self, run_id: str, what: str, recorded: str | None, given: str | None) -> None:
        if recorded != given:
            raise VersionMismatchError(
                f"run {run_id!r} was recorded by {what} {recorded!r} of {self.name!r}, this is "
                f"{given!r}; nothing was executed. Go on with the old code, or fork the run and "
                "continue the fork with this one.",
                run_id=run_id,
                recorded=recorded,
                given=given,
            )


class Ready:
    """A run that is held, read and checked; `run` goes on with it and frees it."""

    def __init__(
        self, definition: Definition, session: Session, metadata: dict[str, JSON], place: str
    ) -> None:
        self._definition = definition
        self._session = session
        self._metadata = metadata
        self._place = place

    async def run(self) -> RunResult:
        """Replay, go live and settle; see `Session.run`."""
        _live[self._place] = self._session, asyncio.get_running_loop()
        try:
            call = self._definition.call(self._session, self._metadata)
            return _result(self._session.run_id, await self._session.run(call))
        finally:
            _live.pop(self._place, None)


def live(place: str) -> tuple[Session, asyncio.AbstractEventLoop] | None:
    """Return the session of a journal that lives in this process, with its loop."""
    return _live.get(place)


def cancel_overdue(storage: Storage, journal: Journal, clock: Clock, event: str) -> RunResult:
    """Cancel a run that the caller holds because nobody answered in time."""
    reason = f"nobody answered {event!r} before its deadline"
    Writer(storage, journal.run_id, journal, clock).append(Cancel(session=0, reason=reason))
    return RunResult("cancelled", journal.run_id, reason=reason)


def _result(run_id: str, ending: Ending) -> RunResult:
    if ending.terminal is not None:
        return results.ended(run_id, ending.terminal)
    return results.suspended(run_id, ending.suspends)
