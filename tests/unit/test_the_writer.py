"""One write and one sync an entry; after a failure nothing more, and nothing half written."""

import asyncio
import errno
import os
import pickle
import typing
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import errors, kassette
from kassette_nb.clock import SystemClock
from kassette_nb.entries import Note
from kassette_nb.errors import FencedError, InterruptedRunError, KassetteError, StorageError
from kassette_nb.journal import Writer, read
from kassette_nb.storage import LocalStorage, MemoryStorage
from kassette_nb.testing import Fault, FaultyStorage


class Disk:
    """Counts the system calls that make a journal durable, and fails where it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes = self.syncs = 0
        self.fail: tuple[str, OSError] | None = None
        self.short = False
        write, fsync = os.write, os.fsync

        def counted_write(fd: int, data: bytes) -> int:
            self.writes += 1
            if self.fail and self.fail[0] == "write":
                raise self.fail[1]
            return write(fd, data[: len(data) // 2] if self.short else data)

        def counted_fsync(fd: int) -> None:
            self.syncs += 1
            if self.fail and self.fail[0] == "fsync":
                raise self.fail[1]
            fsync(fd)

        monkeypatch.setattr(os, "write", counted_write)
        monkeypatch.setattr(os, "fsync", counted_fsync)


async def nothing() -> None: ...


def test_each_entry_costs_one_write_and_one_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @kassette(storage=tmp_path, name="counted")
    async def counted(ctx: kb.Context) -> None:
        await ctx.step("first", nothing)
        before = disk.writes, disk.syncs
        for number in range(10):
            await ctx.step(f"s{number}", nothing)
        assert (disk.writes - before[0], disk.syncs - before[1]) == (10, 10)

    disk = Disk(monkeypatch)
    result = asyncio.run(counted.start(run_id="r"))
    assert result.status == "success"
    # Creating the journal also syncs its directory.
    assert (disk.writes, disk.syncs) == (13, 14)


def test_replay_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @kassette(storage=tmp_path, name="replayed")
    async def replayed(ctx: kb.Context) -> None:
        for number in range(10):
            await ctx.step(f"s{number}", nothing)
        await ctx.suspend("wait")

    asyncio.run(replayed.start(run_id="r"))
    disk = Disk(monkeypatch)
    asyncio.run(replayed.resume("r", "wait", None))
    assert (disk.writes, disk.syncs) == (2, 2)  # the answer and the ending


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("write", OSError(errno.ENOSPC, "No space left on device")),
        ("write", OSError(errno.EIO, "Input/output error")),
        ("fsync", OSError(errno.EIO, "Input/output error")),
        ("short", OSError(errno.ENOSPC, "No space left on device")),
    ],
)
def test_a_failing_disk_keeps_what_was_acknowledged_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: OSError
) -> None:
    ran: list[str] = []

    @kassette(storage=tmp_path, name="failing_disk")
    async def failing_disk(ctx: kb.Context, broken: bool = False) -> None:
        await ctx.step("first", ran.append, "first")
        if fail_now:
            disk.fail = (call, error)
            disk.short = call == "short"
        await ctx.step("second", ran.append, "second")

    disk = Disk(monkeypatch)
    fail_now = True
    with pytest.raises(StorageError, match="Nothing unacknowledged was kept") as refused:
        asyncio.run(failing_disk.start(run_id="r"))
    assert str(tmp_path / "r.jsonl") in str(refused.value)
    disk.fail, disk.short, fail_now = None, False, False
    assert (tmp_path / "r.jsonl").read_bytes().count(b"\n") == 2
    assert read(LocalStorage(tmp_path), "r").torn == 0
    assert asyncio.run(failing_disk.start(run_id="r")).status == "success"
    assert ran == ["first", "second", "second"]


def test_a_failed_writer_refuses_for_ever() -> None:
    storage = FaultyStorage(MemoryStorage())
    writer = Writer(storage, "r", None, SystemClock())
    storage.fail_at = 2
    from kassette_nb.entries import Start

    writer.append(Start(session=0))
    for _ in range(2):
        with pytest.raises(Fault):
            writer.append(Note(session=0, kind="x"))
    assert storage.writes == 2, "a failed sync is never tried again"


def test_a_session_that_somebody_else_overtook_is_fenced() -> None:
    storage = MemoryStorage()
    ran: list[str] = []

    @kassette(storage=storage, name="fenced")
    async def fenced(ctx: kb.Context) -> None:
        await ctx.step("first", nothing)
        found = storage.read("r")
        assert found is not None
        storage.append("r", found[0].splitlines(keepends=True)[-1], found[1])
        await ctx.step("second", ran.append, "second")
        await ctx.step("third", ran.append, "third")

    with pytest.raises(FencedError):
        asyncio.run(fenced.start(run_id="r"))
    assert ran == ["second"]


def test_a_torn_tail_is_cut_before_the_first_append(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"

    @kassette(storage=tmp_path, name="torn")
    async def torn(ctx: kb.Context) -> None:
        await ctx.step("first", nothing)
        await ctx.suspend("wait")

    asyncio.run(torn.start(run_id="r"))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"type":"resume","sess')
    assert kb.open(tmp_path)["r"].state == "suspended"
    assert asyncio.run(torn.resume("r", "wait", None)).status == "success"
    assert path.read_bytes().startswith(whole + b'{"type":"resume","session":2,')


def test_a_forked_process_cannot_write(tmp_path: Path) -> None:
    def fork() -> int:
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        try:
            captured[0].append(Note(session=0, kind="from the child"))
        except InterruptedRunError:
            os._exit(42)
        os._exit(0)

    captured: list[Writer] = []
    real = Writer.append

    def remember(self: Writer, *batch: Any) -> None:
        captured.append(self)
        real(self, *batch)

    @kassette(storage=tmp_path, name="forks")
    async def forks(ctx: kb.Context) -> Any:
        return await ctx.step("fork", _async(fork))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "append", remember)
        assert asyncio.run(forks.start(run_id="r")).result == 42


def _async(fn: Any) -> Any:
    async def call() -> Any:
        return fn()

    return call


def error_classes() -> list[type[KassetteError]]:
    found = [KassetteError]
    for kind in found:
        found += kind.__subclasses__()
    return [kind for kind in found if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", error_classes())
def test_every_error_pickles_with_its_facts(kind: type[KassetteError]) -> None:
    facts: dict[str, Any] = dict.fromkeys(typing.get_type_hints(kind), "fact")
    error = pickle.loads(pickle.dumps(kind("what happened", **facts)))
    assert type(error) is kind
    assert str(error) == "what happened"
    assert error.__dict__ == facts
    assert kind.__name__ in (errors.__doc__ or "")


def test_suspended_pickles_and_is_no_exception() -> None:
    raised = pickle.loads(pickle.dumps(errors.Suspended("r", "approval")))
    assert (raised.run_id, raised.event) == ("r", "approval")
    assert not isinstance(raised, Exception)
