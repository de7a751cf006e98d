"""Coming back to a long run costs about as much as decoding its file once."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from pathlib import Path

import orjson
import pytest

from kassette_nb import LocalStorage
from kassette_nb.journal import read
from tests.benchmarks import measure, sample

#: Steps of the journal → how often it is read: a thousand operations at least, a step being one.
SIZES = {1_000: 200, 10_000: 25}


@pytest.mark.parametrize("steps", SIZES)
def test_loading_against_reading_and_decoding_every_line(disk: Path, steps: int) -> None:
    storage = LocalStorage(disk)
    path = disk / "long.jsonl"
    path.write_bytes(sample.journal(steps))
    gc.collect()
    sides = {
        "load": lambda: read(storage, "long"),
        "floor": lambda: [orjson.loads(line) for line in path.read_bytes().splitlines()],
    }
    measure.interleave(sides, 2)
    times = measure.interleave(sides, SIZES[steps])
    measure.report(f"loading {steps:,} steps", times, "load", "floor", 0.8)


@pytest.mark.parametrize("steps", SIZES)
def test_replaying_against_reading_and_decoding_every_line(disk: Path, steps: int) -> None:
    storage = LocalStorage(disk)
    path = disk / "long.jsonl"
    path.write_bytes(sample.journal(steps))
    flow = sample.workflow(storage, steps)

    async def replay() -> None:
        assert (await flow.verify("long")).replayed == steps

    async def floor() -> object:
        return [orjson.loads(line) for line in path.read_bytes().splitlines()]

    async def bench() -> measure.Times:
        sides = {"replay": replay, "floor": floor}
        await measure.interleave_async(sides, 2)
        gc.collect()
        return await measure.interleave_async(sides, SIZES[steps])

    times = asyncio.run(bench())
    measure.report(f"loading and replaying {steps:,} steps", times, "replay", "floor", 1.6)


@pytest.mark.parametrize("act", ["load", "replay"])
def test_the_memory_of_a_loaded_run_against_its_file(disk: Path, act: str) -> None:
    steps = 10_000
    (disk / "long.jsonl").write_bytes(sample.journal(steps))
    size = (disk / "long.jsonl").stat().st_size
    storage = LocalStorage(disk)
    tracemalloc.start()
    try:
        journal = read(storage, "long")
        if act == "replay":
            del journal
            asyncio.run(sample.workflow(storage, steps).verify("long"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    detail = f"{peak / 1e6:.1f} MB : {size / 1e6:.1f} MB"
    measure.verdict(f"memory to {act} {steps:,} steps, against the file", peak / size, 2.0, detail)
