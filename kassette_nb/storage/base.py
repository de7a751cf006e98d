"""The seam between the journal and whatever keeps its bytes.

A backend moves bytes and knows nothing of entries. It is synchronous, because a synchronous SDK
call in a workflow's body must append on the loop's own thread. Every backend passes
`kassette_nb.testing.StorageContract`.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from typing import Protocol

from ..errors import InvalidRunIdError, KassetteError

#: What a journal looked like when it was read or written: the compare of compare-and-set.
Token = Hashable

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


class Conflict(KassetteError):
    """The journal is not what the token says: somebody else created or changed it."""

    run_id: str


class Busy(KassetteError):
    """Somebody else holds the run; ``holder`` says who, where that is known.

    ``within`` counts the seconds in which a holder that has died loses the run; None where that
    takes none.
    """

    run_id: str
    holder: str
    within: float | None = None


class Hold(Protocol):
    """The right to write one run's journal, from `Storage.hold` until `release`."""

    def release(self) -> None:
        """Give the run free. Callable from any thread; a second call does nothing."""
        ...


class Storage(Protocol):
    """Where journals live."""

    @property
    def blocking(self) -> bool:
        """True where an append takes network time and should not run on a loop's thread."""
        ...

    @property
    def url(self) -> str:
        """A URL that opens the same storage again (``file:.kassette``)."""
        ...

    @property
    def place(self) -> str:
        """The storage as a person would look for it: an absolute path or a URL."""
        ...

    def locate(self, run_id: str) -> str:
        """Return where this run's journal is, for messages."""
        ...

    def read(self, run_id: str, since: Token | None = None) -> tuple[bytes, Token] | None:
        """Return the journal's bytes and their token, or None when it still is as in ``since``.

        Raises:
            KeyError: There is no such journal.
            StorageError: The bytes cannot be read.
        """
        ...

    def create(self, run_id: str, data: bytes) -> Token:
        """Make a journal that appears whole and durable, or not at all.

        Raises:
            Conflict: It exists already.
            StorageError: It cannot be written; nothing stays.
        """
        ...

    def append(self, run_id: str, data: bytes, expected: Token, keep: int | None = None) -> Token:
        """Add bytes to the end, durable on return: one write, one sync.

        Args:
            run_id: The run.
            data: Whole lines.
            expected: What the journal must be now.
            keep: First cut the journal to this many bytes (a torn tail was never acknowledged).

        Raises:
            Conflict: The journal is not what ``expected`` says; nothing was written.
            StorageError: It could not be made durable; the journal was cut back.
        """
        ...

    def hold(self, run_id: str, who: str) -> Hold:
        """Take the right to write this run, without waiting.

        Raises:
            Busy: Somebody else has it.
        """
        ...

    def holder(self, run_id: str) -> str | None:
        """Return who holds the run, or None. Creates nothing."""
        ...

    def list(self, after: str = "", limit: int | None = None) -> Iterator[str]:
        """Yield run ids greater than ``after``, sorted."""
        ...

    def tokens(self, after: str = "") -> Iterator[tuple[str, Token]]:
        """Yield what `list` does, each with the token that `read` would give: a look at all runs
        that reads none."""
        ...


def check_run_id(run_id: object) -> str:
    """Return the id if it is safe as a file name.

    Raises:
        InvalidRunIdError: It is not of the form ``[A-Za-z0-9][A-Za-z0-9._-]{0,127}``.
    """
    if isinstance(run_id, str) and _RUN_ID.match(run_id):
        return run_id
    raise InvalidRunIdError(
        f"{run_id!r} is not a run id: use 1 to 128 of A-Z a-z 0-9 . _ - and begin with a letter "
        "or digit.",
        run_id=run_id,
    )
