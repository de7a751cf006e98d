"""For tests: of storages of your own, and of workflows without a disk or a clock.

    result = await always_replay(triage, ticket, answers={"approval": {"approved": True}})

runs a workflow with a crash behind every entry, which finds code that is not deterministic. And

class TestMyStorage(StorageContract):
    def make(self, tmp_path):
        return MyStorage(tmp_path)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from .clock import instant
from .entries import Intent, Step, decode
from .errors import InvalidRunIdError, StorageError
from .journal import read
from .results import RunResult
from .state import BUDGET, fold
from .storage import Busy, Conflict, Hold, MemoryStorage, Storage, Token
from .values import JSON
from .workflow import Workflow

_START = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """A clock that stands still until it is told to go on.

    Args:
        now: Where it begins, in UTC.
    """

    def __init__(self, now: datetime = _START) -> None:
        self._now = now

    def now(self) -> datetime:
        """Return the time that was set."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Go on by so many seconds."""
        self._now += timedelta(seconds=seconds)

    def advance_to(self, moment: datetime) -> None:
        """Go on to a moment; one that is past changes nothing."""
        self._now = max(self._now, moment)

    async def sleep(self, seconds: float) -> None:
        """Go on by so many seconds at once, letting other tasks run."""
        self.advance(seconds)
        await asyncio.sleep(0)


class Fault(BaseException):
    """What a `FaultyStorage` raises where a process would have died.

    No Exception, since nothing that a workflow catches could outlive its process.
    """


#: How a `FaultyStorage` fails: the process dies before the write, in the middle of it, or after it
#: before anybody hears; or the disk refuses to sync, or is full from then on.
How = Literal["crash", "torn write", "lost reply", "failed sync", "full disk"]


class FaultyStorage:
    """Wraps a storage, counts its writes and fails where it is told to.

    Args:
        inner: The storage that really keeps the bytes.

    Attributes:
        writes: How many times something was, or should have been, made durable.
        fail_at: The number of the write to fail at, counted from 1; None never fails.
        how: In which way.
    """

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.writes = 0
        self.fail_at: int | None = None
        self.how: How = "crash"

    @property
    def blocking(self) -> bool:
        """As the wrapped storage."""
        return self.inner.blocking

    @property
    def url(self) -> str:
        """As the wrapped storage."""
        return self.inner.url

    @property
    def place(self) -> str:
        """As the wrapped storage."""
        return self.inner.place

    def locate(self, run_id: str) -> str:
        """See `Storage.locate`."""
        return self.inner.locate(run_id)

    def read(self, run_id: str, since: Token | None = None) -> tuple[bytes, Token] | None:
        """See `Storage.read`."""
        return self.inner.read(run_id, since)

    def create(self, run_id: str, data: bytes) -> Token:
        """See `Storage.create`; may fail. Torn, it leaves nothing: a journal appears whole."""
        if self._before():
            raise self._error()
        return self._after(self.inner.create(run_id, data))

    def append(self, run_id: str, data: bytes, expected: Token, keep: int | None = None) -> Token:
        """See `Storage.append`; may fail."""
        if self._before():
            if self.how == "torn write":
                self.inner.append(run_id, data[: len(data) // 2], expected, keep)
            raise self._error()
        return self._after(self.inner.append(run_id, data, expected, keep))

    def hold(self, run_id: str, who: str) -> Hold:
        """See `Storage.hold`."""
        return self.inner.hold(run_id, who)

    def holder(self, run_id: str) -> str | None:
        """See `Storage.holder`."""
        return self.inner.holder(run_id)

    def list(self, after: str = "", limit: int | None = None) -> Iterator[str]:
        """See `Storage.list`."""
        return self.inner.list(after, limit)

    def tokens(self, after: str = "") -> Iterator[tuple[str, Token]]:
        """See `Storage.tokens`."""
        return self.inner.tokens(after)

    def _fails(self) -> bool:
        if self.fail_at is None:
            return False
        return self.writes == self.fail_at or (
            self.how == "full disk" and self.writes > self.fail_at
        )

    def _before(self) -> bool:
        self.writes += 1
        return self._fails() and self.how != "lost reply"

    def _after(self, token: Token) -> Token:
        if self._fails():
            raise self._error()
        return token

    def _error(self) -> BaseException:
        if self.how in ("failed sync", "full disk"):
            return StorageError(f"{self.place}: {self.how}", place=self.place, reason=self.how)
        return Fault(f"{self.how} at write {self.writes}")


class _Rehearsal(FaultyStorage):
    """Fails behind a write from ``fail_at`` on, as soon as no tool is between intent and step."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.how = "lost reply"
        self._acting: set[str] = set()

    def append(self, run_id: str, data: bytes, expected: Token, keep: int | None = None) -> Token:
        for line in data.split(b"\n")[:-1]:
            entry = decode(line)
            if isinstance(entry, Intent):
                self._acting.add(entry.step_id)
            elif isinstance(entry, Step):
                self._acting.discard(entry.step_id)
        return super().append(run_id, data, expected, keep)

    def _fails(self) -> bool:
        return self.fail_at is not None and self.writes >= self.fail_at and not self._acting


async def always_replay(
    workflow: Workflow,
    /,
    *args: Any,
    answers: Mapping[str, JSON] | None = None,
    **kwargs: Any,
) -> RunResult:
    """Run a workflow with a crash behind every entry: is it deterministic?

    Everything recorded is replayed as often as there are entries, on a storage in memory and with
    a clock that jumps over sleeps. Steps and tools really run: each once, but for a step of a
    parallel block that is in flight when the crash comes. No crash comes between the intent of a
    tool and its result, also while others of its block are recorded: it would tell nothing about
    the code, and leave a call in doubt that only a person could decide.

    Args:
        workflow: The workflow; its own storage is not touched.
        args: Its arguments.
        answers: Answers by event name or step id. One for ``budget`` is given once, since the
            same limits do not help twice.
        kwargs: Its arguments by name.

    Returns:
        The result of the run; a suspended one where an answer is missing.

    Raises:
        ReplayMismatchError: The code asked for something else on a replay than it did live.
    """
    storage = _Rehearsal(MemoryStorage("always-replay"))
    clock = ManualClock()
    again = Workflow(replace(workflow.definition, clock=clock), storage)
    given = dict(answers or {})
    calls = [partial(again.start, *args, run_id="run", **kwargs)]
    while calls:
        call = calls.pop()
        # One entry opens the session; the crash comes behind the next, so that each attempt
        # gets one entry further.
        storage.fail_at = storage.writes + 2
        try:
            result = await call()
        except Fault:
            calls.append(partial(again.start, run_id="run"))
            continue
        if result.status != "suspended":
            return result
        state = fold(read(storage, "run").entries, clock.now(), held=False)
        for question in state.pending:
            name = question.step_id if question.step_id in given else question.event
            if question.event == "timer":
                clock.advance_to(instant(question.deadline or ""))
                calls.append(partial(again.start, run_id="run"))
                break
            if name in given:
                calls.append(partial(again.resume, "run", question.step_id, given[name]))
                if question.event == BUDGET:
                    del given[name]
                break
        else:
            return result
    raise AssertionError("unreachable")


class StorageContract:
    """What every storage promises; subclass it in a test module and write `make`."""

    def make(self, tmp_path: Path) -> Storage:
        """Return an empty storage."""
        raise NotImplementedError

    def test_what_was_created_is_read_back(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        token = storage.create("a", b"one\n")
        assert storage.read("a") == (b"one\n", token)

    def test_an_append_goes_to_the_end_and_changes_the_token(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        first = storage.create("a", b"one\n")
        with _held(storage, "a"):
            second = storage.append("a", b"two\n", first)
            third = storage.append("a", b"three\n", second)
        assert storage.read("a") == (b"one\ntwo\nthree\n", third)
        assert len({first, second, third}) == 3

    def test_an_unchanged_journal_is_not_read_again(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        token = storage.create("a", b"one\n")
        assert storage.read("a", since=token) is None
        newer = storage.append("a", b"two\n", token)
        assert storage.read("a", since=token) == (b"one\ntwo\n", newer)

    def test_a_journal_is_created_once(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        storage.create("a", b"one\n")
        _raises(Conflict, lambda: storage.create("a", b"two\n"))
        found = storage.read("a")
        assert found is not None
        assert found[0] == b"one\n"

    def test_an_append_to_a_changed_journal_writes_nothing(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        old = storage.create("a", b"one\n")
        storage.append("a", b"two\n", old)
        _raises(Conflict, lambda: storage.append("a", b"three\n", old))
        found = storage.read("a")
        assert found is not None
        assert found[0] == b"one\ntwo\n"

    def test_a_torn_tail_is_cut_before_an_append(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        token = storage.create("a", b"one\n")
        torn = storage.append("a", b"tw", token)
        storage.append("a", b"two\n", torn, keep=4)
        found = storage.read("a")
        assert found is not None
        assert found[0] == b"one\ntwo\n"

    def test_a_run_without_a_whole_line_can_be_created(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        storage.create("a", b'{"type":"sta')
        storage.create("a", b"one\n")
        found = storage.read("a")
        assert found is not None
        assert found[0] == b"one\n"

    def test_an_unknown_run_is_a_key_error(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        _raises(KeyError, lambda: storage.read("a"))

    def test_an_id_that_is_no_name_is_refused_before_a_path_is_built(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        for bad in ("../a", "a/b", "", ".a", "a" * 129, "a\n", "ä"):
            _raises(InvalidRunIdError, lambda bad=bad: storage.read(bad))
            _raises(InvalidRunIdError, lambda bad=bad: storage.create(bad, b"x\n"))
            _raises(InvalidRunIdError, lambda bad=bad: storage.hold(bad, "me"))

    def test_one_holder_at_a_time_who_is_named(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        assert storage.holder("a") is None
        hold = storage.hold("a", "the first")
        assert storage.holder("a") == "the first"
        busy = _raises(Busy, lambda: storage.hold("a", "the second"))
        assert isinstance(busy, Busy)
        assert busy.holder == "the first"
        hold.release()
        hold.release()
        assert storage.holder("a") is None
        storage.hold("a", "the second").release()

    def test_a_hold_taken_in_one_thread_is_freed_in_another(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        hold = storage.hold("a", "me")
        thread = threading.Thread(target=hold.release)
        thread.start()
        thread.join()
        storage.hold("a", "me again").release()

    def test_runs_are_listed_sorted_and_in_pages(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        assert list(storage.list()) == []
        for run_id in ("b", "a", "c"):
            storage.create(run_id, b"one\n")
        assert list(storage.list()) == ["a", "b", "c"]
        assert list(storage.list(after="a", limit=1)) == ["b"]

    def test_a_fork_is_listed_behind_its_source(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        names = ["a", "a-b", "a.2", "a.2.2", "a.2x", "a0", "b"]
        for run_id in reversed(names):
            storage.create(run_id, b"one\n")
        assert list(storage.list()) == names
        for place, run_id in enumerate(names):
            assert list(storage.list(after=run_id)) == names[place + 1 :]

    def test_a_look_at_all_runs_gives_the_tokens_that_reading_gives(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        old = storage.create("a", b"one\n")
        new = storage.append("a", b"two\n", old)
        storage.create("b", b"one\n")
        assert list(storage.tokens()) == [("a", new), *storage.tokens(after="a")]
        assert [storage.read(run_id, since=token) for run_id, token in storage.tokens()] == [
            None,
            None,
        ]


class _held:
    def __init__(self, storage: Storage, run_id: str) -> None:
        self._hold = storage.hold(run_id, "test")

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._hold.release()


def _raises(kind: type[BaseException], call: object) -> BaseException:
    """Return the error that a call raises; written out so that the package needs no pytest."""
    assert callable(call)
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")
