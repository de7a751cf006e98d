"""What a session finds recorded, and what it writes: the passing from replay to live."""

from __future__ import annotations

import threading
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from msgspec import UNSET

from . import values
from .budget import Meter
from .entries import Known, Payload, Resume, Start, Suspend
from .errors import LiveForbidden, Suspended
from .journal import Writer
from .replay import Cursor
from .state import BUDGET
from .values import JSON

if TYPE_CHECKING:
    from .workspace import Recorder


class Recording:
    """The journal as one session sees it.

    Args:
        cursor: What is recorded.
        writer: Appends; None to verify: nothing may go live.
        opening: The entry that opens the session, written just before the first live act; None
            when it is on record already.
        meter: Counts what the run spends where it has a budget.
        workspace: Keeps the files of the run, where it has any.
        max_payload: The largest value to record, in bytes of JSON.
    """

    def __init__(
        self,
        cursor: Cursor,
        writer: Writer | None,
        opening: Start | Resume | None,
        meter: Meter | None,
        workspace: Recorder | None,
        max_payload: int,
    ) -> None:
        self.run_id = cursor.run_id
        self.number = writer.session if writer else 0
        self.replaying = True
        self.replayed = 0
        self.cursor = cursor
        self.workspace = workspace
        self.max_payload = max_payload
        #: The questions that end this session.
        self.suspends: list[Suspend] = []
        #: How many branches run side by side: alone, an entry is written without a turn's delay.
        self.strands = 1
        #: The branches that have gone live.
        self.live: set[str] = set()
        self._meter = meter
        self._writer = writer
        self._opening = opening
        # A model call in a thread may be what goes live first.
        self._opens = threading.Lock()

    @property
    def verifies(self) -> bool:
        """Whether nothing may go live."""
        return self._writer is None

    def go_live(self, branch: str, asked: str) -> None:
        """Pass from replay to live: nothing recorded may be left over; open the session."""
        if branch in self.live:
            return  # nothing was left over, and a journal grows at its end only
        self.cursor.go_live(branch, asked)
        if self._writer is None:
            raise LiveForbidden(asked)
        self.replaying = False
        with self._opens:
            opening, self._opening = self._opening, None
            if opening is not None:
                self._writer.append(opening)
                if isinstance(opening, Resume):
                    self.cursor.answered(opening)
            if self.workspace is not None and (notes := self.workspace.opening()):
                self._writer.append(*notes)
        self.live.add(branch)

    def afford(self, step_id: str) -> None:
        """Count a step that is about to run live against the budget.

        Raises:
            Suspended: The budget is spent; the session asks for new limits, once.
            BudgetExceededError: It is spent, and the workflow wants to fail then.
        """
        meter = self._meter
        over = meter.begin(step_id) if meter is not None else None
        if meter is None or over is None:
            return
        if meter.budget.on_exceeded == "fail":
            raise meter.error(over)
        if not any(entry.event_name == BUDGET for entry in self.suspends):
            self.suspends.append(meter.question(over, self.number))
        raise Suspended(self.run_id, BUDGET)

    def record(self, entry: Known) -> Awaitable[None] | None:
        """Append an entry: durable on return, or when what is returned has been awaited.

        Alone, an entry is written at once; branches that are ready together share one write, and
        one that takes network time does not hold up the loop.
        """
        assert self._writer is not None, "only a live session records"
        if self.workspace is not None and (notes := self.workspace.mark(entry)):
            self._writer.append(*notes)
        if self._meter is not None:
            self._meter.count(entry)
        if self.strands > 1 or self._writer.blocking:
            return self._writer.join(entry)
        self._writer.append(entry)
        return None

    def record_now(self, entry: Known) -> None:
        """Append an entry from any thread; durable on return."""
        assert self._writer is not None, "only a live session records"
        if self.workspace is not None and (notes := self.workspace.mark(entry)):
            self._writer.append(*notes)
        if self._meter is not None:
            self._meter.count(entry)
        self._writer.append(entry)

    def wait(self, asked: str) -> None:
        """Take note that the workflow is about to wait in this process."""
        if self._writer is None:
            raise LiveForbidden(asked)

    def optional(self, value: JSON, what: str) -> Payload:
        """Return a value's JSON, or nothing for None."""
        if value is None:
            return UNSET
        return values.encode(value, what=what, limit=self.max_payload)
