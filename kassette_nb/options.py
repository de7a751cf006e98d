"""How one step is made: what `Context.with_options` takes."""

from __future__ import annotations

from typing import Any

import msgspec

from .retry import Retry


class Options(msgspec.Struct, frozen=True):
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
