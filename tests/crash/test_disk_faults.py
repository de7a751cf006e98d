"""A disk that fails, fills up or is changed by a stranger: what was acknowledged is kept, and only
that.

System calls are told to fail where a real disk cannot be; a really full file system is a small
tmpfs.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import kassette
from kassette_nb.clock import SystemClock
from kassette_nb.entries import Note, Start
from kassette_nb.errors import FencedError, JournalCorruptionError, StorageError
from kassette_nb.journal import Journal, Writer, read
from kassette_nb.storage import LocalStorage

NO_MOUNT = "mounting a tmpfs is not permitted here"

FAULTS: dict[str, tuple[str, BaseException | None]] = {
    "no space": ("write", OSError(errno.ENOSPC, "No space left on device")),
    "write error": ("write", OSError(errno.EIO, "Input/output error")),
    "write error half way": ("half", OSError(errno.EIO, "Input/output error")),
    "short write": ("half", None),
    "sync error": ("fsync", OSError(errno.EIO, "Input/output error")),
}


class Disk:
    """Counts writes and syncs of journal lines, and fails at one of them.

    Args:
        fault: What goes wrong.
        at: With the how manyeth write, counted from 1; None waits until it is set.
    """

    def __init__(self, patch: pytest.MonkeyPatch, fault: str, at: int | None = None) -> None:
        self.call, self.error = FAULTS[fault]
        self.at = at
        self.writes = self.syncs = self.failed = 0
        self._write, self._fsync = os.write, os.fsync
        self._lines: set[int] = set()
        patch.setattr(os, "write", self.write)
        patch.setattr(os, "fsync", self.fsync)

    def write(self, fd: int, data: bytes) -> int:
        if not data.startswith(b'{"type"'):
            return self._write(fd, data)
        self.writes += 1
        self._lines.add(fd)
        if self.writes != self.at or self.call == "fsync":
            return self._write(fd, data)
        self.failed += 1
        if self.call == "write":
            assert self.error is not None
            raise self.error
        written = self._write(fd, data[: len(data) // 2])
        if self.error is not None:
            raise self.error
        return written

    def fsync(self, fd: int) -> None:
        if fd in self._lines:
            self._lines.discard(fd)
            self.syncs += 1
            if self.writes == self.at and self.call == "fsync":
                self.failed += 1
                assert self.error is not None
                raise self.error
        self._fsync(fd)


def content(folder: Path) -> bytes:
    path = folder / "r.jsonl"
    return path.read_bytes() if path.exists() else b""


def journal(folder: Path) -> Journal:
    return read(LocalStorage(folder), "r")


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name not in (".locks", "r.jsonl")]


# -------------------------------------------------------------------------- one line after another


def make_line(folder: Path, ran: Counter[str]) -> kb.Workflow:
    """Eight lines: a start, three steps, a question, its answer, a step, the end."""

    def act(name: str) -> str:
        ran[name] += 1
        return name

    @kassette(storage=folder, name="line")
    async def line(ctx: kb.Context) -> list[Any]:
        told = [await ctx.step(name, act, name) for name in ("a", "b", "c")]
        told.append(await ctx.suspend("ask"))
        return [*told, await ctx.step("d", act, "d")]

    return line


def bring_to_end(line: kb.Workflow, folder: Path) -> kb.RunResult:
    """Call what the run's state asks for until it has ended, or raise what keeps it from that."""
    while True:
        runs = kb.open(folder)
        if "r" in runs and runs["r"].waiting_on:
            result = asyncio.run(line.resume("r", "ask", {"ok": True}))
        else:
            result = asyncio.run(line.start(run_id="r"))
        if result.status != "suspended":
            return result


@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize("fault", FAULTS)
def test_whichever_line_fails_the_run_keeps_those_before_it_and_goes_on(
    tmp_path: Path, fault: str, at: int
) -> None:
    ran: Counter[str] = Counter()
    line = make_line(tmp_path, ran)
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, fault, at)
        with pytest.raises(StorageError, match="Nothing unacknowledged was kept") as refused:
            bring_to_end(line, tmp_path)
        # The failed call is the last: no further write, and no second try of the sync.
        assert (disk.failed, disk.writes) == (1, at)
        assert disk.syncs == (at if fault == "sync error" else at - 1)
    assert refused.value.place == str(tmp_path / "r.jsonl")
    assert content(tmp_path).count(b"\n") == at - 1
    assert content(tmp_path)[-1:] in (b"", b"\n")
    assert leftovers(tmp_path) == []
    before = content(tmp_path)
    result = bring_to_end(line, tmp_path)
    assert result.value == ["a", "b", "c", {"ok": True}, "d"]
    assert content(tmp_path).startswith(before)
    assert journal(tmp_path).torn == 0
    # Only the step whose line was refused ran again.
    twice = {2: "a", 3: "b", 4: "c", 7: "d"}.get(at)
    assert ran == {name: 2 if name == twice else 1 for name in "abcd"}


def test_a_disk_that_does_not_take_back_what_it_wrote_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: Counter[str] = Counter()
    line = make_line(tmp_path, ran)

    def refuse(fd: int, length: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        Disk(patch, "short write", 3)
        patch.setattr(os, "ftruncate", refuse)
        with pytest.raises(StorageError):
            bring_to_end(line, tmp_path)
    assert journal(tmp_path).torn > 0
    assert len(journal(tmp_path).entries) == 2
    assert bring_to_end(line, tmp_path).status == "success"
    assert journal(tmp_path).torn == 0
    assert ran == {"a": 1, "b": 2, "c": 1, "d": 1}


def test_a_new_run_whose_name_is_not_durable_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: Counter[str] = Counter()
    line = make_line(tmp_path, ran)
    fsync = os.fsync

    def refuse(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, "Input/output error")
        fsync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(StorageError, match="cannot create"):
            asyncio.run(line.start(run_id="r"))
    assert not ran, "nothing acts before the run's first line is durable"
    assert leftovers(tmp_path) == []
    assert content(tmp_path) == b""
    assert "r" not in kb.open(tmp_path)
    assert bring_to_end(line, tmp_path).status == "success"
    assert set(ran.values()) == {1}


def test_an_interruption_between_write_and_sync_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: Counter[str] = Counter()
    line = make_line(tmp_path, ran)
    FAULTS["Ctrl-C"] = ("fsync", KeyboardInterrupt())
    try:
        with monkeypatch.context() as patch:
            disk = Disk(patch, "Ctrl-C", 3)
            with pytest.raises(KeyboardInterrupt):
                bring_to_end(line, tmp_path)
            assert disk.writes == 3
    finally:
        del FAULTS["Ctrl-C"]
    assert content(tmp_path).count(b"\n") == 2
    assert kb.open(tmp_path)["r"].state == "interrupted"
    assert bring_to_end(line, tmp_path).status == "success"
    assert ran == {"a": 1, "b": 2, "c": 1, "d": 1}


# --------------------------------------------------------------------------------- side by side


def make_block(
    folder: Path, ran: Counter[str], got: list[BaseException], arm: Callable[[], None]
) -> kb.Workflow:
    """Four branches whose steps are ready in one turn of the loop, so that they share a write.

    Args:
        arm: Called when all four have acted and none is recorded.
        got: What each branch was told, and what it was told when it tried again.
    """

    @kassette(storage=folder, name="block")
    async def block(ctx: kb.Context) -> dict[str, Any]:
        together = asyncio.Barrier(4)

        def branch(name: str) -> Callable[[kb.Context], Any]:
            async def act() -> str:
                ran[name] += 1
                await together.wait()
                if together.n_waiting == 0 and name == "a":
                    arm()
                return name

            async def more() -> None:
                ran["more"] += 1

            async def run(ctx: kb.Context) -> Any:
                try:
                    return await ctx.step("act", act)
                except BaseException as problem:
                    got.append(problem)
                    try:
                        await ctx.step("more", more)
                    except BaseException as again:
                        got.append(again)
                    return None

            return run

        await ctx.step("first", ran.update, ["first"])
        return await ctx.parallel({name: branch(name) for name in "abcd"})

    return block


@pytest.mark.parametrize("fault", FAULTS)
def test_every_branch_that_shares_a_failing_write_gets_the_error(
    tmp_path: Path, fault: str
) -> None:
    ran: Counter[str] = Counter()
    got: list[BaseException] = []
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, fault)

        def arm() -> None:
            disk.at = disk.writes + 1

        block = make_block(tmp_path, ran, got, arm)
        with pytest.raises(StorageError, match="Nothing unacknowledged was kept"):
            asyncio.run(block.start(run_id="r"))
        assert disk.writes == disk.at, "one write for the batch, and none after it"
        assert disk.failed == 1
    assert len(got) == 8
    assert all(isinstance(problem, StorageError) for problem in got)
    assert ran == {"first": 1, **dict.fromkeys("abcd", 1)}
    kept = journal(tmp_path)
    assert kept.torn == 0
    assert [getattr(entry, "step_id", None) for entry in kept.entries] == [None, "first"]
    again = asyncio.run(block.start(run_id="r"))
    assert again.value == {name: name for name in "abcd"}
    assert ran == {"first": 1, **dict.fromkeys("abcd", 2)}


def test_what_returns_after_the_failure_is_not_recorded_any_more(tmp_path: Path) -> None:
    ran: Counter[str] = Counter()
    failed = threading.Event()

    def late() -> str:
        ran["late"] += 1
        assert failed.wait(10)
        return "late"

    async def early() -> str:
        ran["early"] += 1
        disk.at = disk.writes + 1
        return "early"

    async def watching(ctx: kb.Context) -> None:
        try:
            await ctx.step("early", early)
        finally:
            failed.set()

    @kassette(storage=tmp_path, name="outlived")
    async def outlived(ctx: kb.Context) -> dict[str, Any]:
        return await ctx.parallel({"late": late, "watching": watching})

    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, "sync error")
        with pytest.raises(StorageError):
            asyncio.run(outlived.start(run_id="r"))
        assert disk.writes == disk.at
    assert [type(entry) for entry in journal(tmp_path).entries] == [Start]
    assert kb.open(tmp_path)["r"].state == "interrupted"
    assert asyncio.run(outlived.start(run_id="r")).value == {"late": "late", "watching": None}
    assert ran == {"late": 2, "early": 2}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_writer_that_failed_refuses_all_that_waits_and_all_that_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    storage = LocalStorage(tmp_path)
    hold = storage.hold("r", "this test")
    writer = Writer(storage, "r", None, SystemClock())
    writer.append(Start(session=0))
    before = content(tmp_path)
    disk = Disk(monkeypatch, fault, 1)

    async def together() -> list[Any]:
        notes = (writer.join(Note(session=0, kind=str(number))) for number in range(5))
        return await asyncio.gather(*notes, return_exceptions=True)

    for _ in range(2):
        assert [type(problem) for problem in asyncio.run(together())] == [StorageError] * 5
        with pytest.raises(StorageError):
            writer.append(Note(session=0, kind="alone"))
    assert (disk.writes, disk.syncs) == (1, int(fault == "sync error"))
    hold.release()
    assert content(tmp_path) == before


# -------------------------------------------------------------------------- a really full disk


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if _mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)):
        pytest.skip(NO_MOUNT)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _mount(*arguments: str) -> int:
    if shutil.which("mount") is None:
        return 1
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode


def fill(folder: Path) -> Path:
    """Leave no byte free; removing the returned file frees what was free."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    return ballast


def test_a_run_on_a_full_disk_goes_on_once_there_is_space(small: Path) -> None:
    folder = small / "runs"
    ran: Counter[int] = Counter()

    def write(number: int) -> str:
        ran[number] += 1
        return f"{number}" * 3000

    @kassette(storage=folder, name="full")
    async def full(ctx: kb.Context) -> int:
        return sum([len(await ctx.step("write", write, number)) for number in range(9)])

    ballast = small / "ballast"
    ballast.write_bytes(b"x" * 44 * 1024)
    with pytest.raises(StorageError, match=r"disk full|No space left") as refused:
        asyncio.run(full.start(run_id="r"))
    assert refused.value.place == str(folder / "r.jsonl")
    kept = journal(folder)
    assert kept.torn == 0
    assert 2 < len(kept.entries) < 8
    assert kb.open(folder)["r"].state == "interrupted"
    # As often as one tries: nothing is lost and nothing is added.
    before = content(folder)
    with pytest.raises(StorageError):
        asyncio.run(full.start(run_id="r"))
    assert content(folder).startswith(before)
    assert journal(folder).torn == 0
    ballast.unlink()
    assert asyncio.run(full.start(run_id="r")).value == 9 * 3000
    steps = len(kept.entries) - 1
    assert all(ran[number] == 1 for number in range(9) if number != steps)


def test_a_run_that_cannot_even_begin_leaves_nothing_behind(small: Path) -> None:
    ran: Counter[str] = Counter()
    line = make_line(small, ran)
    ballast = fill(small)
    with pytest.raises(StorageError):
        asyncio.run(line.start(run_id="r"))
    assert leftovers(small) == ["ballast"]
    assert not kb.open(small)
    assert not ran
    ballast.unlink()
    assert bring_to_end(line, small).status == "success"


def test_a_read_only_disk_can_be_viewed_and_is_named(small: Path) -> None:
    ran: Counter[str] = Counter()
    line = make_line(small, ran)
    asyncio.run(line.start(run_id="r"))
    before = content(small)
    assert _mount("-o", "remount,ro", str(small)) == 0
    assert kb.open(small)["r"].state == "suspended"
    with pytest.raises(StorageError, match="Read-only file system"):
        asyncio.run(line.resume("r", "ask", 1))
    with pytest.raises(StorageError, match="Read-only file system"):
        asyncio.run(line.start(run_id="another"))
    with pytest.raises(StorageError, match="Read-only file system"):
        kb.open(small)["r"].respond(1)
    assert _mount("-o", "remount,rw", str(small)) == 0
    assert content(small) == before
    assert asyncio.run(line.resume("r", "ask", 1)).status == "success"


# ------------------------------------------------------------------------------------ strangers


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"a stranger's words\n")


def _cut_a_line(path: Path) -> None:
    os.truncate(path, path.read_bytes()[:-1].rfind(b"\n") + 1)


def _cut_a_byte(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _replace(path: Path) -> None:
    """As `sed -i` and most editors do: a new file under the old name."""
    copy = path.with_suffix(".new")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


def _replace_and_keep(path: Path) -> None:
    """As editors do that keep a backup: the old file gets another name."""
    data = path.read_bytes()
    path.rename(path.with_name("r.jsonl~"))
    path.write_bytes(data)


def _remove(path: Path) -> None:
    path.unlink()


STRANGERS = [_append, _cut_a_line, _cut_a_byte, _empty, _replace, _replace_and_keep, _remove]


@pytest.mark.parametrize("meddle", STRANGERS)
def test_a_session_whose_file_a_stranger_changes_is_fenced_and_leaves_it_alone(
    tmp_path: Path, meddle: Callable[[Path], None]
) -> None:
    ran: list[str] = []
    got: list[BaseException] = []
    left: list[bytes] = []

    def meddled() -> None:
        meddle(tmp_path / "r.jsonl")
        left.append(content(tmp_path))

    @kassette(storage=tmp_path, name="fenced")
    async def fenced(ctx: kb.Context) -> None:
        await ctx.step("first", ran.append, "first")
        for name, fn in (("meddled", meddled), ("after", lambda: ran.append("after"))):
            try:
                await ctx.step(name, fn)
            except BaseException as problem:
                got.append(problem)

    with pytest.raises(FencedError, match="Another session or program wrote to it"):
        asyncio.run(fenced.start(run_id="r"))
    assert ran == ["first"]
    assert [type(problem) for problem in got] == [FencedError, FencedError]
    assert content(tmp_path) == left[0]


def test_every_branch_of_a_block_is_fenced(tmp_path: Path) -> None:
    ran: Counter[str] = Counter()
    got: list[BaseException] = []
    block = make_block(tmp_path, ran, got, lambda: _append(tmp_path / "r.jsonl"))
    with pytest.raises(FencedError):
        asyncio.run(block.start(run_id="r"))
    assert [type(problem) for problem in got] == [FencedError] * 8
    assert ran == {"first": 1, **dict.fromkeys("abcd", 1)}
    after = content(tmp_path)
    assert after.endswith(b"a stranger's words\n")
    with pytest.raises(JournalCorruptionError, match="line 3"):
        asyncio.run(block.start(run_id="r"))
    assert content(tmp_path) == after


def test_a_session_whose_directory_is_removed_stops_and_does_not_bring_it_back(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "runs"
    ran: list[str] = []

    @kassette(storage=folder, name="removed")
    async def removed(ctx: kb.Context) -> None:
        await ctx.step("first", ran.append, "first")
        if len(ran) == 1:
            await ctx.step("remove", shutil.rmtree, folder)
        await ctx.step("after", ran.append, "after")

    with pytest.raises(FencedError):
        asyncio.run(removed.start(run_id="r"))
    assert ran == ["first"]
    assert not folder.exists()
    # The run is gone with its directory; its id is free, and the lock of old holds nobody up.
    assert asyncio.run(removed.start(run_id="r")).status == "success"
    assert ran == ["first", "first", "after"]
