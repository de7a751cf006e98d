"""A durable step costs little more than the sync that makes it durable."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from kassette_nb import kassette
from tests.benchmarks import measure, sample

ROUNDS = 1_500
WARM = 50
#: Branches of a block, and how many blocks are timed.
BRANCHES = 100
BLOCKS = 60


def test_a_step_of_1_kb_against_a_write_and_a_sync_of_the_same_bytes(disk: Path) -> None:
    line = sample.journal(ROUNDS).splitlines(keepends=True)[-1]
    raw = os.open(disk / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    found: measure.Times = {}

    async def bench(ctx: Any) -> None:
        async def floor() -> None:
            os.write(raw, line)
            os.fsync(raw)

        sides = {
            "async": lambda: ctx.step("work", sample.answer),
            "plain": lambda: ctx.step("work", sample.plain_answer),
            "floor": floor,
        }
        await measure.interleave_async(sides, WARM)
        found.update(await measure.interleave_async(sides, ROUNDS))

    try:
        asyncio.run(kassette(storage=disk / "runs")(bench).start())
    finally:
        os.close(raw)
    measure.report("durable step, async def, 1 KB", found, "async", "floor", 1.3)
    measure.report("durable step, plain def in a thread, 1 KB", found, "plain", "floor", 1.9)


def test_a_block_of_100_ready_branches_against_100_writes_and_syncs(disk: Path) -> None:
    line = sample.journal(BRANCHES).splitlines(keepends=True)[-1]
    raw = os.open(disk / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    branches = {f"branch-{number}": sample.answer for number in range(BRANCHES)}
    found: measure.Times = {}

    async def bench(ctx: Any) -> None:
        async def floor() -> None:
            for _ in range(BRANCHES):
                os.write(raw, line)
                os.fsync(raw)

        sides = {"block": lambda: ctx.parallel(branches), "floor": floor}
        await measure.interleave_async(sides, 2)
        found.update(await measure.interleave_async(sides, BLOCKS))

    try:
        asyncio.run(kassette(storage=disk / "runs")(bench).start())
    finally:
        os.close(raw)
    what = f"block of {BRANCHES} ready branches, against as many syncs"
    measure.report(what, found, "block", "floor", 0.25)
