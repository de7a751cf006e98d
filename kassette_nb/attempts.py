"""Many runs side by side, here or on an executor: the handle, and what a worker does.

An executor may lose a worker, and may call twice for the same run: a run's journal decides. What
is recorded is not run again, whoever takes the run up, and what comes back is small: its id and
where it got to.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from . import background, display, state
from .clock import SystemClock
from .errors import KassetteError, RunBusyError
from .journal import read
from .recovery import Recovered
from .results import RunResult, recorded
from .state import RunState
from .storage import Storage
from .text import first_line
from .verification import Verification

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
        self._failed: dict[str, BaseException] = {}

    def __repr__(self) -> str:
        return "\n".join([f"<{self.line}>", *self.problems])

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
            KassetteError: See `check`; nothing was begun.
        """
        check(self._workflow, via, limit)
        self._epoch += 1
        self._failed = {r: p for r, p in self._failed.items() if r not in run_ids}
        if via is None:
            gate = threading.Semaphore(limit or max(1, len(run_ids)))
            for run_id in run_ids:
                self._there.pop(run_id, None)
                self._here[run_id] = self._launch(run_id, gate)
            return
        for run_id in run_ids:
            self._here.pop(run_id, None)
            self._there.pop(run_id, None)
            try:
                self._there[run_id] = self._submit(via, run_id)
            except Exception as problem:  # it took some, so what it did not take is told
                self._failed[run_id] = problem

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
            parts.append(f"when forked: {self.verification.line}")
        count = len(self.run_ids)
        return f"{count} {'attempt' if count == 1 else 'attempts'}: {' · '.join(parts)}"

    @property
    def problems(self) -> list[str]:
        """What keeps runs from going on, a line each: which, the error, and what to do."""
        found: dict[str, list[str]] = {}
        for run_id in self.run_ids:
            problem = self._error(run_id)
            if problem is not None and not self._settled_now(run_id):
                found.setdefault(told(problem), []).append(run_id)
        return [f"{', '.join(run_ids)}: {line}" for line, run_ids in found.items()]

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

    def _settled_now(self, run_id: str) -> bool:
        folded = self._fold(run_id)
        return folded.terminal or folded.status == state.SUSPENDED

    def _outcome(self, run_id: str) -> Recovered:
        folded = self._fold(run_id)
        if folded.terminal or folded.status == state.SUSPENDED:
            return Recovered(run_id, recorded(run_id, folded))
        return Recovered(run_id, error=self._error(run_id))

    def _error(self, run_id: str) -> BaseException | None:
        session, future = self._here.get(run_id), self._there.get(run_id)
        if session is not None:
            return session.error
        if future is None:
            return self._failed.get(run_id)
        if not future.done():
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


def check(workflow: Runner, via: Any, limit: object) -> None:
    """Refuse what attempts cannot be run by; nothing is begun.

    Raises:
        KassetteError: ``via`` is no executor, is shut, cannot see the storage or cannot be sent
            the workflow; ``limit`` is no count, or given with ``via``.
    """
    if limit is not None and (type(limit) is not int or limit < 1):
        raise KassetteError(
            f"limit={limit!r} is no count: limit= is how many attempts run at once in this "
            "process, 1 or more; leave it out for all. Nothing was written."
        )
    if via is None:
        return
    if limit is not None:
        raise KassetteError(
            "limit= counts attempts in this process, and via= runs them elsewhere: give the "
            "executor that many workers instead. Nothing was written."
        )
    if isinstance(via, type) or not callable(getattr(via, "submit", None)):
        raise KassetteError(
            f"via={first_line(repr(via), 60)} has no submit(): give an executor, as in "
            "via=ThreadPoolExecutor(4), or a Dask client, as in via=Client(). Nothing was written."
        )
    url = workflow.storage.url
    if url.startswith("memory:") and not isinstance(via, ThreadPoolExecutor):
        raise KassetteError(
            f"the runs of {url} are in this process's memory, where a worker cannot see them. "
            "Use a storage in a directory or an object store."
        )
    if _in_processes(via):
        try:
            pickle.loads(pickle.dumps(workflow))
        except Exception as problem:
            raise KassetteError(f"{told(problem)} Nothing was written.") from problem
    try:
        via.submit(abs, 0)  # the only question that every kind of executor answers
    except Exception as problem:
        raise KassetteError(
            f"via={first_line(repr(via), 60)} takes no work: {type(problem).__name__}: {problem}. "
            "Give one that is open. Nothing was written."
        ) from problem


def _in_processes(via: object) -> bool:
    # Whoever has a pool of processes has its module; nobody else should wait for it.
    module = sys.modules.get("concurrent.futures.process")
    return module is not None and isinstance(via, module.ProcessPoolExecutor)


def told(problem: BaseException) -> str:
    """Return an error in one line, with what to do where a workflow could not be sent."""
    line = first_line(f"{type(problem).__name__}: {problem}", 200)
    text = str(problem)
    sent = isinstance(problem, pickle.PicklingError | ImportError) or (
        isinstance(problem, AttributeError | TypeError)
        and ("pickle" in text or "Can't get " in text)
    )
    if not sent:
        return line
    return (
        f"{line}. A worker process must be able to import the workflow: put it in a module, or use "
        "an executor that sends functions along (Dask, cloudpickle), or run it here, without via=."
    )


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
