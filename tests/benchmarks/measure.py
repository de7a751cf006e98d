"""How the benchmarks measure: two sides, operation by operation in random order, by medians.

Absolute times on a shared disk vary tenfold within a minute; the ratio of two medians taken at the
same time does not. A ratio is printed against the target that is wanted, and fails only far
above it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from kassette_nb import kassette
from tests.benchmarks import sample

#: A sync that takes less than this does not reach a disk.
REAL_SYNC = 20e-6
#: How far above its target a ratio fails: what a busy machine may add.
ALLOWANCE = 1.5

Operation = Callable[[], object]
Times = dict[str, list[float]]


def refuse_memory(folder: Path) -> None:
    """Skip the test where a sync costs nothing: any ratio to it would be meaningless."""
    took = []
    descriptor = os.open(folder / "sync-probe", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for _ in range(50):
            os.write(descriptor, b"x" * 1024)
            began = time.perf_counter()
            os.fsync(descriptor)
            took.append(time.perf_counter() - began)
    finally:
        os.close(descriptor)
    if (typical := median(took)) < REAL_SYNC:
        pytest.skip(
            f"a sync takes {typical * 1e6:.0f} µs in {folder}: memory, not a disk. Give a folder "
            "on one with --basetemp."
        )


def shuffled(sides: Mapping[str, object], rounds: int) -> Iterator[str]:
    """The names of the sides, `rounds` times each, every round in an order of its own."""
    order = random.Random(20260101)
    names = list(sides)
    for _ in range(rounds):
        order.shuffle(names)
        yield from names


def interleave(sides: Mapping[str, Operation], rounds: int) -> Times:
    """Time each side `rounds` times. What an operation returns is freed outside its time."""
    times: Times = {name: [] for name in sides}
    for name in shuffled(sides, rounds):
        began = time.perf_counter()
        kept = sides[name]()
        times[name].append(time.perf_counter() - began)
        del kept
    return times


async def interleave_async(
    sides: Mapping[str, Callable[[], Awaitable[object]]], rounds: int
) -> Times:
    """The same for coroutines, on the loop that runs."""
    times: Times = {name: [] for name in sides}
    for name in shuffled(sides, rounds):
        began = time.perf_counter()
        kept = await sides[name]()
        times[name].append(time.perf_counter() - began)
        del kept
    return times


def beside_a_sync(
    folder: Path,
    sides: Callable[[Any], Mapping[str, Callable[[], Awaitable[object]]]],
    rounds: int,
    warm: int,
    syncs: int = 1,
) -> Times:
    """Time what a workflow calls beside raw writes and syncs of a journal's line.

    Args:
        folder: On a disk.
        sides: Given the ctx, what is timed by name; ``floor`` is added.
        rounds: How often each.
        warm: How often before that, untimed.
        syncs: Writes and syncs of one round of the floor.
    """
    line = sample.journal(rounds).splitlines(keepends=True)[-1]
    raw = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    found: Times = {}

    async def bench(ctx: Any) -> None:
        async def floor() -> None:
            for _ in range(syncs):
                os.write(raw, line)
                os.fsync(raw)

        both = {**sides(ctx), "floor": floor}
        await interleave_async(both, warm)
        found.update(await interleave_async(both, rounds))

    try:
        asyncio.run(kassette(storage=folder / "runs")(bench).start())
    finally:
        os.close(raw)
    return found


def report(
    what: str, times: Times, side: str, floor: str, target: float, *, gate: float | None = None
) -> None:
    """Print a ratio of medians; fail far above its target.

    Args:
        what: What is measured, for the printed line.
        times: As `interleave` returns them.
        side: The name of our side.
        floor: The name of the side it is measured by.
        target: What is wanted.
        gate: The ratio that fails; by default the target with an allowance.
    """
    ours, theirs = median(times[side]), median(times[floor])
    detail = f"{_time(ours)} : {_time(theirs)}, {len(times[side])} each"
    verdict(what, ours / theirs, target, detail, gate=gate)


def verdict(
    what: str, ratio: float, target: float, detail: str, *, gate: float | None = None
) -> None:
    """Print a ratio beside its target; fail far above it."""
    gate = gate or target * ALLOWANCE
    mark = "" if ratio <= target else "   ← above its target"
    print(f"\n{what:58} {ratio:6.2f}   target {target:.2g}   ({detail}){mark}")
    assert ratio <= gate, f"{what}: {ratio:.2f} × the floor, {gate:.2g} is the most allowed"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"
