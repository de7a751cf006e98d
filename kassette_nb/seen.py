"""A run's journal and state as they are now, read again only where they have changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from msgspec.structs import replace

from . import state
from .clock import SystemClock
from .folded import Folded
from .journal import Journal, find, read
from .storage import Storage, Token


class Seen:
    """One run, looked at from outside. Every look folds the journal as it is now.

    Args:
        storage: Where the run is.
        run_id: The run.
    """

    def __init__(self, storage: Storage, run_id: str) -> None:
        self.storage = storage
        self.run_id = run_id
        self._journal: Journal | None = None
        self._folded = Folded()
        self._still: tuple[int, state.RunState] | None = None

    @property
    def journal(self) -> Journal:
        """The verified journal as it is now; read again only when it has changed.

        Raises:
            UnknownRunError, JournalCorruptionError, StorageError: See `kassette_nb.journal.read`.
        """
        known = self._journal
        if known is not None and self._still is not None and self._still[0] == get_ident():
            return known
        journal = find(self.storage, self.run_id, known)
        self._journal = journal or read(self.storage, self.run_id)  # raises with the facts
        return self._journal

    @contextmanager
    def still(self, folded: state.RunState) -> Iterator[None]:
        """Within the block, in this thread, the run stays as it was folded: looks cost nothing."""
        before, self._still = self._still, (get_ident(), folded)
        try:
            yield
        finally:
            self._still = before

    def fold(self) -> state.RunState:
        """Return the run's state now. Only an open run's lock is looked at."""
        if self._still is not None and self._still[0] == get_ident():
            return self._still[1]
        return self._settle(self.journal)

    def fold_at(self, token: Token) -> state.RunState:
        """Do what `fold` does, knowing the journal's token from a listing made just now."""
        known = self._journal
        return self._settle(known if known is not None and known.token == token else self.journal)

    def _settle(self, journal: Journal) -> state.RunState:
        while True:
            folded = self._fold(journal)
            if folded.terminal:
                return folded
            if self.storage.holder(self.run_id) is not None:
                folded = self._fold(self.journal)
                return folded if folded.terminal else replace(folded, status=state.RUNNING)
            # A session may have ended between the look at the file and that at the lock.
            if self.journal is journal:
                return folded
            journal = self.journal

    def _fold(self, journal: Journal) -> state.RunState:
        return self._folded.of(journal, SystemClock().now())

    def look_anew(self) -> None:
        """End what `still` promised: somebody is about to act."""
        self._still = None
