"""The calls on a workflow: start, resume, fork, retry, verify, cancel, recover, launch."""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from . import background, blocking, lease, recovery, results, resumption, state, verification
from . import fork as forks
from .answers import refuse_ended
from .budget import Budget
from .definition import Definition, cancel_overdue, live
from .entries import Cancel
from .journal import Journal, Writer, find, read
from .many import Many
from .recovery import Recovered
from .results import RunResult
from .runid import new_run_id
from .storage import Storage, beside, check_run_id, open_storage
from .values import JSON
from .verification import Verification

#: Workflows by name, the latest definition of each: where a journal's continuation is looked up.
registry: dict[str, Workflow] = {}
_KEEP: Any = object()


class Workflow(Many):
    """An async function whose finished steps are recorded; made by `kassette`."""

    def __init__(
        self, definition: Definition, storage: Storage | str | os.PathLike[str] | None = None
    ) -> None:
        self.definition: Definition = definition
        self._where = storage
        self._storage: Storage | None = None
        self.__doc__ = definition.fn.__doc__

    def __repr__(self) -> str:
        version = f", version={self.version!r}" if self.version else ""
        return f"<workflow {self.name!r}{version}>"

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Refuse to run outside a run.

        Raises:
            TypeError: Always; says what to call.
        """
        raise TypeError(
            f"workflow {self.name!r} is not called itself: await {self.name}.start(…), or "
            f"{self.name}.start_sync(…) where nothing can be awaited"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # By its name where a worker can import it; else by its function, for a pickler that can
        # take functions of a notebook along.
        definition, where = self.definition, self.storage.url
        if where.startswith("file:"):
            where = f"file:{self.storage.place}"
        fn = definition.fn
        if fn.__module__ == "__main__" or "<locals>" in fn.__qualname__:
            return _rebuilt, (definition, where)
        name = _name_of(fn)
        options = {name: getattr(definition, name) for name in ("label", "fingerprint", "budget")}
        return _imported, (f"{fn.__module__}:{name}", options, where)

    @property
    def name(self) -> str:
        """What journals call it."""
        return self.definition.name

    @property
    def version(self) -> str | None:
        """The version of its code."""
        return self.definition.version

    @property
    def storage(self) -> Storage:
        """Where the runs are recorded; opened when first asked for."""
        if self._storage is None:
            self._storage = open_storage(self._where)
        return self._storage

    def with_options(
        self,
        *,
        label: str | None = _KEEP,
        fingerprint: str | None = _KEEP,
        budget: Budget | None = _KEEP,
    ) -> Workflow:
        """Return the same workflow with options for the runs that it starts.

        Args:
            label: A name for people, shown instead of the run's id.
            fingerprint: Names what the run depends on beside its code (a model, a prompt's
                hash): a run recorded with another one is refused like one of another version.
            budget: What a run may spend. It counts from the next session that ``start`` opens,
                so a larger one goes on with a run that has none left.
        """
        given = {"label": label, "fingerprint": fingerprint, "budget": budget}
        changes: Any = {name: value for name, value in given.items() if value is not _KEEP}
        other = Workflow(replace(self.definition, **changes), self._where)
        other._storage = self._storage
        return other

    async def start(self, /, *args: Any, run_id: str | None = None, **kwargs: Any) -> RunResult:
        """Begin a run, or go on with an open one.

        Args:
            args: The workflow's arguments after ctx; they must survive JSON.
            run_id: A new run's id (by default a UUIDv7), or that of a recorded run: an
                interrupted or ready one replays and goes on; of a suspended or ended one the
                recorded state is returned and nothing is executed. One whose question is overdue
                is cancelled.
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
        given = self.definition.arguments.given(args, kwargs)
        journal, new = None, run_id is None
        run_id = new_run_id() if run_id is None else check_run_id(run_id)
        if not new:
            journal = await beside(self.storage, find, self.storage, run_id)
        if journal is not None:
            self.definition.arguments.recorded(journal, given)
            if journal.ending is not None:
                return results.ended(run_id, journal.ending)
        hold = await lease.acquire(self.storage, run_id)
        try:
            found: RunResult | Journal | None = None
            if not new:
                found = await beside(self.storage, self._settled, run_id, given, journal)
            if isinstance(found, RunResult):
                hold.release()
                return found
            ready = self.definition.ready(self.storage, run_id, hold, found, given)
        except BaseException:
            hold.release()
            raise
        return await ready.run()

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
            TerminalRunError, RunCancelledError: The run has ended, or its deadline has passed.
            JournalValueError: The answer does not fit.
            ReplayMismatchError: The code no longer fits; the answer was not spent.
        """
        ready = await resumption.take(
            self.definition, self.storage, run_id, event, value, by=by, note=note
        )
        return await ready.run()

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
        make = partial(
            forks.fork, at=at, override=override, new_run_id=new_run_id, label=label,
            same_effects=same_effects, declared=self.definition.workspace is not None,
        )  # fmt: skip
        return await beside(self.storage, make, self.storage, run_id)

    async def retry(self, run_id: str) -> str:
        """Make a new run from a failed one, without its failure; see `kassette_nb.fork.retry`.

        Returns:
            The new run's id; ``start(run_id=…)`` runs the failed step again.
        """
        return await beside(self.storage, forks.retry, self.storage, run_id)

    async def verify(self, run_id: str) -> Verification:
        """Re-execute a run against its journal with all live work forbidden; write nothing.

        Returns:
            How much was replayed, and the first thing that does not fit, if any.
        """
        journal = await beside(self.storage, read, self.storage, run_id)
        return await verification.verify(self.definition, journal)

    async def cancel(self, run_id: str, *, reason: str | None = None) -> RunResult:
        """Call a run off for good. A live session of this process ends itself with it.

        Returns:
            The run's end. The ``cancel`` line is durable, or will be the live session's last one
            once what is in flight has settled.

        Raises:
            TerminalRunError, RunCancelledError: It has ended already.
            RunBusyError: A session of another process holds it.
        """
        journal = await beside(self.storage, read, self.storage, run_id)
        refuse_ended(run_id, self.definition.fold(journal))
        here = live(self.storage.locate(run_id))
        if here is not None and here[0].call_off(reason):
            session, loop = here
            background.call_home(loop, lambda: session.cancel(reason))
            return RunResult("cancelled", run_id, reason=reason)
        hold = await lease.acquire(self.storage, run_id)
        try:
            await beside(self.storage, self._cancel, run_id, reason)
        finally:
            hold.release()
        return RunResult("cancelled", run_id, reason=reason)

    async def recover(self) -> list[Recovered]:
        """Go on with what a dead process left behind; see `kassette_nb.recovery.recover`."""
        return await recovery.recover(self.definition, self.storage)

    def launch(
        self, /, *args: Any, run_id: str | None = None, thread: bool = False, **kwargs: Any
    ) -> background.Background:
        """Start in the background; see `start` for the arguments.

        Args:
            args: As for `start`.
            run_id: As for `start`.
            thread: Use a loop in a thread of its own, which a blocking cell does not stop.
            kwargs: As for `start`.

        Returns:
            A handle: ``await`` it for the result; displayed in a notebook with the extension
            loaded, it is the run's live panel.
        """
        run_id = new_run_id() if run_id is None else check_run_id(run_id)

        def session() -> Coroutine[Any, Any, RunResult]:
            return self.start(*args, run_id=run_id, **kwargs)

        place = self.storage.locate(run_id)
        return background.start(place, session, run_id, self.storage, thread=thread)

    def start_sync(self, /, *args: Any, run_id: str | None = None, **kwargs: Any) -> RunResult:
        """Do what `start` does, from code that cannot await: a script, or inside a live loop."""
        return blocking.run(lambda: self.start(*args, run_id=run_id, **kwargs))

    def resume_sync(
        self,
        run_id: str,
        event: str,
        value: JSON,
        *,
        by: str | None = None,
        note: str | None = None,
    ) -> RunResult:
        """Do what `resume` does, from code that cannot await."""
        return blocking.run(lambda: self.resume(run_id, event, value, by=by, note=note))

    def _cancel(self, run_id: str, reason: str | None) -> None:
        journal = read(self.storage, run_id)
        refuse_ended(run_id, self.definition.fold(journal))
        end = Cancel(session=0, reason=reason)
        Writer(self.storage, run_id, journal, self.definition.clock).append(end)

    def _settled(
        self, run_id: str, given: Mapping[str, Any], known: Journal | None
    ) -> RunResult | Journal | None:
        """Return the state of a held run that is not to be executed, else its journal."""
        journal = find(self.storage, run_id, known)
        if journal is None:
            return None
        self.definition.arguments.recorded(journal, given)
        folded = self.definition.fold(journal)
        if folded.terminal:
            return results.recorded(run_id, folded)
        overdue = self.definition.overdue(journal)
        if overdue is not None:
            return cancel_overdue(self.storage, journal, self.definition.clock, overdue)
        return results.recorded(run_id, folded) if folded.status == state.SUSPENDED else journal


def _rebuilt(definition: Definition, where: str) -> Workflow:
    made = registry[definition.name] = Workflow(definition, where)
    return made


def _name_of(fn: Callable[..., Any]) -> str:
    """Return what a function's workflow is called in its module: not always what the function is.

    After ``wf = kassette(…)(fn)`` the function's own name means the function.
    """
    names = vars(sys.modules.get(fn.__module__, object))
    made = (
        name
        for name, found in names.items()
        if isinstance(found, Workflow) and found.definition.fn is fn
    )
    return fn.__qualname__ if "." in fn.__qualname__ else next(made, fn.__qualname__)


def _imported(name: str, options: dict[str, Any], where: str) -> Workflow:
    return Workflow(pkgutil.resolve_name(name).definition, where).with_options(**options)
