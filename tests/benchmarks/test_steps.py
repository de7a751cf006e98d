"""A durable step costs little more than the sync that makes it durable."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks import measure, sample

ROUNDS = 1_500
WARM = 50
#: Branches of a block, and how many blocks are timed.
BRANCHES = 100
BLOCKS = 60


def test_a_step_of_1_kb_against_a_write_and_a_sync_of_the_same_bytes(disk: Path) -> None:
    found = measure.beside_a_sync(
        disk,
        lambda ctx: {
            "async": lambda: ctx.step("work", sample.answer),
            "plain": lambda: ctx.step("work", sample.plain_answer),
        },
        ROUNDS,
        WARM,
    )
    measure.report("durable step, async def, 1 KB", found, "async", "floor", 1.3)
    measure.report("durable step, plain def in a thread, 1 KB", found, "plain", "floor", 1.9)


def test_a_block_of_100_ready_branches_against_100_writes_and_syncs(disk: Path) -> None:
    branches = {f"branch-{number}": sample.answer for number in range(BRANCHES)}
    found = measure.beside_a_sync(
        disk, lambda ctx: {"block": lambda: ctx.parallel(branches)}, BLOCKS, 2, BRANCHES
    )
    what = f"block of {BRANCHES} ready branches, against as many syncs"
    measure.report(what, found, "block", "floor", 0.25)
