"""How one step is made: what `Context.with_options` takes."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from .retry import Retry


class Options(msgspec.Struct, frozen=True):
    """Options of a step.

    Attributes:
        returns: The type its value is encoded and decoded by; None means plain JSON.
        retry: How failed attempts are repeated inside the step.
        record_args: Whether its arguments are kept in the journal for people to read.
        timeout: Seconds that one attempt of an async function may take.
        on_doubt: What happens to a tool that may have acted: retry, ask or fail.
        idempotency_key: A tool's key; UNSET makes it from the arguments, None is unprotected.
    """

    returns: Any = None
    retry: Retry | None = None
    record_args: bool = True
    timeout: float | None = None
    on_doubt: str | None = None
    idempotency_key: str | UnsetType | None = UNSET


DEFAULT = Options()
