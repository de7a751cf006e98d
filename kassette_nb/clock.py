"""The time, as an argument: what a journal stamps its entries with."""

from __future__ import annotations

import asyncio
import time
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


def stamp_now(clock: Clock) -> str:
    """Return the present in the journal's form; the machine's clock has a short way to it.

    Two of them stand in every step, and formatting a zone-aware datetime costs several times as
    much as formatting the milliseconds behind a second that is known.
    """
    global _second
    if type(clock) is not SystemClock:
        return stamp(clock.now())
    now = time.time()
    second, text = _second
    past = now - second
    if not 0.0 <= past < 1.0:
        second = now // 1.0
        text = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second))
        _second = second, text
        past = now - second
    return text + _MILLISECONDS[int(past * 1000.0)]


#: The second of the newest stamp and its text; set as one, since threads stamp too.
_second = (0.0, "1970-01-01T00:00:00.")
_MILLISECONDS = [f"{number:03}Z" for number in range(1000)]


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
