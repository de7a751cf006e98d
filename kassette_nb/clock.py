"""The time, as an argument: what a journal stamps its entries with."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Anything that tells the time."""

    def now(self) -> datetime:
        """Return the current instant, timezone-aware, in UTC."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait so many seconds in the process."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the machine's current time in UTC."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Wait on the event loop."""
        await asyncio.sleep(seconds)


def stamp(instant: datetime) -> str:
    """Return the journal's form of an instant: UTC, ISO 8601, milliseconds, ``Z``."""
    return instant.isoformat(timespec="milliseconds")[:23] + "Z"


def instant(text: str) -> datetime:
    """Return the instant a journal's timestamp means.

    Raises:
        ValueError: The text is not an ISO 8601 timestamp with a zone.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"timestamp {text!r} has no time zone")
    return moment
