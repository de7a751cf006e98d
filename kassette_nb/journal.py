"""Reading a journal and verifying it; the one writer that appends to it.

Nothing else in the package appends. What the format demands of readers and writers stands in
FORMAT.md.
"""

from __future__ import annotations

import os
import secrets
import threading
from datetime import datetime

import msgspec
from msgspec import field

from . import entries
from .batches import Batches
from .clock import Clock, stamp_now
from .entries import (
    AnyEntry,
    Cancel,
    Complete,
    Failure,
    Foreign,
    Intent,
    Known,
    LineError,
    Note,
    Start,
    Step,
    Terminal,
    kind_of,
)
from .errors import (
    FencedError,
    InterruptedRunError,
    JournalCorruptionError,
    UnknownRunError,
)
from .storage import Conflict, Storage, Token, check_run_id

#: Entries whose fields are the runtime's own, or checked where they are given.
_OWN = frozenset({Step, Intent, Note})
_ENDINGS = frozenset({"complete", "error", "cancel"})
_OPEN, _CLOSE = b"{}"


class Journal(msgspec.Struct):
    """A journal that has been read and verified.

    ``entries`` are in file order; ``torn`` counts the bytes of an unfinished last line, which are
    not part of it. ``steps`` are the ids of the recorded steps. Payloads of entries are views into
    ``data``, or into what was added to a shorter one.
    """

    run_id: str
    data: bytes
    token: Token
    entries: list[AnyEntry] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    torn: int = 0
    steps: set[str] = field(default_factory=set)

    @property
    def size(self) -> int:
        """The length of its whole lines, in bytes."""
        return self.ends[-1] if self.ends else 0

    @property
    def opening(self) -> Start:
        """Line 0: a verified journal begins with a start entry."""
        first = self.entries[0]
        assert isinstance(first, Start), "parse refuses any other"
        return first

    @property
    def latest_start(self) -> Start | None:
        """The newest start entry that is this run's own, not copied from its source."""
        source = self.opening.source
        copied = source.from_offset if source else 0
        own = (e for e in reversed(self.entries) if type(e) is Start and e.offset >= copied)
        return next(own, None)

    @property
    def ending(self) -> Complete | Failure | Cancel | None:
        """The terminal entry, in our own form."""
        last = self.entries[-1]
        return last if isinstance(last, Complete | Failure | Cancel) else None

    @property
    def last_session(self) -> int:
        """The highest session number in it; 0 for an empty journal."""
        return self.entries[-1].session if self.entries else 0

    def line(self, offset: int) -> bytes:
        """Return a raw line, with its newline."""
        return self.data[self.ends[offset - 1] if offset else 0 : self.ends[offset]]


def read(storage: Storage, run_id: str) -> Journal:
    """Read and verify a journal. Takes no lock.

    Raises:
        InvalidRunIdError: The id cannot be a journal's.
        UnknownRunError: There is none, or it holds no whole line (a run that never began).
        JournalCorruptionError: It is damaged; names the line and the reason.
        StorageError: It cannot be read.
    """
    journal = find(storage, run_id)
    if journal is None:
        from difflib import get_close_matches  # only for somebody who has mistyped an id

        ids = list(storage.list())
        near = get_close_matches(run_id, ids, 3)
        hint = f"Close to it: {', '.join(near)}." if near else "Check the id and the storage."
        told = f"no run {run_id!r} in {storage.place} ({len(ids)} runs there). {hint}"
        if run_id in ids:
            told = f"{storage.locate(run_id)} holds no whole line; starting the run begins it anew."
        raise UnknownRunError(told, run_id=run_id, place=storage.place, known=len(ids))
    return journal


def find(storage: Storage, run_id: str, known: Journal | None = None) -> Journal | None:
    """Do what `read` does, but return None where there is no such run.

    Args:
        storage: Where it is.
        run_id: The run.
        known: The journal as it was read before: returned where it still is the same.
    """
    check_run_id(run_id)
    try:
        found = storage.read(run_id, since=known.token if known is not None else None)
    except KeyError:
        return None
    if found is None:
        return known
    journal = parse(run_id, *found, storage.locate(run_id), known)
    return journal if journal.entries else None


def parse(
    run_id: str, data: bytes, token: Token, place: str, known: Journal | None = None
) -> Journal:
    """Verify a journal's bytes.

    Args:
        run_id: Its run.
        data: The whole file.
        token: The storage's token for these bytes.
        place: Where it is, for the error.
        known: The same journal as it was: where only lines were added, only those are verified,
            and the entries before them are the same objects.

    Raises:
        JournalCorruptionError: Damage anywhere but in an unfinished last line.
    """
    if known is not None and known.entries and data.startswith(known.data[: known.size]):
        journal = _line_by_line(run_id, data, token, place, known)
    else:
        journal = _sound(run_id, data, token) or _line_by_line(run_id, data, token, place)
    journal.torn = len(data) - journal.size
    first = journal.entries[0] if journal.entries else None
    if isinstance(first, Start) and first.source is not None:
        wanted = first.source.from_offset
        if len(journal.entries) < wanted:
            reason = (
                f"an unfinished fork: {len(journal.entries)} of the {wanted} lines it takes from "
                f"{first.source.run_id!r}. Delete it and fork again"
            )
            raise _damaged(place, len(journal.entries), reason)
    return journal


def _sound(run_id: str, data: bytes, token: Token) -> Journal | None:
    """Read a journal of our own entries and without damage in a few passes; else return None.

    Long journals are read here, so every line is decoded by one call, and each rule checked for
    all lines at once. What is out of the ordinary goes the long way, which knows where and why.
    """
    whole = data.rfind(b"\n") + 1
    found = entries.decode_all(data if whole == len(data) else memoryview(data)[:whole])
    if not found or type(found[0]) is not Start:
        return None
    # The codec takes any white space between entries. Between tokens of one entry no newline
    # stands behind "}" and before "{", so with as many entries as lines each line is one entry.
    ends, start, find, plain = [], 0, data.find, data.isascii()
    while (end := find(b"\n", start)) >= 0:
        if data[start] != _OPEN or data[end - 1] != _CLOSE:
            return None
        if not plain and not _is_text(data[start:end]):
            return None  # the codec does not look inside payloads
        ends.append(start := end + 1)
    sessions = [entry.session for entry in found]
    ids = [entry.step_id for entry in found if type(entry) is Step]
    steps = set(ids)
    sound = (
        len(ends) == len(found)
        and [entry.offset for entry in found] == list(range(len(found)))
        and sessions[0] >= 1
        and sessions == sorted(sessions)
        and len(steps) == len(ids)
        and set(map(type, found[:-1])).isdisjoint(Terminal)
    )
    try:
        moment = datetime.fromisoformat
        sound = sound and None not in [moment(entry.timestamp).tzinfo for entry in found]
    except ValueError:
        return None
    return Journal(run_id, data, token, found, ends, steps=steps) if sound else None


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _line_by_line(
    run_id: str, data: bytes, token: Token, place: str, known: Journal | None = None
) -> Journal:
    """Read any journal, behind what is known of it; damage is named with its line."""
    journal = Journal(run_id, data, token)
    steps = set[str]()
    number = session = base = 0
    ended: str | None = None
    if known is not None:
        journal.entries, journal.ends = list(known.entries), list(known.ends)
        steps.update(known.steps)
        number, session, base = len(known.entries), known.last_session, known.size
        last = kind_of(known.entries[-1])
        ended = last if last in _ENDINGS else None
        # Views into it keep a buffer alive: into the few new lines, not once more into the file.
        data = data[base:]
    journal.steps = steps
    lines, ends, start = journal.entries, journal.ends, 0
    view, plain = memoryview(data), data.isascii()
    while (end := data.find(b"\n", start)) >= 0:
        line = view[start:end]
        try:
            entry = entries.decode(line)
            if not plain:
                str(line, "utf-8")  # the codec does not look inside undecoded payloads
            if entry.offset != number or entry.session != session or ended or line[-1] == 13:
                _check_place(entry, number, session, ended, line)
                session = entry.session
            if datetime.fromisoformat(entry.timestamp).tzinfo is None:
                raise LineError(f"its timestamp {entry.timestamp!r} has no time zone")
            if type(entry) is Step:
                if entry.step_id in steps:
                    raise LineError(f"step {entry.step_id!r} is recorded twice")
                steps.add(entry.step_id)
            elif type(entry) in Terminal or (type(entry) is Foreign and kind_of(entry) in _ENDINGS):
                ended = kind_of(entry)
            if number == 0 and type(entry) is not Start:
                raise LineError("a journal begins with a 'start' entry")
        except ValueError as problem:
            raise _damaged(place, number + 1, str(problem)) from None
        lines.append(entry)
        start = end + 1
        ends.append(base + start)
        number += 1
    return journal


def _check_place(
    entry: AnyEntry, number: int, session: int, ended: str | None, line: memoryview
) -> None:
    """Refuse a line that cannot stand where it does; a session that rises is in order."""
    if entry.offset != number:
        raise LineError(f"its offset is {entry.offset} where {number} must follow")
    if entry.session < session or entry.session < 1:
        raise LineError(f"its session {entry.session} comes after session {session}")
    if ended:
        raise LineError(f"an entry after the {ended!r} entry that ended the run")
    if line[-1] == 13:
        raise LineError(
            "it ends with CR LF; some tool has rewritten the file. Restore it, or convert its "
            "line ends back to LF"
        )


def _damaged(place: str, line: int, reason: str) -> JournalCorruptionError:
    keep = f", or keep its whole lines before this one under another name (head -n {line - 1})"
    return JournalCorruptionError(
        f"{place}, line {line}: {reason}. The file was left untouched. Restore it from a copy"
        f"{keep if line > 1 else ''}.",
        place=place,
        line=line,
        reason=reason,
    )


class Writer:
    """Appends one session's entries; every append is durable when it returns.

    It takes calls from any thread of the process that made it, writes each batch with one write
    and one sync, and after a failure refuses everything: what happened on the disk is not known
    any more, so the session has to end and the next one reads the journal again.

    Args:
        storage: Where the journal is.
        run_id: Its run; the caller holds it.
        journal: What has been read under that hold; None for a run that does not exist yet.
        clock: Stamps the entries.
    """

    def __init__(
        self, storage: Storage, run_id: str, journal: Journal | None, clock: Clock
    ) -> None:
        self.session = (journal.last_session if journal else 0) + 1
        #: Whether an append takes network time: then `join` is the way that keeps the loop free.
        self.blocking = storage.blocking
        self._storage = storage
        self._run_id = run_id
        self._clock = clock
        self._token: Token = journal.token if journal else None
        self._next = len(journal.entries) if journal else 0
        # A torn tail was never acknowledged; the first append cuts it.
        self._keep = journal.size if journal and journal.torn else None
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._refusal: BaseException | None = None
        self._batches = Batches(self.append, self.blocking)

    def append(self, *batch: Known) -> None:
        """Write entries as one batch. Durable on return.

        Raises:
            FencedError: The journal has changed since it was read: another session has it now.
            StorageError: It could not be written; this writer refuses from now on.
            InterruptedRunError: The writer is closed, or this is another process.
            JournalValueError: An entry has a field of the wrong type; nothing was written.
        """
        with self._lock:
            if self._refusal is not None:
                raise self._refusal.with_traceback(None)
            if os.getpid() != self._pid:
                raise InterruptedRunError(
                    f"run {self._run_id!r} belongs to process {self._pid}; a process forked from "
                    "it cannot record anything. Return from the step's function in the parent.",
                    run_id=self._run_id,
                )
            now, session, number = stamp_now(self._clock), self.session, self._next
            for entry in batch:
                entry.session = session
                entry.offset = number
                entry.timestamp = now
                if self.blocking:
                    # A reply can be lost after the write; then the line is looked for.
                    entry.write_id = secrets.token_hex(8)
                if type(entry) not in _OWN:
                    entries.refuse_unreadable(entry)
                number += 1
            if number == self._next + 1:
                data = entries.encode(batch[0])
            else:
                data = b"".join(map(entries.encode, batch))
            try:
                if self._token is None:
                    self._token = self._storage.create(self._run_id, data)
                else:
                    keep, self._keep = self._keep, None
                    self._token = self._storage.append(self._run_id, data, self._token, keep)
            except Conflict as conflict:
                self._refusal = FencedError(
                    f"run {self._run_id!r}: {conflict}. Another session or program wrote to it; "
                    "this session stops without recording more.",
                    run_id=self._run_id,
                )
                raise self._refusal from None
            except BaseException as problem:
                self._refusal = problem
                raise
            self._next = number

    async def join(self, entry: Known) -> None:
        """Write an entry together with all that are ready in this turn of the loop.

        Durable on return, also when the caller is cancelled meanwhile; see `Batches.join`.

        Raises:
            KassetteError: See `append`; every entry of the batch gets the error.
        """
        await self._batches.join(entry)

    def close(self) -> None:
        """Refuse every later append: the session has ended."""
        with self._lock:
            if self._refusal is None:
                self._refusal = InterruptedRunError(
                    f"the session of run {self._run_id!r} has ended; nothing can be recorded in "
                    "it any more. Start the run again to continue.",
                    run_id=self._run_id,
                )
