"""How one step is made: what `Context.with_options` takes."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from .errors import JournalValueError
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

    def check_step(self, name: str) -> None:
        """Refuse what only a tool has: a step that may act twice would look protected.

        Raises:
            JournalValueError: An option of tools is set.
        """
        if self.on_doubt is None and self.idempotency_key is UNSET:
            return
        option = "idempotency_key" if self.on_doubt is None else "on_doubt"
        raise JournalValueError(
            f"step {name!r}: {option} is an option of tools, and does nothing for a step. If its "
            "function has side effects, call ctx.tool; else leave the option out. Nothing was "
            "recorded.",
            path=option,
            reason="an option of tools",
        )


DEFAULT = Options()
