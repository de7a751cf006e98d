"""A tool costs two synced entries; coming back to a run is cheap beside the published design."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

from kassette_nb import kassette
from tests.benchmarks import measure, sample
from tests.benchmarks.ticket_servers import STEPS
from tests.benchmarks.ticket_workers import EventLog

ROUNDS = 1_200
WARM = 50


async def act(question: str) -> dict[str, Any]:
    return await sample.answer()


def act_plainly(question: str) -> dict[str, Any]:
    return sample.plain_answer()


def test_a_tool_of_1_kb_against_a_write_and_a_sync_of_the_same_bytes(disk: Path) -> None:
    found = measure.beside_a_sync(
        disk,
        lambda ctx: {
            "async": lambda: ctx.tool("act", act, question="what now?"),
            "plain": lambda: ctx.tool("act", act_plainly, question="what now?"),
        },
        ROUNDS,
        WARM,
    )
    measure.report("tool, async def, 1 KB, two synced entries", found, "async", "floor", 2.5)
    measure.report("tool, plain function, 1 KB", found, "plain", "floor", 2.9)


def test_coming_back_to_24_steps_against_an_event_log_in_sqlite(disk: Path) -> None:
    value = sample.plain_answer()
    log = EventLog(str(disk / "events.db"))
    for number in range(STEPS):
        log.step("r", number, lambda: value)

    @kassette(storage=disk / "runs", name="back")
    async def back(ctx: Any) -> None:
        for _ in range(STEPS):
            await ctx.step("work", lambda: value)
        if not ctx.replaying:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(back.start(run_id="r"))

    times: measure.Times = {"journal": [], "sqlite": []}

    async def compare() -> None:
        for side in measure.shuffled(times, 200):
            began = time.perf_counter()
            if side == "journal":
                found = await back.verify("r")
                assert found.replayed == STEPS
            else:
                for number in range(STEPS):
                    log.step("r", number, lambda: None)
            times[side].append(time.perf_counter() - began)

    asyncio.run(compare())
    log.close()
    measure.report(
        "coming back to 24 steps, sqlite event log beside it", times, "journal", "sqlite", 0.2
    )
