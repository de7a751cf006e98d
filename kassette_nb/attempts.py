"""Many attempts from one point of a run: forked, then run side by side, here or on an executor.

An executor may lose a worker, and may call twice for the same run: a run's journal decides. What
is recorded is not run again, whoever takes the run up, and what comes back is small: its id and
where it got to.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import msgspec

from . import background, blocking, display, fork, state, values
from .clock import SystemClock
from .definition import Definition
from .errors import JournalValueError, KassetteError, RunBusyError
from .journal import Journal, read
from .recovery import Recovered
from .results import RunResult, recorded
from .state import RunState
from .storage import Storage
from .text import first_line
from .values import JSON
from .verification import Verification, verify

#: Seconds for which a worker waits for a run that another one still holds.
PATIENCE = 30.0


class Runner(Protocol):
    """What attempts need of a workflow."""

    @property
    def name(self) -> str: ...

    @property
    def storage(self) -> Storage: ...

    async def start(self, /, *args: Any, run_id: str | None = None, **kwargs: Any) -> RunResult: ...

    def start_sync(self, /, *args: Any, run_id: str | None = None, **kwargs: Any) -> RunResult: ...


class Executor(Protocol):
    """A ``concurrent.futures.Executor`` or a Dask client."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...


class Attempts:
    """Runs that go on side by side; ``await`` them, or `wait`, for what became of each.

    ``verification`` says how the code fits the part that they share.
    """

    def __init__(
        self, workflow: Runner, run_ids: Sequence[str], verification: Verification | None = None
    ) -> None:
        self.run_ids = tuple(run_ids)
        self.verification = verification
        self._workflow = workflow
        self._storage = workflow.storage
        self._began = time.monotonic()
        self._epoch = 0
        self._here: dict[str, background.Background] = {}
        self._there: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<{self.line}>"

    def __await__(self) -> Generator[Any, None, list[Recovered]]:
        return self._settled().__await__()

    def _ipython_display_(self) -> None:
        if not display.show("attempts", self):
            raise NotImplementedError

    def begin(
        self, run_ids: Sequence[str], via: Executor | None = None, limit: int | None = None
    ) -> None:
        """Let runs go on.

        Args:
            run_ids: Which of them.
            via: Where; None: in this process, on the loop that is running or in threads.
            limit: How many at once, in this process.

        Raises:
            KassetteError: An executor's processes cannot see the storage.
        """
        self._epoch += 1
        if via is None:
            gate = threading.Semaphore(limit or max(1, len(run_ids)))
            for run_id in run_ids:
                self._there.pop(run_id, None)
                self._here[run_id] = self._launch(run_id, gate)
            return
        storage = self._storage
        if storage.url.startswith("memory:") and not isinstance(via, ThreadPoolExecutor):
            raise KassetteError(
                f"the runs of {storage.url} are in this process's memory, where a worker cannot "
                "see them. Use a storage in a directory or an object store."
            )
        for run_id in run_ids:
            self._here.pop(run_id, None)
            self._there[run_id] = self._submit(via, run_id)

    def wait(self, timeout: float | None = None) -> list[Recovered]:
        """Block until all have settled; for scripts and executors, not for a notebook's loop.

        Args:
            timeout: Seconds.

        Raises:
            TimeoutError: They have not settled by then.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.done:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(self.line)
            time.sleep(0.02)
        return self.outcomes()

    @property
    def done(self) -> bool:
        """Whether nothing that was begun is still at work."""
        here = all(session.done for session in self._here.values())
        return here and all(future.done() for future in self._there.values())

    def outcomes(self) -> list[Recovered]:
        """Return where each run is now, by its journal; ``error`` is what interrupted it."""
        return [self._outcome(run_id) for run_id in self.run_ids]

    def reap(self, via: Executor | None = None, limit: int | None = None) -> tuple[str, ...]:
        """Take up again what a killed worker or process left behind.

        Not done by itself: what killed a worker may kill the next one.

        Args:
            via: Where; None: in this process.
            limit: How many at once, in this process.

        Returns:
            The runs that go on: those that were open, did not wait for an answer, and were held
            by nobody.
        """
        left = [run_id for run_id in self.run_ids if self._idle(run_id)]
        if left:
            self.begin(left, via, limit)
        return tuple(left)

    @property
    def line(self) -> str:
        """How far they are, in one line."""
        folds = [self._fold(run_id) for run_id in self.run_ids]
        counts: dict[str, int] = {}
        for folded in folds:
            counts[folded.status] = counts.get(folded.status, 0) + 1
        parts = [", ".join(f"{count} {status}" for status, count in counts.items())]
        own = sum(sum(step.offset >= f.copied for step in f.steps) for f in folds)
        parts.append(f"{own} steps")
        costs = [f.own.cost_usd for f in folds if f.own.cost_usd is not None]
        if costs:
            parts.append(f"${sum(costs):.2f}")
        at = [f.steps[-1].step_id for f in folds if f.status == state.RUNNING and f.steps]
        if at:
            parts.append(f"last recorded: {first_line(', '.join(dict.fromkeys(at)), 60)}")
        if not self.done:
            parts.append(f"{time.monotonic() - self._began:.0f} s")
        if self.verification is not None:
            parts.append(self.verification.line)
        count = len(self.run_ids)
        return f"{count} {'attempt' if count == 1 else 'attempts'}: {' · '.join(parts)}"

    # ------------------------------------------------------------------------------- inside

    def _launch(self, run_id: str, gate: threading.Semaphore) -> background.Background:
        async def session() -> RunResult:
            # The sessions may be on loops of several threads, which asyncio's own gates cannot
            # cross.
            while not gate.acquire(blocking=False):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            try:
                return await self._workflow.start(run_id=run_id)
            finally:
                gate.release()

        return background.start(self._storage.locate(run_id), session, run_id, self._storage)

    def _submit(self, via: Executor, run_id: str) -> Any:
        # Dask takes equal calls for one and hands back an old result, unless told otherwise.
        if type(via).__module__.partition(".")[0] in ("distributed", "dask"):
            key = f"kassette-{run_id}-{self._epoch}"
            return via.submit(work, self._workflow, run_id, key=key, pure=False)
        return via.submit(work, self._workflow, run_id)

    async def _settled(self) -> list[Recovered]:
        while not self.done:  # noqa: ASYNC110  # threads and other processes are at work
            await asyncio.sleep(0.02)
        return self.outcomes()

    def _outcome(self, run_id: str) -> Recovered:
        folded = self._fold(run_id)
        if folded.terminal or folded.status == state.SUSPENDED:
            return Recovered(run_id, recorded(run_id, folded))
        return Recovered(run_id, error=self._error(run_id))

    def _error(self, run_id: str) -> BaseException | None:
        session, future = self._here.get(run_id), self._there.get(run_id)
        if session is not None:
            return session.error
        if future is None or not future.done():
            return None
        try:
            problem: BaseException | None = future.exception()
        except BaseException as cancelled:
            return cancelled
        return problem

    def _fold(self, run_id: str) -> RunState:
        journal = read(self._storage, run_id)
        held = self._storage.holder(run_id) is not None
        return state.fold(journal.entries, SystemClock().now(), held=held)

    def _idle(self, run_id: str) -> bool:
        session, future = self._here.get(run_id), self._there.get(run_id)
        if (session is not None and not session.done) or (future is not None and not future.done()):
            return False
        return self._fold(run_id).status in (state.INTERRUPTED, state.READY)


def work(workflow: Runner, run_id: str) -> tuple[str, str]:
    """Run one attempt in a worker: at least once, and each recorded step once.

    Returns:
        The run's id and its status: a reference, since an executor may keep what comes back, and
        call again for a result that it has lost.

    Raises:
        RunBusyError: Another worker still holds the run after `PATIENCE` seconds.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return run_id, workflow.start_sync(run_id=run_id).status
        except RunBusyError:
            if time.monotonic() > deadline:
                raise


class Asked(msgspec.Struct, frozen=True):
    """The arguments of `kassette_nb.workflow.Workflow.fork_many`."""

    run_id: str
    at: str | int | None
    n: int | None
    values: Sequence[JSON] | None
    params: Sequence[Mapping[str, JSON]] | None
    labels: Sequence[str] | None


def make(workflow: Runner, definition: Definition, asked: Asked) -> Attempts:
    """Fork a run several times at one point; nothing is begun yet.

    Everything that can be refused is refused before the first fork is made.

    Raises:
        KassetteError: See `kassette_nb.workflow.Workflow.fork_many`; nothing was written.
    """
    storage = workflow.storage
    count = _checked(storage, asked)
    overrides, params, labels = asked.values, asked.params, asked.labels
    found: list[Verification] = []

    def check(draft: Journal) -> None:
        found.append(blocking.run(lambda: verify(definition, draft)))
        if found[-1].divergence is not None:
            raise found[-1].divergence

    made = [
        fork.fork(
            storage,
            asked.run_id,
            at=None if overrides is not None else asked.at,
            override={str(asked.at): overrides[number]} if overrides is not None else None,
            params=params[number] if params is not None else None,
            label=labels[number] if labels is not None else _label(asked, number),
            check=check if number == 0 or params is not None else None,
            declared=definition.workspace is not None,
        )
        for number in range(count)
    ]
    return Attempts(workflow, made, found[0])


def _checked(storage: Storage, asked: Asked) -> int:
    """Return how many attempts are asked for, or raise what is wrong with them."""
    n, overrides, params, labels = asked.n, asked.values, asked.params, asked.labels
    if sum(each is not None for each in (n, overrides, params)) != 1:
        raise KassetteError(
            "say how the attempts differ with one of n= (they do not), values= (the result of "
            "the step at=) and params= (arguments of the workflow). Nothing was written."
        )
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


def _label(asked: Asked, number: int) -> str | None:
    """Return what tells an attempt from the others, for people."""
    if asked.params is not None:
        return first_line(", ".join(f"{k}={v}" for k, v in asked.params[number].items()), 40)
    value = asked.values[number] if asked.values is not None else None
    return first_line(value, 40) if isinstance(value, str) else None
