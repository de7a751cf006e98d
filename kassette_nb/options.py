"""How one step is made: what `Context.with_options` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .retry import Retry


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a step.

    Attributes:
        returns: The type its value is encoded and decoded by; None means plain JSON.
        retry: How failed attempts are repeated inside the step.
        record_args: Whether its arguments are kept in the journal for people to read.
        timeout: Seconds that one attempt of an async function may take.
    """

    returns: Any = None
    retry: Retry | None = None
    record_args: bool = True
    timeout: float | None = None


DEFAULT = Options()
