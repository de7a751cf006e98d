"""One run, seen from outside: every look folds the journal as it is now.

Every method that writes is a compare-and-set on the journal. Views and frames are imported when
first asked for.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from difflib import get_close_matches
from typing import Any

from msgspec import UNSET, UnsetType

from . import answers, background, decisions, display, results, values
from . import fork as forks
from .entries import ErrorInfo, Failure, Source
from .errors import JournalCorruptionError, KassetteError, UnknownRunError
from .files import Files
from .identity import person
from .model import RunsModel
from .recorded import Question, RecordedStep, question
from .seen import Seen
from .shown import Shown
from .storage import Storage
from .values import JSON
from .verification import Verification
from .workflow import Workflow, registry


class Run(Seen, Shown):
    """One run, seen from outside. Made by `Runs`."""

    def __init__(self, storage: Storage, run_id: str, runs: RunsModel) -> None:
        super().__init__(storage, run_id)
        self._runs = runs
        #: How the code fitted what was kept, if this run was just forked here.
        self.verification: Verification | None = None

    def __repr__(self) -> str:
        try:
            folded = self.fold()
        except KassetteError as problem:
            return f"<run {self.run_id!r}: {type(problem).__name__}>"
        waits = f" on {', '.join(self.waiting_on)}" if self.waiting_on else ""
        return f"<run {self.run_id!r} {folded.status}{waits}, {len(folded.steps)} steps>"

    def __await__(self) -> Generator[Any, None, Run]:
        return self._settled().__await__()

    def _ipython_display_(self) -> None:
        if not display.show("run", self):
            raise NotImplementedError

    def _repr_html_(self) -> str:
        return self.html()

    def __getitem__(self, step_id: str) -> RecordedStep:
        if not isinstance(step_id, str):
            raise TypeError(
                f"run[{step_id!r}]: a recorded step is named by its id, as in run['plan#2']; by "
                "position it is run.steps().iloc[…]"
            )
        for entry in self.fold().steps:
            if entry.step_id == step_id:
                return RecordedStep(self.run_id, self.journal, entry)
        near = get_close_matches(step_id, [step.step_id for step in self.fold().steps], 3)
        hint = f"; close to it: {', '.join(map(repr, near))}" if near else ""
        raise KeyError(f"run {self.run_id!r} has no step {step_id!r} recorded{hint}")

    # ------------------------------------------------------------------ looking

    @property
    def exists(self) -> bool:
        """Whether there is a journal, damaged or not."""
        try:
            _ = self.journal
        except UnknownRunError:
            return False
        except JournalCorruptionError:
            return True
        return True

    @property
    def state(self) -> str:
        """completed, failed, cancelled, suspended, interrupted, ready or running."""
        return self.fold().status

    @property
    def waiting_on(self) -> tuple[str, ...]:
        """The step ids of what the run waits for a person to answer, doubts and budgets too."""
        return tuple(pending.step_id for pending in self.fold().waits)

    @property
    def questions(self) -> tuple[Question, ...]:
        """What the run waits for, decoded."""
        return tuple(question(pending) for pending in self.fold().waits)

    @property
    def source(self) -> Source | None:
        """The run this one was forked from, and the number of lines taken."""
        return self.journal.opening.source

    @property
    def label(self) -> str | None:
        """The name given for people."""
        return self.journal.opening.label

    @property
    def result(self) -> JSON:
        """The decoded result of a completed run; None otherwise."""
        ending = self.fold().ending
        return results.ended(self.run_id, ending).value if ending is not None else None

    @property
    def error(self) -> ErrorInfo | None:
        """The exception that ended a failed run."""
        ending = self.fold().ending
        return ending.error if isinstance(ending, Failure) else None

    @property
    def workflow(self) -> Workflow | None:
        """The run's workflow, if its code is loaded in this process."""
        return registry.get(self.journal.opening.workflow or "")

    @property
    def workspace(self) -> Files:
        """The run's files at its steps; see `kassette_nb.files.Files`."""
        declared = self.workflow.definition.workspace if self.workflow is not None else None
        return Files(self.storage, self.journal, declared)

    @property
    def session(self) -> background.Background | None:
        """The newest session of this run in the background of this process."""
        return background.find(self.storage.locate(self.run_id))

    def verify(self) -> Verification:
        """Re-execute the run against its journal with all live work forbidden; writes nothing.

        Returns:
            How much was replayed, and the first thing that does not fit, if any.

        Raises:
            KassetteError: The workflow's code is not loaded here.
        """
        return decisions.verified(decisions.code_of(self, "be verified"), self.journal)

    # ------------------------------------------------------------------ acting

    def approve(
        self,
        *,
        by: str | None = None,
        note: str | None = None,
        event: str | None = None,
        start: bool = True,
    ) -> Run:
        """Answer a question with yes; see `respond`."""
        return self._decide(True, by, note, event, start)

    def reject(
        self,
        *,
        by: str | None = None,
        note: str | None = None,
        event: str | None = None,
        start: bool = True,
    ) -> Run:
        """Answer a question with no; see `respond`."""
        return self._decide(False, by, note, event, start)

    def respond(
        self,
        value: JSON,
        *,
        by: str | None = None,
        note: str | None = None,
        event: str | None = None,
        start: bool = True,
    ) -> Run:
        """Answer a question. The first answer wins; the run goes on in the background.

        Args:
            value: The answer.
            by: Who answers; by default ``$KASSETTE_BY``, ``$JUPYTERHUB_USER`` or the OS user.
            note: Why, for the record.
            event: Which question, where several are pending: its step id. One that was answered
                does not mean a later question of the same name.
            start: Go on with the run. False records the answer alone, also where the code that is
                loaded here no longer fits; the run goes on when code that fits is next started.

        Returns:
            This run; ``await run`` waits until it settles. The ``resume`` line is durable. Where
            the workflow's code is not loaded in this process nothing else happens.

        Raises:
            EventAlreadyAnsweredError, EventMismatchError, TerminalRunError: Not waited for.
            JournalValueError: The value does not fit; nothing was recorded.
            ReplayMismatchError, VersionMismatchError, MetadataMismatchError: The code loaded here
                does not fit the run; the answer was not spent.
            RunBusyError: Another session holds the run.
        """
        self.look_anew()
        decisions.respond(self, value, decisions.event_of(self, event), by, note, start)
        return self

    def settle(
        self,
        action: str,
        value: JSON = UNSET,
        *,
        by: str | None = None,
        note: str | None = None,
        event: str | None = None,
        attempt: int | None = None,
        start: bool = True,
    ) -> Run:
        """Decide what happened to a tool that may have acted in a session that died.

        Args:
            action: ``"record"``: it happened, ``value`` is its result. ``"retry"``: run it again,
                with the same idempotency key. ``"fail"``: it failed, ``value`` says how.
            value: The result, which ``"record"`` needs (None if it has none), or the text of the
                error.
            by: Who decides; see `respond`.
            note: Why, for the record.
            event: The tool's step id, where several are in doubt.
            attempt: The attempt that was looked at: if another one is in doubt by now, the
                decision is refused.
            start: Go on with the run; see `respond`.

        Returns:
            This run; ``await run`` waits until it settles. The ``resume`` line is durable.

        Raises:
            KassetteError: See `respond`; ``action`` is another word; nothing is in doubt.
        """
        self.look_anew()
        decisions.settle(self, action, value, event, by, note, attempt, start)
        return self

    def resume(self) -> Run:
        """Go on with an interrupted or ready run in the background.

        Returns:
            This run; nothing new is durable yet.

        Raises:
            KassetteError: The code is not loaded here, or the run is not one to continue.
            RunBusyError: Another session holds the run.
        """
        self.look_anew()
        decisions.go_on(self, decisions.code_of(self, "go on"))
        return self

    def cancel(self, *, reason: str | None = None) -> Run:
        """Call the run off for good.

        Args:
            reason: Why, for the record.

        Returns:
            This run. The ``cancel`` line is durable and nothing can be added after it; where the
            run lives in this process, that session writes it once what is in flight has settled.

        Raises:
            TerminalRunError, RunCancelledError: It has ended already.
            RunBusyError: A session holds it.
        """
        self.look_anew()
        decisions.cancel(self, reason)
        return self

    def fork(
        self,
        at: str | int | None = None,
        *,
        override: Mapping[str, JSON] | None = None,
        answer: JSON | UnsetType = UNSET,
        start: bool = False,
        label: str | None = None,
        new_run_id: str | None = None,
        by: str | None = None,
        note: str | None = None,
    ) -> Run:
        """Make a new run from a prefix of this one; see `kassette_nb.fork.fork`.

        Args:
            at: The step that runs again (its id), or an offset.
            override: ``{step_id: value}``: another result for one step; what follows runs again.
            answer: Another answer to the question ``at``; see `kassette_nb.fork.fork_answered`.
            start: Go live from there at once, in the background.
            label: A name for people.
            new_run_id: The new run's id; by default ``<this id>.2``, ``.3`` …
            by: Who gives ``answer``; see `respond`.
            note: Why ``answer`` is given, for the record.

        Returns:
            The new run; its journal is durable, and so is its directory where this run has a
            workspace. Where the workflow is loaded, ``verification`` says how its code fits the
            part that was kept.

        Raises:
            ReplayMismatchError: The fork was to start, and the code does not fit; nothing was
                written.
            KassetteError: See `kassette_nb.fork.fork`; nothing was written.
        """
        if answer is not UNSET and at is None:
            raise KassetteError(
                f"cannot fork run {self.run_id!r}: answer= is for a question, so say which with "
                "at=, as in fork(at='approval', answer=…). Nothing was written."
            )
        if start:
            decisions.code_of(self, "start the fork")
        found: list[Verification] = []
        code = self.workflow
        declared = code.definition.workspace is not None if code is not None else None
        check = decisions.checker(code, found, start)
        if answer is UNSET:
            made = forks.fork(self.storage, self.run_id, at=at, override=override, check=check,
                              new_run_id=new_run_id, label=label, declared=declared)  # fmt: skip
        else:
            by = person() if by is None else by
            made = forks.fork_answered(
                self.storage, self.run_id, str(at), answer, by=by, note=note, check=check,
                new_run_id=new_run_id, label=label, declared=declared,
            )  # fmt: skip
        run = Run(self.storage, made, self._runs)
        run.verification = found[0] if found else None
        return run.resume() if start else run

    def retry(self, *, start: bool = False) -> Run:
        """Make a new run of a failed one, without its failure; see `kassette_nb.fork.retry`.

        Args:
            start: Go live from there at once, in the background.

        Returns:
            The new run, with the same idempotency keys; its journal is durable.

        Raises:
            KassetteError: It has not failed, or no step of it did; with ``start``, the code is not
                loaded here. Nothing was written.
        """
        if start:
            decisions.code_of(self, "start the new run")
        run = Run(self.storage, forks.retry(self.storage, self.run_id), self._runs)
        return run.resume() if start else run

    def _decide(
        self, yes: bool, by: str | None, note: str | None, event: str | None, start: bool
    ) -> Run:
        event = decisions.event_of(self, event)
        asked = answers.find_question(self.run_id, self.fold(), event, exact=True)
        answers.refuse_plain(self.run_id, asked)
        value = decisions.decision(yes, note, values.decode(asked.schema))
        return self.respond(value, by=by, note=note, event=event, start=start)

    async def _settled(self) -> Run:
        await decisions.settled(self)
        return self
