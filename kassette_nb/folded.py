"""The state of a run that is looked at again and again: each entry is folded once."""

from __future__ import annotations

import threading
from datetime import datetime

from .journal import Journal
from .state import Folding, RunState


class Folded:
    """Folds a journal as it grows; only a deadline makes the same entries mean something else."""

    def __init__(self) -> None:
        self._folding: Folding | None = None
        self._known: tuple[Journal, RunState] | None = None
        # A click may look in a thread of its own while the kernel's loop follows the journal.
        self._lock = threading.Lock()

    def of(self, journal: Journal, now: datetime) -> RunState:
        """Return the state of a run that nobody holds."""
        with self._lock:
            known = self._known
            if known is not None and known[0] is journal:
                return known[1]
            lines, folding = journal.entries, self._folding
            if folding is None or not folding.fits(lines):
                folding = self._folding = Folding(lines[0])
            folding.take(lines[folding.taken :])
            state = folding.state(now, held=False)
            self._known = None
            if not any(pending.deadline for pending in state.pending):
                self._known = journal, state
            return state
