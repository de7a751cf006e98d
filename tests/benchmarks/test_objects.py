"""Over an object store the network is the cost: one put an entry, one get a run."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kassette_nb as kb
from kassette_nb import kassette
from kassette_nb.clock import SystemClock
from kassette_nb.entries import Note, Start
from kassette_nb.journal import Writer
from kassette_nb.shelf import AT_ONCE
from kassette_nb.storage.objects import ObjectStorage
from kassette_nb.values import encode
from tests.benchmarks import measure, sample
from tests.objects.conftest import bucket, endpoint  # noqa: F401

ROUNDS = 400
RUNS = 1000


class Floor:
    """Bare conditional puts of a journal that grows like ours."""

    def __init__(self, storage: ObjectStorage) -> None:
        import obstore

        self.put: Any = obstore.put
        self.client = storage._connect()
        self.line = sample.journal(10).splitlines(keepends=True)[-1]
        self.data = self.line
        self.tag = self.put(self.client, "floor", self.data, use_multipart=False)["e_tag"]

    def append(self) -> None:
        self.data += self.line
        mode = {"e_tag": self.tag}
        put = self.put(self.client, "floor", self.data, mode=mode, use_multipart=False)
        self.tag = put["e_tag"]


def test_an_entry_against_a_bare_conditional_put_of_the_same_bytes(bucket: str) -> None:  # noqa: F811
    storage = ObjectStorage(bucket)
    floor = Floor(storage)
    writer = Writer(storage, "r", None, SystemClock())
    writer.append(Start(session=0, workflow="w"))
    filler = encode("x" * (len(floor.line) - 120))
    sides = {
        "append": lambda: writer.append(Note(session=0, kind="x", data=filler)),
        "floor": floor.append,
    }
    measure.interleave(sides, 20)
    times = measure.interleave(sides, ROUNDS)
    measure.report("an entry, 1 KB, growing journal", times, "append", "floor", 1.3)


def test_a_step_against_a_bare_conditional_put_of_the_same_bytes(bucket: str) -> None:  # noqa: F811
    storage = ObjectStorage(bucket)
    floor = Floor(storage)
    found: measure.Times = {}

    async def bench(ctx: Any) -> None:
        async def bare() -> None:
            floor.append()

        sides = {"step": lambda: ctx.step("work", sample.answer), "floor": bare}
        await measure.interleave_async(sides, 20)
        found.update(await measure.interleave_async(sides, ROUNDS))

    asyncio.run(kassette(storage=storage)(bench).start())
    measure.report("a durable step, 1 KB, off the loop", found, "step", "floor", 1.3)


def test_all_runs_against_the_listing_and_a_get_each(bucket: str) -> None:  # noqa: F811
    import obstore

    storage = ObjectStorage(bucket)
    client = storage._connect()

    @kassette(storage=storage, name="one_of_many")
    async def one(ctx: kb.Context, ask: bool) -> None:
        await ctx.step("work", sample.answer)
        if ask:
            await ctx.suspend("approval")

    asyncio.run(one.start(False, run_id="done"))
    asyncio.run(one.start(True, run_id="asks"))
    journals = {name: storage.read(name) for name in ("done", "asks")}

    def fill(number: int) -> None:
        found = journals["asks" if number % 10 == 0 else "done"]
        assert found is not None
        storage.create(f"r{number:04}", found[0])

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(fill, range(RUNS)))

    def ours() -> object:
        frame = kb.open(ObjectStorage(bucket)).frame()
        assert len(frame) == RUNS + 2
        return frame

    def floor() -> object:
        prefix = storage._prefix
        listed = [meta["path"] for page in obstore.list(client, prefix) for meta in page]
        wanted = [key for key in listed if key.endswith("journal.jsonl")]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda key: bytes(obstore.get(client, key).bytes()), wanted))

    ours()
    times = measure.interleave({"ours": ours, "floor": floor}, 5)
    measure.report(f"{RUNS} runs as a frame, 10 % of them open", times, "ours", "floor", 1.5)
    began = time.perf_counter()
    runs = kb.open(storage)
    runs.frame()
    first = time.perf_counter() - began
    began = time.perf_counter()
    runs.frame()
    print(
        f"{RUNS} runs again, unchanged: {time.perf_counter() - began:.2f} s ({first:.2f} s first)"
    )
