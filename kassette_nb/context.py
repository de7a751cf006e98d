"""What a workflow sees: the calls that are recorded once and replayed ever after."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from . import canonical, parallel, steps, tool, waits
from .branch import Branch
from .entries import Usage
from .errors import JournalValueError
from .options import DEFAULT, Options
from .retry import Retry, as_retry
from .session import Session
from .usage import running
from .values import JSON, decode


class _Keep:
    """Stands for an option that is left as it is."""

    def __repr__(self) -> str:
        return "<as it is>"


_KEEP: Any = _Keep()


class Context:
    """The ``ctx`` of one run, for the task that the workflow (or a branch of it) runs in.

    Ids depend on the order of calls, so a ctx belongs to one task: a call from another one, or
    while another call is in flight, raises `ConcurrentUseError`.
    """

    __slots__ = ("_branch", "_options", "_session")

    def __init__(self, session: Session, branch: Branch, options: Options = DEFAULT) -> None:
        self._session = session
        self._branch = branch
        self._options = options

    @property
    def run_id(self) -> str:
        """The run's id; the same in every session."""
        return self._session.run_id

    @property
    def session(self) -> int:
        """The number of this attempt, counted from 1; 0 in a verification."""
        return self._session.number

    @property
    def replaying(self) -> bool:
        """Whether this session has not acted yet: recorded results are being handed back."""
        return self._session.replaying

    @property
    def workspace(self) -> Path:
        """The directory that this run works in; a fork has one of its own.

        Raises:
            WorkspaceError: The workflow was not declared with ``workspace=``.
        """
        return self._session.directory

    def with_options(
        self,
        *,
        returns: Any = _KEEP,
        retry: Retry | int | None = _KEEP,
        record_args: bool = _KEEP,
        timeout: float | None = _KEEP,
        on_doubt: str = _KEEP,
        idempotency_key: str | None = _KEEP,
    ) -> Context:
        """Return the same ctx with options for the steps and tools made through it.

        Args:
            returns: The type of the value (a dataclass, TypedDict, msgspec struct, pydantic
                model, or a container of them): it is encoded and decoded by it, live and on
                replay.
            retry: Try again inside the step; a number is that many attempts in all. Failed
                attempts are notes in the journal.
            record_args: Whether arguments are kept in the journal for people to read.
            timeout: Seconds that one attempt of an async function may take; then it is cancelled
                and fails with TimeoutError.
            on_doubt: For tools. What happens to one that may have acted in a session that died:
                ``"retry"`` runs it again with the same key, ``"ask"`` suspends until a person has
                decided, ``"fail"`` records an `InDoubtError`. By default it is run again if
                its function takes the key, else asked about.
            idempotency_key: For tools. The key; by default one is made from the run, the step and
                the arguments. A text of yours is used as it is, in forks too; None says that the
                call has no protection.

        Raises:
            JournalValueError: ``on_doubt`` is another word, the key is empty, or ``retry`` is
                neither a `Retry` nor a number of attempts.
        """
        if on_doubt is not _KEEP and on_doubt not in tool.ON_DOUBT:
            raise JournalValueError(
                f"on_doubt={on_doubt!r} is none of {', '.join(map(repr, tool.ON_DOUBT))}.",
                path="on_doubt",
                reason="not a policy",
            )
        given = {"returns": returns, "record_args": record_args, "timeout": timeout}
        given["on_doubt"] = on_doubt
        given["idempotency_key"] = idempotency_key
        given["retry"] = retry if retry is _KEEP else as_retry(retry)
        if idempotency_key is not _KEEP:
            canonical.check_key(idempotency_key)
        changes = {name: value for name, value in given.items() if value is not _KEEP}
        return Context(self._session, self._branch, replace(self._options, **changes))

    async def step(
        self,
        name: str,
        fn: Callable[..., Awaitable[Any]] | Callable[..., Any],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Run ``fn(*args, **kwargs)`` once in the life of the run, and return its recorded value.

        Args:
            name: Names the step. Its id is the name; the second use of a name on the branch has
                the id ``name#2``, the third ``name#3``.
            fn: An async function, or a plain one, which runs in a thread.
            args: Passed on. Kept in the journal for people to read where JSON can carry them
                and they are small; secrets by their usual names are left out.
            kwargs: Passed on, and kept likewise.

        Returns:
            The decoded value, live as on replay: tuples come back as lists. It is durable.

        Raises:
            StepFailedError: ``fn`` raised; recorded, and raised again on every replay.
            JournalValueError: JSON cannot carry the value back, or the ctx has options that only
                tools have; nothing was recorded.
            ReplayMismatchError: The journal has something else recorded here.
            ConcurrentUseError: Called from another task or during another call.
        """
        session = self._session
        if session.replaying:
            recorded = session.recall(self._branch, name)
            if recorded is not None:
                if recorded.error is None and self._options.returns is None:
                    return decode(recorded.result, what=recorded.step_id)
                return steps.result(recorded, self._options.returns)
        self._options.check_step(name)
        return await steps.step(self._session, self._branch, self._options, name, fn, args, kwargs)

    async def tool(
        self,
        name: str,
        fn: Callable[..., Awaitable[Any]] | Callable[..., Any],
        /,
        *unnamed: Any,
        **args: Any,
    ) -> Any:
        """Run a function with side effects, so that a crash cannot make it act twice unseen.

        Its intent, with an idempotency key and the arguments, is durable before ``fn`` runs. After
        a crash in between, the next session finds an intent without a result: the call is in
        doubt, and `with_options(on_doubt=…)` says what happens then.

        Args:
            name: Names the step, as in `step`; it is part of the key.
            fn: An async function, or a plain one, which runs in a thread. One with a parameter
                ``idempotency_key`` is given the key, the same on every attempt: hand it to
                whatever acts, and let that act once per key.
            unnamed: Refused: a tool's arguments have names.
            args: Passed on by name. Recorded in the intent for people to read (secrets by their
                usual names hidden) and compared after a crash.

        Returns:
            The decoded value, live as on replay. It is durable.

        Raises:
            StepFailedError: ``fn`` raised, or its result cannot be recorded; the effect is known,
                so this is recorded, and raised again on every replay.
            InDoubtError: It may have acted, and ``on_doubt="fail"`` or a person said so.
            JournalValueError: An argument has no canonical form; nothing was recorded.
            ReplayMismatchError: It may have acted with other arguments than these.
            FencedError: Another session has the run; ``fn`` was not called.
        """
        return await tool.tool(self._session, self._branch, self._options, name, fn, unnamed, args)

    async def suspend(
        self,
        event: str,
        *,
        prompt: str | None = None,
        schema: JSON = None,
        context: JSON = None,
        timeout: float | None = None,  # noqa: ASYNC109  # outlives the process
    ) -> JSON:
        """Wait for an answer from outside; the process may exit meanwhile.

        Args:
            event: Names what is waited for; its id is counted like a step's.
            prompt: The question, for whoever answers.
            schema: JSON Schema (without ``$ref``) of the answer. Without one the panel answers
                ``{"approved": bool, "note": str}``.
            context: What the person needs to see to decide (a diff, a text, JSON).
            timeout: Seconds from the first asking after which no answer counts any more: the run
                is then cancelled by whoever looks next.

        Returns:
            The answer, once there is one; until then the call does not return: the session ends
            with the question as its last entry, durable, and `resume` goes on from here.
        """
        return await waits.suspend(
            self._session, self._branch, event, prompt, schema, context, timeout
        )

    async def sleep(self, seconds: float, *, short: float = waits.SHORT) -> None:
        """Wait for a time that survives a crash: the moment of waking is recorded once.

        Args:
            seconds: How long, from now.
            short: Sleeps of which no more than so many seconds are left wait in the process;
                longer ones suspend the run, and `Workflow.recover` continues it when due.
        """
        await waits.sleep(self._session, self._branch, seconds, short)

    async def parallel(self, branches: Mapping[str, Callable[..., Any]], /) -> dict[str, Any]:
        """Run branches side by side.

        Args:
            branches: Functions by key. One with a parameter that has no default gets a ctx of its
                own; the ids of its steps begin with ``key/``. A plain one is a single step named
                by its key.

        Returns:
            The results by key, in declared order, whatever finished first.

        Raises:
            BaseException: The first failed branch's error, in declared order, after all branches
                have settled. An unanswered suspension in any branch suspends the block first.
        """
        return await parallel.parallel(
            self._session,
            self._branch,
            self._options,
            branches,
            lambda branch: Context(self._session, branch),
        )

    def record_usage(self, usage: Usage) -> None:
        """Count what the step that is running has spent; for its function, on any thread.

        Args:
            usage: Tokens, US dollars and model, as far as they are known. Several are summed;
                what comes with the value (`kassette_nb.with_usage`) is added.

        Raises:
            JournalValueError: A number is negative or none, or no step of this run is running
                here: outside of one there is no line that it could stand in.
        """
        tally = running.get()
        if tally is None or tally.session is not self._session:
            raise JournalValueError(
                f"run {self.run_id!r}: record_usage() is for the function of a step or tool of "
                "this run; its sum is recorded in that step's line. Nothing was recorded.",
                path="record_usage",
                reason="no step is running here",
            )
        tally.add(usage)

    async def now(self) -> datetime:
        """Return the time, recorded once: a prompt built from it is the same after a crash."""
        return await steps.now(self._session, self._branch)

    async def random(self) -> float:
        """Return a random number in [0, 1), recorded once."""
        return await steps.chance(self._session, self._branch)

    async def uuid(self) -> str:
        """Return a random UUID as text, recorded once."""
        return await steps.unique(self._session, self._branch)

    def print(self, *values: object, **options: Any) -> None:
        """Print only when live, so that a replay does not repeat itself."""
        if not self._session.replaying:
            print(*values, **options)  # noqa: T201  # what it is for
