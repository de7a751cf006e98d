"""What a workflow sees: the calls that are recorded once and replayed ever after."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from .replay import Names
from .values import JSON


class Recorder(Protocol):
    """What a context needs of its session."""

    run_id: str
    number: int
    replaying: bool

    async def step(
        self,
        names: Names,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> JSON:
        """See `Context.step`."""
        ...

    async def suspend(
        self, names: Names, event: str, prompt: str | None, schema: JSON, context: JSON
    ) -> JSON:
        """See `Context.suspend`."""
        ...


class Context:
    """The ``ctx`` of one run, for the task that the workflow runs in.

    Ids depend on the order of calls, so a ctx belongs to one task: a call from another one, or
    while another call is in flight, raises `ConcurrentUseError`.
    """

    __slots__ = ("_names", "_session")

    def __init__(self, session: Recorder, names: Names) -> None:
        self._session = session
        self._names = names

    @property
    def run_id(self) -> str:
        """The run's id; the same in every session."""
        return self._session.run_id

    @property
    def session(self) -> int:
        """The number of this attempt, counted from 1."""
        return self._session.number

    @property
    def replaying(self) -> bool:
        """Whether this session has not acted yet: recorded results are being handed back."""
        return self._session.replaying

    async def step(
        self,
        name: str,
        fn: Callable[..., Awaitable[Any]] | Callable[..., Any],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> JSON:
        """Run ``fn(*args, **kwargs)`` once in the life of the run, and return its recorded value.

        Args:
            name: Names the step. Its id is the name; the second use of a name on the run has the
                id ``name#2``, the third ``name#3``.
            fn: An async function, or a plain one, which runs in a thread.
            args: Passed on. Kept in the journal for people to read where JSON can carry them
                and they are small; secrets by their usual names are left out.
            kwargs: Passed on, and kept likewise.

        Returns:
            The decoded value, live as on replay: tuples come back as lists. It is durable.

        Raises:
            StepFailedError: ``fn`` raised; recorded, and raised again on every replay.
            JournalValueError: JSON cannot carry the value back; nothing was recorded.
            ReplayMismatchError: The journal has something else recorded here.
            ConcurrentUseError: Called from another task or during another call.
        """
        return await self._session.step(self._names, name, fn, args, kwargs)

    async def suspend(
        self,
        event: str,
        *,
        prompt: str | None = None,
        schema: JSON = None,
        context: JSON = None,
    ) -> JSON:
        """Wait for an answer from outside; the process may exit meanwhile.

        Args:
            event: Names what is waited for; its id is counted like a step's.
            prompt: The question, for whoever answers.
            schema: JSON Schema (without ``$ref``) of the answer. Without one the panel answers
                ``{"approved": bool, "note": str}``.
            context: What the person needs to see to decide (a diff, a text, JSON).

        Returns:
            The answer, once there is one; until then the call does not return: the session ends
            with the question as its last entry, durable, and `resume` goes on from here.
        """
        return await self._session.suspend(self._names, event, prompt, schema, context)
