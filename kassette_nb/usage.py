"""What a step spent: handed over with its value, or told while it runs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Awaitable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Protocol

from msgspec.structs import replace

from .entries import Usage
from .errors import JournalValueError

_NUMBERS = (
    "input_tokens",
    "output_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "cost_usd",
    "latency_ms",
    "unpriced",
)

_FRACTIONS = frozenset({"cost_usd", "latency_ms"})


class WithUsage:
    """A step's value together with what it spent; made by `with_usage`."""

    __slots__ = ("usage", "value")

    def __init__(self, value: Any, usage: Usage) -> None:
        self.value = value
        self.usage = usage


def with_usage(value: Any, usage: Usage) -> Any:
    """Return a step's value with its usage: ``return with_usage(answer, Usage(model=…))``.

    The workflow gets the value alone; the usage is recorded beside it, counted in budgets and
    frames, and shown. A usage that names a model makes the step one of kind ``llm``.

    Args:
        value: What the step returns.
        usage: Tokens, US dollars and model, as far as they are known.

    Raises:
        JournalValueError: A number is negative or none.
    """
    check(usage)
    return WithUsage(value, usage)


def check(usage: Usage) -> None:
    """Refuse a usage that would spoil every sum it goes into.

    Raises:
        JournalValueError: It is no `Usage`, a number is negative or none, a count is not whole,
            or the model is no text.
    """
    if not isinstance(usage, Usage):
        raise _refused("usage", f"a {type(usage).__name__} is not a Usage(…)")
    if usage.model is not None and type(usage.model) is not str:
        raise _refused("model", f"model={usage.model!r} is not a text")
    for name in _NUMBERS:
        number = getattr(usage, name)
        if number is None:
            continue
        # Exact types: JSON would not carry a numpy number, and a reader expects whole counts.
        wanted = (int, float) if name in _FRACTIONS else (int,)
        if type(number) not in wanted or not math.isfinite(number) or number < 0:
            kind = "a plain number" if len(wanted) > 1 else "a plain whole number"
            raise _refused(name, f"{name}={number!r} is not {kind}, 0 or more")


def _refused(name: str, reason: str) -> JournalValueError:
    return JournalValueError(
        f"usage: {reason}. Nothing was recorded.", path=f"$.{name}", reason=reason
    )


def warn(message: str) -> None:
    """Tell that spending cannot be counted, where a warning can be heard without harm.

    Where warnings are errors it is silent: an answer that is paid for is not lost for it.
    """
    with suppress(RuntimeWarning):
        warnings.warn(message, RuntimeWarning, stacklevel=2)


class Watched(Protocol):
    """A model call inside a step whose answer is still being read."""

    def left(self) -> None:
        """Take note that nobody reads on: the step has come to its end."""
        ...

    def release(self) -> Awaitable[None] | None:
        """Close the connection; what is returned is to be awaited."""
        ...


class Tally:
    """What the step that is running has spent so far; see `running`.

    Args:
        session: The session that the step belongs to, by identity.

    Attributes:
        usages: What the function told.
        seen: What the model calls made inside spent, as their answers say.
        calls: The same calls for people to read: request, answer, usage.
        open: Those whose answers are still being read.
    """

    __slots__ = ("calls", "open", "seen", "session", "usages")

    def __init__(self, session: object) -> None:
        self.session = session
        self.usages: list[Usage] = []
        self.seen: list[Usage] = []
        self.calls: list[Any] = []
        self.open: list[Watched] = []

    def add(self, usage: Usage) -> None:
        """Count one more usage; from any thread.

        Raises:
            JournalValueError: A number in it is negative or none.
        """
        check(usage)
        self.usages.append(usage)

    def left(self) -> list[Watched]:
        """Take note that the step's function reads no further; return what it left open."""
        found = list(self.open)
        for call in found:
            call.left()
        return found

    async def release(self) -> None:
        """Do that, and close the connections that were left open."""
        for call in self.left():
            with suppress(Exception):  # the network's; nobody reads on
                closing = call.release()
                if closing is not None:
                    await closing

    def total(self, returned: Usage | None) -> Usage | None:
        """Return the sum with what came with the value; None where nothing was spent.

        What was seen counts where the function tells nothing: a function that counts for itself
        counts the same calls.
        """
        usages = [*self.usages, *([returned] if returned is not None else [])] or self.seen
        return total(usages) if usages else None


#: The tally of the step or tool whose function is running here. It goes into the tasks and
#: threads that the function starts.
running: ContextVar[Tally | None] = ContextVar("kassette step", default=None)


def total(usages: list[Usage]) -> Usage:
    """Return the sum of usages; calls whose price is not known are counted, not taken for free."""
    if len(usages) == 1:
        return usages[0]
    models = sorted({usage.model for usage in usages if usage.model is not None})
    made = Usage(model=", ".join(models) or None)
    for name in _NUMBERS[:-1]:
        known = [n for n in (getattr(usage, name) for usage in usages) if n is not None]
        setattr(made, name, sum(known) if known else None)
    missing = sum(unpriced(usage) for usage in usages)
    return replace(made, unpriced=missing or None)


def unpriced(usage: Usage) -> int:
    """Return how many of the calls in a usage have no known price."""
    if usage.unpriced is not None:
        return usage.unpriced
    return 1 if usage.cost_usd is None else 0
