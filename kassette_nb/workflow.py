"""Durable workflows: the ``@kassette`` decorator and the calls on what it returns."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, overload

from . import fork as forks
from . import lease, results, state, values
from .answers import answer, find_question, refuse_answered
from .arguments import Arguments
from .clock import Clock, SystemClock
from .context import Context
from .entries import Resume, Start
from .errors import RunBusyError, UnknownRunError, VersionMismatchError
from .journal import Journal, Writer, read
from .replay import Cursor
from .results import RunResult
from .runid import new_run_id
from .session import Ending, LiveForbidden, Session
from .state import RunState
from .storage import Hold, Storage, check_run_id, open_storage
from .values import JSON

Body = Callable[..., Awaitable[Any]]
#: Workflows by name, the latest definition of each: where a journal's continuation is looked up.
registry: dict[str, Workflow] = {}


class Workflow:
    """An async function whose finished steps are recorded; made by `kassette`."""

    def __init__(
        self,
        fn: Body,
        *,
        name: str | None = None,
        version: str | None = None,
        storage: Storage | str | os.PathLike[str] | None = None,
        max_payload: int = values.MAX_PAYLOAD,
        clock: Clock | None = None,
    ) -> None:
        if not inspect.iscoroutinefunction(fn):
            raise TypeError(f"{fn!r} must be an async def to be a workflow")
        self.fn = fn
        self.name = name or fn.__name__
        self.version = version
        self.max_payload = max_payload
        self.label: str | None = None
        self._where = storage
        self._storage: Storage | None = None
        self._clock: Clock = clock or SystemClock()
        self._arguments = Arguments(fn, self.name)
        self.__doc__ = fn.__doc__

    def __repr__(self) -> str:
        version = f", version={self.version!r}" if self.version else ""
        return f"<workflow {self.name!r}{version}>"

    @property
    def storage(self) -> Storage:
        """Where the runs are recorded; opened when first asked for."""
        if self._storage is None:
            self._storage = open_storage(self._where)
        return self._storage

    def with_options(self, *, label: str | None = None) -> Workflow:
        """Return the same workflow with options for the runs that it starts.

        Args:
            label: A name for people, shown instead of the run's id.
        """
        other = Workflow.__new__(Workflow)
        other.__dict__.update(self.__dict__)
        other.label = label
        return other

    async def start(self, /, *args: Any, run_id: str | None = None, **kwargs: Any) -> RunResult:
        """Begin a run, or go on with an open one.

        Args:
            args: The workflow's arguments after ctx; they must survive JSON.
            run_id: A new run's id (by default a UUIDv7), or that of a recorded run: an
                interrupted or ready one replays and goes on; of a suspended or ended one the
                recorded state is returned and nothing is written or executed.
            kwargs: Arguments by name. A recorded run takes its recorded ones where none is given.

        Returns:
            Where the run is now. All of it is durable.

        Raises:
            RunBusyError: Another session holds the run.
            MetadataMismatchError: The recorded workflow or an argument is another one.
            VersionMismatchError, ReplayMismatchError: The code is not what was recorded; nothing
                was written.
            BaseException: What interrupted the session; the run stays open.
        """
        given = self._arguments.given(args, kwargs)
        run_id = new_run_id() if run_id is None else check_run_id(run_id)
        journal = self._find(run_id)
        if journal is not None:
            recorded = self._recorded_result(journal, given, terminal_only=True)
            if recorded is not None:
                return recorded
        hold = await lease.acquire(self.storage, run_id)
        try:
            journal = self._find(run_id)
            if journal is not None:
                recorded = self._recorded_result(journal, given)
                if recorded is not None:
                    hold.release()
                    return recorded
            session, body = self._session(self.storage, run_id, hold, journal, given)
        except BaseException:
            hold.release()
            raise
        return _result(run_id, await session.run(body))

    async def resume(
        self,
        run_id: str,
        event: str,
        value: JSON,
        *,
        by: str | None = None,
        note: str | None = None,
    ) -> RunResult:
        """Answer a suspended run and go on: compare-and-set on the journal, the first answer wins.

        Args:
            run_id: The run.
            event: What it waits for; the step id where one name waits in two places.
            value: The answer; must survive JSON and fit the question's schema.
            by: Who answers.
            note: Why, for the record.

        Returns:
            Where the run is now. The answer and all that followed are durable.

        Raises:
            EventAlreadyAnsweredError: Somebody was first.
            EventMismatchError: The run does not wait for this.
            TerminalRunError, RunCancelledError: The run has ended.
            JournalValueError: The answer does not fit.
            ReplayMismatchError: The code no longer fits; the answer was not spent.
        """
        hold, journal, opening = await self._take_question(run_id, event, value, by, note)
        try:
            session, body = self._session(self.storage, run_id, hold, journal, {}, opening)
        except BaseException:
            hold.release()
            raise
        return _result(run_id, await session.run(body))

    async def fork(
        self,
        run_id: str,
        at: str | int | None = None,
        override: Mapping[str, JSON] | None = None,
        new_run_id: str | None = None,
        label: str | None = None,
        same_effects: bool = False,
    ) -> str:
        """Make a new run from a prefix of another; see `kassette_nb.fork.fork`.

        Returns:
            The new run's id; ``start(run_id=…)`` goes live from there.
        """
        return forks.fork(
            self.storage,
            run_id,
            at=at,
            override=override,
            new_run_id=new_run_id,
            label=label,
            same_effects=same_effects,
        )

    def continuation(
        self, storage: Storage, hold: Hold, journal: Journal, writer: Writer | None = None
    ) -> Callable[[], Coroutine[Any, Any, RunResult]]:
        """Check an open run that the caller holds; return the call that replays and goes on.

        Args:
            storage: Where the run is.
            hold: Freed by the returned call.
            journal: As read under the hold.
            writer: Whose opening entry is on record already; None opens with a start entry.
        """
        session, body = self._session(storage, journal.run_id, hold, journal, {}, writer=writer)

        async def go_on() -> RunResult:
            return _result(journal.run_id, await session.run(body))

        return go_on

    async def fits(self, journal: Journal) -> None:
        """Replay an open run with all live work forbidden; return if this code still fits it.

        Raises:
            MetadataMismatchError, VersionMismatchError, ReplayMismatchError: It does not.
        """
        metadata = self._arguments.recorded(journal, {})
        self._check_version(journal)
        cursor = Cursor(journal.run_id, journal.entries)
        cursor.check_replayable()
        session = Session(cursor, None, None, None, self._clock, self.max_payload)
        try:
            await session.run(lambda ctx: self.fn(ctx, **metadata))
        except LiveForbidden:
            return

    def _find(self, run_id: str) -> Journal | None:
        try:
            return read(self.storage, run_id)
        except UnknownRunError:
            return None

    def _fold(self, journal: Journal) -> RunState:
        return state.fold(journal.entries, self._clock.now(), held=False)

    def _recorded_result(
        self, journal: Journal, given: Mapping[str, Any], terminal_only: bool = False
    ) -> RunResult | None:
        """Return the recorded state of a run that this call must not execute."""
        self._arguments.recorded(journal, given)
        folded = self._fold(journal)
        if folded.terminal or (folded.status == state.SUSPENDED and not terminal_only):
            return results.recorded(journal.run_id, folded)
        return None

    async def _take_question(
        self, run_id: str, event: str, value: JSON, by: str | None, note: str | None
    ) -> tuple[Hold, Journal, Resume]:
        # Asked first without the lock: a late answer is told at once, and an unknown run leaves
        # no lock file behind.
        find_question(run_id, self._fold(read(self.storage, run_id)), event)
        try:
            hold = await lease.acquire(self.storage, run_id)
        except RunBusyError:
            # Whoever was first may still be running on the answer.
            refuse_answered(run_id, self._fold(read(self.storage, run_id)), event)
            raise
        try:
            journal = read(self.storage, run_id)
            return hold, journal, answer(run_id, self._fold(journal), event, value, by, note)
        except BaseException:
            hold.release()
            raise

    def _session(
        self,
        storage: Storage,
        run_id: str,
        hold: Hold,
        journal: Journal | None,
        given: Mapping[str, Any],
        opening: Resume | None = None,
        writer: Writer | None = None,
    ) -> tuple[Session, Callable[[Context], Awaitable[Any]]]:
        if journal is None:
            metadata = self._arguments.new(given, self.max_payload)
        else:
            metadata = self._arguments.recorded(journal, given)
            self._check_version(journal)
        cursor = Cursor(run_id, journal.entries if journal else [])
        cursor.check_replayable()
        first: Start | Resume | None = opening
        if writer is None:
            writer = Writer(storage, run_id, journal, self._clock)
            first = opening or Start(
                session=writer.session,
                version=self.version,
                metadata=values.encode(metadata, what="arguments", limit=self.max_payload),
                workflow=self.name,
                label=self.label if journal is None else None,
                pid=os.getpid(),
                host=socket.gethostname(),
            )
        session = Session(cursor, writer, hold, first, self._clock, self.max_payload)
        return session, lambda ctx: self.fn(ctx, **metadata)

    def _check_version(self, journal: Journal) -> None:
        folded = self._fold(journal)
        if folded.latest is None:  # a fork without an entry of its own takes this code's
            return
        recorded = folded.latest.version
        if recorded != self.version:
            raise VersionMismatchError(
                f"run {journal.run_id!r} was recorded by version {recorded!r} of "
                f"{self.name!r}, this is {self.version!r}; nothing was executed. Go on with the "
                "old code, or fork the run and continue the fork with this version.",
                run_id=journal.run_id,
                recorded=recorded,
                given=self.version,
            )


def _result(run_id: str, ending: Ending) -> RunResult:
    if ending.terminal is not None:
        return results.ended(run_id, ending.terminal)
    return results.suspended(run_id, ending.suspends)


@overload
def kassette(fn: Body, /) -> Workflow: ...


@overload
def kassette(
    *,
    name: str | None = None,
    version: str | None = None,
    storage: Storage | str | os.PathLike[str] | None = None,
    max_payload: int = values.MAX_PAYLOAD,
    clock: Clock | None = None,
) -> Callable[[Body], Workflow]: ...


def kassette(fn: Body | None = None, /, **options: Any) -> Workflow | Callable[[Body], Workflow]:
    """Make an async function a durable workflow.

    Args:
        fn: The function; its first parameter is the ctx, the others are recorded as its input.
        name: What journals call it; by default the function's name.
        version: Raise it when the shape of the code changes: runs of another version are refused.
        storage: A storage, a URL (``"file:.kassette"``, ``"memory:"``) or a path; by default
            ``$KASSETTE_STORAGE``, else ``file:.kassette``.
        max_payload: The largest value to record, in bytes of JSON.
        clock: Stamps the entries; for tests.

    Returns:
        The workflow, or a decorator that makes it.
    """

    def decorate(fn: Body) -> Workflow:
        workflow = Workflow(fn, **options)
        registry[workflow.name] = workflow
        return workflow

    return decorate if fn is None else decorate(fn)
