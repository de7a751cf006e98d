"""Many runs of a workflow at once: forks of one point of a run, and runs that are there already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from . import attempts, blocking, fork, values
from .attempts import Attempts, Executor
from .definition import Definition
from .errors import JournalValueError, KassetteError, MetadataMismatchError
from .journal import Journal, read
from .results import RunResult
from .storage import Storage, check_run_id
from .text import first_line
from .values import JSON
from .verification import Verification, verify


class Many:
    """The calls of a workflow that begin many runs at once; part of `Workflow`."""

    definition: Definition

    @property
    def name(self) -> str:
        """What journals call it."""
        return self.definition.name

    @property
    def storage(self) -> Storage:
        """Where the runs are recorded."""
        raise NotImplementedError

    async def start(self, /, *args: Any, run_id: str | None = None, **kwargs: Any) -> RunResult:
        """Begin a run, or go on with an open one."""
        raise NotImplementedError

    def start_sync(self, /, *args: Any, run_id: str | None = None, **kwargs: Any) -> RunResult:
        """Do what `start` does, from code that cannot await."""
        raise NotImplementedError

    def fork_many(
        self,
        run_id: str,
        at: str | int | None = None,
        *,
        n: int | None = None,
        values: Sequence[JSON] | None = None,
        params: Sequence[Mapping[str, JSON]] | None = None,
        labels: Sequence[str] | None = None,
        via: Executor | None = None,
        limit: int | None = None,
    ) -> Attempts:
        """Fork a run several times at one point, and let the forks run side by side.

        What they share is copied, not paid again; first the code is verified against it.

        Args:
            run_id: The source.
            at: The step that runs again, or an offset; with ``values`` the step whose result
                they are.
            n: So many attempts without any difference.
            values: One attempt for each: the result that the step ``at`` has instead.
            params: One attempt for each: other arguments, seen by what runs live.
            labels: Names for people; by default what tells the attempts apart.
            via: A ``concurrent.futures.Executor`` or a Dask client; by default, this process.
            limit: How many at once in this process; not with ``via``.

        Returns:
            A handle: ``await`` it, or call ``wait()`` in a script. The forks are durable; if this
            process dies, `take_up` gives the handle back.

        Raises:
            ReplayMismatchError: The code does not fit what is recorded; nothing was written.
            KassetteError: An argument makes no sense, or ``via`` takes no work or cannot be sent
                the workflow; see `fork`, too. Nothing was written.
        """
        attempts.check(self, via, limit)
        handle = _made(self, self.definition, Asked(run_id, at, n, values, params, labels))
        handle.begin(handle.run_ids, via, limit)
        return handle

    def take_up(
        self,
        run_ids: Sequence[str],
        *,
        via: Executor | None = None,
        limit: int | None = None,
    ) -> Attempts:
        """Return a handle over runs that are there, and let those go on that nobody is at work on.

        The way back to attempts whose kernel or script has died: ``recover`` passes over forks
        that were never begun, since a person may have made them to look at. The forks of a run
        are ``kb.open(…).forks_of(run_id)``.

        Args:
            run_ids: The runs, of this workflow.
            via: As for `fork_many`.
            limit: As for `fork_many`.

        Returns:
            The handle that `fork_many` returns. Begun are the runs that are ready or interrupted;
            it tells of the others, too: those that have ended, wait for an answer, or are held by
            another session. Nothing new is durable yet.

        Raises:
            UnknownRunError: One is not there; none was begun.
            MetadataMismatchError: One is of another workflow; none was begun.
            KassetteError: ``run_ids``, ``via`` or ``limit`` make no sense; none was begun.
        """
        if not isinstance(run_ids, list | tuple) or not run_ids:
            raise KassetteError(
                f"take_up takes a list of run ids, not {first_line(repr(run_ids), 60)}: "
                "take_up(['run.2', 'run.3']). Nothing was begun."
            )
        attempts.check(self, via, limit)
        for run_id in run_ids:
            opening = read(self.storage, check_run_id(run_id)).opening
            if opening.workflow != self.name:
                raise MetadataMismatchError(
                    f"run {run_id!r} is of workflow {opening.workflow!r}, not {self.name!r}. "
                    "Nothing was begun.",
                    run_id=run_id,
                    what="workflow",
                    recorded=opening.workflow,
                    given=self.name,
                )
        handle = Attempts(self, list(dict.fromkeys(run_ids)))
        handle.reap(via, limit)
        return handle


class Asked(msgspec.Struct, frozen=True):
    """The arguments of `Many.fork_many`."""

    run_id: str
    at: str | int | None
    n: int | None
    values: Sequence[JSON] | None
    params: Sequence[Mapping[str, JSON]] | None
    labels: Sequence[str] | None


def _made(workflow: Many, definition: Definition, asked: Asked) -> Attempts:
    """Fork a run several times at one point; nothing is begun yet.

    Everything that can be refused is refused before the first fork is made.

    Raises:
        KassetteError: See `Many.fork_many`; nothing was written.
    """
    storage = workflow.storage
    count = _checked(storage, asked)
    overrides, params, labels = asked.values, asked.params, asked.labels
    found: list[Verification] = []

    def check(draft: Journal) -> None:
        found.append(blocking.run(lambda: verify(definition, draft)))
        if found[-1].divergence is not None:
            raise found[-1].divergence

    def make(number: int, *, draft: bool) -> str:
        return fork.fork(
            storage,
            asked.run_id,
            at=None if overrides is not None else asked.at,
            override={str(asked.at): overrides[number]} if overrides is not None else None,
            params=params[number] if params is not None else None,
            label=labels[number] if labels is not None else _label(asked, number),
            check=check if draft and (number == 0 or params is not None) else None,
            declared=definition.workspace is not None,
            draft=draft,
        )

    for number in range(count):
        make(number, draft=True)
    made = [make(number, draft=False) for number in range(count)]
    return Attempts(workflow, made, found[0])


def _checked(storage: Storage, asked: Asked) -> int:
    """Return how many attempts are asked for, or raise what is wrong with them."""
    n, overrides, params, labels = asked.n, asked.values, asked.params, asked.labels
    if sum(each is not None for each in (n, overrides, params)) != 1:
        raise KassetteError(
            "say how the attempts differ with one of n= (they do not), values= (the result of "
            "the step at=) and params= (arguments of the workflow). Nothing was written."
        )
    if n is not None and type(n) is not int:
        raise KassetteError(
            f"n={n!r} is no count: n= is how many attempts to make, as in n=4. Nothing was written."
        )
    _listed("values", overrides, "results, one for each attempt: values=['a', 'b']")
    _listed("params", params, "dicts, one for each attempt: params=[{'temperature': 1}]")
    _listed("labels", labels, "texts, one for each attempt: labels=['a', 'b']")
    for number, changed in enumerate(params or ()):
        if not isinstance(changed, Mapping):
            raise KassetteError(
                f"params[{number}] is {first_line(repr(changed), 60)}, not a dict of the "
                "workflow's arguments: params=[{'temperature': 1}]. Nothing was written."
            )
    for number, label in enumerate(labels or ()):
        if not isinstance(label, str):
            raise KassetteError(f"labels[{number}] is {label!r}, no text. Nothing was written.")
    count = n if n is not None else len(overrides if overrides is not None else params or ())
    if count < 1:
        raise KassetteError("there is no attempt to make: n, values or params is empty.")
    if labels is not None and len(labels) != count:
        raise KassetteError(f"{len(labels)} labels for {count} attempts. Nothing was written.")
    if overrides is not None and not isinstance(asked.at, str):
        raise KassetteError("values= are results of one step: name it with at=<step id>.")
    for number, value in enumerate(overrides or ()):
        values.encode(value, what=f"values[{number}]")
    opening = read(storage, asked.run_id).opening
    known = values.decode(opening.metadata, what="arguments")
    for number, changed in enumerate(params or ()):
        for name in changed:
            if not isinstance(known, dict) or name not in known:
                names = ", ".join(known) if isinstance(known, dict) else "none"
                raise JournalValueError(
                    f"params[{number}]: the workflow has no argument {name!r} (it has {names}). "
                    "Nothing was written.",
                    path=f"params[{number}].{name}",
                    reason="no such argument",
                )
        values.encode(dict(changed), what=f"params[{number}]")
    return count


def _listed(name: str, given: object, what: str) -> None:
    if given is not None and (not isinstance(given, Sequence) or isinstance(given, str | bytes)):
        raise KassetteError(
            f"{name}={first_line(repr(given), 60)} is no list; {name}= takes a list of {what}. "
            "Nothing was written."
        )


def _label(asked: Asked, number: int) -> str | None:
    """Return what tells an attempt from the others, for people."""
    if asked.params is not None:
        return first_line(", ".join(f"{k}={v}" for k, v in asked.params[number].items()), 40)
    value = asked.values[number] if asked.values is not None else None
    return first_line(value, 40) if isinstance(value, str) else None
