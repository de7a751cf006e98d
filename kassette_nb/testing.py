"""For tests: of storages of your own, and of workflows without a disk or a clock.

class TestMyStorage(StorageContract):
    def make(self, tmp_path):
        return MyStorage(tmp_path)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from .errors import InvalidRunIdError
from .storage import Busy, Conflict, Storage, Token

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

    async def sleep(self, seconds: float) -> None:
        """Go on by so many seconds at once, letting other tasks run."""
        self.advance(seconds)
        await asyncio.sleep(0)


class Fault(Exception):
    """What a `FaultyStorage` raises when it is told to fail, as a dying process would."""


class FaultyStorage:
    """Wraps a storage, counts its writes and fails where it is told to.

    Args:
        inner: The storage that really keeps the bytes.

    Attributes:
        writes: How many times something was made durable.
        fail_at: The number of the write to fail at, counted from 1; None never fails.
        lose: With a failure: True when the write did happen and only its reply was lost.
        error: What to raise.
    """

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.writes = 0
        self.fail_at: int | None = None
        self.lose = False
        self.error: BaseException = Fault("told to fail")

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
        """See `Storage.create`; may fail."""
        if self._fails() and not self.lose:
            raise self.error
        token = self.inner.create(run_id, data)
        return self._reply(token)

    def append(self, run_id: str, data: bytes, expected: Token, keep: int | None = None) -> Token:
        """See `Storage.append`; may fail."""
        if self._fails() and not self.lose:
            raise self.error
        token = self.inner.append(run_id, data, expected, keep)
        return self._reply(token)

    def hold(self, run_id: str, who: str) -> object:
        """See `Storage.hold`."""
        return self.inner.hold(run_id, who)

    def holder(self, run_id: str) -> str | None:
        """See `Storage.holder`."""
        return self.inner.holder(run_id)

    def list(self, after: str = "", limit: int | None = None) -> Iterator[str]:
        """See `Storage.list`."""
        return self.inner.list(after, limit)

    def _fails(self) -> bool:
        self.writes += 1
        return self.writes == self.fail_at

    def _reply(self, token: Token) -> Token:
        if self.writes == self.fail_at:
            raise self.error
        return token


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
