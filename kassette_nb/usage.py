"""What a step spent, handed over with its value."""

from __future__ import annotations

import math
from typing import Any

from .entries import Usage
from .errors import JournalValueError


class WithUsage:
    """A step's value together with what it spent; made by `with_usage`."""

    __slots__ = ("usage", "value")

    def __init__(self, value: Any, usage: Usage) -> None:
        self.value = value
        self.usage = usage


def with_usage(value: Any, usage: Usage) -> Any:
    """Return a step's value with its usage: ``return with_usage(answer, Usage(model=…))``.

    The workflow gets the value alone; the usage is recorded beside it, counted in frames and
    shown. A usage that names a model makes the step one of kind ``llm``.

    Args:
        value: What the step returns.
        usage: Tokens, US dollars and model, as far as they are known.

    Raises:
        JournalValueError: A number is negative or none.
    """
    for name in ("input_tokens", "output_tokens", "cached_input_tokens", "cost_usd"):
        number = getattr(usage, name)
        if number is None:
            continue
        if not isinstance(number, int | float) or not math.isfinite(number) or number < 0:
            raise JournalValueError(
                f"usage: {name}={number!r} is not a number, 0 or more. Nothing was recorded.",
                path=f"$.{name}",
                reason="not a number, 0 or more",
            )
    return WithUsage(value, usage)
