"""An object store keeps the promises of a storage, at a cost that is counted."""

from __future__ import annotations

import asyncio
import time
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kassette_nb as kb
from kassette_nb import kassette
from kassette_nb.clock import SystemClock
from kassette_nb.entries import Note, Start
from kassette_nb.journal import Writer, read
from kassette_nb.storage import Storage, open_storage
from kassette_nb.storage import objects as object_storage
from kassette_nb.storage.objects import ObjectStorage
from kassette_nb.testing import StorageContract
from kassette_nb.values import encode
from tests.objects.proxy import Proxy

JOURNAL = "/journal.jsonl"


class TestObjects(StorageContract):
    @pytest.fixture(autouse=True)
    def _url(self, bucket: str) -> None:
        self.url = bucket

    def make(self, tmp_path: Path) -> Storage:
        return ObjectStorage(self.url)


class TestWholeBucket(StorageContract):
    """A bucket of its own, without a prefix."""

    @pytest.fixture(autouse=True)
    def _url(self, endpoint: str, bucket: str) -> None:
        from tests.objects.server import make_bucket

        name = bucket.rpartition("/")[2]
        make_bucket(endpoint, name)
        self.url = f"s3://{name}"

    def make(self, tmp_path: Path) -> Storage:
        return ObjectStorage(self.url)


async def nothing() -> None: ...


def test_a_url_opens_it_and_names_it(bucket: str) -> None:
    storage = open_storage(f"{bucket}/deep//er/")
    assert storage.url == storage.place == f"{bucket}/deep/er"
    assert repr(storage) == f"ObjectStorage('{bucket}/deep/er')"
    assert storage.locate("r") == f"{bucket}/deep/er/r/journal.jsonl"
    assert repr(kb.open(bucket)) == f"<0 runs in {bucket}>"


def test_a_step_is_one_put_and_a_run_four_more(net: Proxy, bucket: str) -> None:
    @kassette(storage=bucket, name="counted_puts")
    async def counted(ctx: kb.Context) -> None:
        for number in range(10):
            await ctx.step(f"s{number}", nothing)

    asyncio.run(counted.start())
    assert len(net.requests("PUT", JOURNAL)) == 12  # the opening, ten steps, the ending
    assert len(net.requests("PUT", "/lease.json")) == 2
    assert net.requests("GET", JOURNAL) == []  # a new run's id is new


def test_a_hundred_branches_that_are_ready_together_are_one_put(net: Proxy, bucket: str) -> None:
    puts: list[int] = []

    @kassette(storage=bucket, name="counted_branches")
    async def counted(ctx: kb.Context) -> None:
        await ctx.step("first", nothing)
        before = len(net.requests("PUT", JOURNAL))
        await ctx.parallel({f"b{number}": nothing for number in range(100)})
        puts.append(len(net.requests("PUT", JOURNAL)) - before)

    asyncio.run(counted.start(run_id="r"))
    assert puts == [1]
    assert len(read(open_storage(bucket), "r").entries) == 103


def test_what_gets_ready_while_a_put_is_under_way_shares_the_next(net: Proxy, bucket: str) -> None:
    async def late(ctx: kb.Context) -> None:
        # Ready while the first put flies.
        await ctx.step("work", asyncio.sleep, 0.1)

    @kassette(storage=bucket, name="shared_puts")
    async def shared(ctx: kb.Context) -> None:
        await ctx.step("first", nothing)
        before = len(net.requests("PUT", JOURNAL))
        net.plan(latency=0.3)
        branches: dict[str, Any] = {"soon": nothing}
        branches |= {f"late{number}": late for number in range(20)}
        await ctx.parallel(branches)
        net_puts.append(len(net.requests("PUT", JOURNAL)))
        assert before == 2

    net_puts: list[int] = []
    asyncio.run(shared.start(run_id="r"))
    assert net_puts == [2]


def test_the_loop_goes_on_while_a_step_is_recorded(net: Proxy, bucket: str) -> None:
    turns: list[int] = []

    @kassette(storage=bucket, name="lively")
    async def lively(ctx: kb.Context) -> None:
        await ctx.step("first", nothing)

        async def turn() -> None:
            while True:
                turns.append(1)
                await asyncio.sleep(0.005)

        other = asyncio.create_task(turn())
        net.plan(latency=0.2)
        for number in range(3):
            await ctx.step(f"s{number}", nothing)
        net.plan()
        other.cancel()

    asyncio.run(lively.start())
    assert len(turns) > 30, "0.6 s of network time held the loop up"


def test_coming_back_to_a_run_reads_it_once(net: Proxy, bucket: str) -> None:
    async def result() -> str:
        return "x" * 1000

    @kassette(storage=bucket, name="comes_back")
    async def comes_back(ctx: kb.Context) -> None:
        for number in range(20):
            await ctx.step(f"s{number}", result)
        await ctx.suspend("wait")

    asyncio.run(comes_back.start(run_id="r"))
    again = kb.Workflow(comes_back.definition, bucket)  # as another process would
    net.plan()
    assert asyncio.run(again.resume("r", "wait", None)).status == "success"
    gets = [request["status"] for request in net.requests("GET", JOURNAL)]
    # Under the lease it is asked whether it still is the same, and that carries no journal.
    assert gets == [200, 304]
    assert len(net.requests("PUT", JOURNAL)) == 2


def test_a_cancelled_caller_loses_no_entry_that_is_under_way(net: Proxy, bucket: str) -> None:
    @kassette(storage=bucket, name="cancelled_put")
    async def cancelled(ctx: kb.Context) -> None:
        await ctx.step("first", nothing)
        net.plan(latency=0.3)
        second.append(1)
        await ctx.step("second", nothing)
        await ctx.step("third", nothing)

    second: list[int] = []

    async def scenario() -> None:
        task = asyncio.create_task(cancelled.start(run_id="r"))
        while not second or not net.requests("PUT", JOURNAL):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    net.plan()
    _until_free(bucket)
    steps = [entry.step_id for entry in kb.open(bucket)["r"].fold().steps]
    assert steps == ["first", "second"]
    assert kb.open(bucket)["r"].state == "interrupted"
    result = asyncio.run(cancelled.start(run_id="r"))
    assert result.status == "success"


def test_a_run_taken_for_a_caller_who_is_gone_is_freed(net: Proxy, bucket: str) -> None:
    storage = ObjectStorage(bucket)

    @kassette(storage=storage, name="gone_caller")
    async def gone(ctx: kb.Context) -> None: ...

    async def scenario() -> None:
        net.plan(latency=0.2)
        task = asyncio.create_task(gone.start(run_id="r"))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    net.plan()
    _until_free(bucket)


def _until_free(bucket: str) -> None:
    """Wait until the store has heard that the run is free: a thread tells it."""
    deadline = time.monotonic() + 5
    while ObjectStorage(bucket).holder("r") is not None:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_thousand_runs_are_listed_over_pages(
    net: Proxy, bucket: str, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    storage = ObjectStorage(bucket)
    storage._connect()  # through the proxy that counts

    async def fill() -> None:
        for number in range(1000):
            key = f"{storage._prefix}r{number:04}"
            for name in ("journal.jsonl", "lease.json")[: 1 if number % 10 else 2]:
                await obstore.put_async(client, f"{key}/{name}", b"one\n", use_multipart=False)

    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    client = ObjectStorage(bucket)._connect()
    asyncio.run(fill())
    net.plan()
    wanted = [f"r{number:04}" for number in range(1000)]
    assert list(storage.list()) == wanted
    assert len([r for r in net.requests("GET") if "list-type=2" in r["path"]]) == 2
    net.plan()
    assert list(storage.list(after="r0500", limit=3)) == ["r0501", "r0502", "r0503"]
    assert len(net.requests("GET")) == 1, "no more pages than are asked for"
    assert len(kb.open(storage)) == 1000


def test_the_runs_of_a_storage_cost_the_listing_and_one_get_each(net: Proxy, bucket: str) -> None:
    @kassette(storage=bucket, name="many_runs")
    async def many(ctx: kb.Context) -> None: ...

    async def scenario() -> None:
        await asyncio.gather(*(many.start(run_id=f"r{number:02}") for number in range(20)))

    asyncio.run(scenario())
    runs = kb.open(bucket)
    net.plan()
    assert set(runs.frame()["state"]) == {"completed"}
    assert len(net.requests("GET")) == 1 + 20
    net.plan()
    assert len(runs.frame()) == 20
    assert len(net.requests("GET")) == 1, "what has not changed is not read again"
    net.plan()
    assert len(runs.steps()) == 0
    assert len(net.requests("GET")) == 1


@pytest.mark.parametrize("entries", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_bytes_uploaded_grow_with_the_square_of_the_length(
    net: Proxy, bucket: str, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if entries == 1000:
        monkeypatch.setattr(object_storage, "LARGE", 10**9)
    writer = Writer(ObjectStorage(bucket), "r", None, SystemClock())
    writer.append(Start(session=0, workflow="w"))
    line = Note(session=1, kind="x", data=encode(""))
    filler = 1024 - len(msgspec.json.encode(line)) - 60
    net.plan()
    for _ in range(entries):
        writer.append(Note(session=0, kind="x", data=encode("x" * filler)))
    uploaded = sum(request["bytes"] for request in net.requests("PUT", JOURNAL))
    square = 1024 * entries * (entries + 1) / 2
    print(f"{entries} entries of 1 KB: {uploaded / 1e6:.1f} MB uploaded")
    assert 0.9 * square < uploaded < 1.1 * square


def test_a_journal_that_has_become_large_warns_once_and_names_the_way_out(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_storage, "LARGE", 3000)
    writer = Writer(ObjectStorage(bucket), "r", None, SystemClock())
    writer.append(Start(session=0, workflow="w"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            writer.append(Note(session=0, kind="x", data=encode("x" * 1000)))
    (warning,) = caught
    assert "run 'r' has" in str(warning.message)
    assert "references to large results" in str(warning.message)


def test_forks_of_the_same_run_made_at_once_are_two_runs(bucket: str) -> None:
    @kassette(storage=bucket, name="forked_twice")
    async def forked(ctx: kb.Context) -> None:
        await ctx.step("only", nothing)

    asyncio.run(forked.start(run_id="r"))

    async def both() -> list[str]:
        return list(await asyncio.gather(*(forked.fork("r", at="only") for _ in range(2))))

    assert sorted(asyncio.run(both())) == ["r.2", "r.3"]
    first, second = (kb.open(bucket)[name].journal.opening.write_id for name in ("r.2", "r.3"))
    assert first != second


def test_an_agents_process_loads_no_client_until_it_opens_one() -> None:
    import subprocess
    import sys

    code = "import sys, kassette_nb; print([m for m in sys.modules if 'obstore' in m])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"
