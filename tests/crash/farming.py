"""A workflow that workers can import; what its steps did is counted in a file beside the runs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from kassette_nb import kassette

STEPS = 6


@kassette(version="farm-v1", outcome=lambda result: result["total"])
async def farm(ctx, folder, weight=1, pause=0.0, deadly=""):
    total = 0
    for number in range(STEPS):
        total += await ctx.step("work", act, folder, ctx.run_id, number, weight, pause, deadly)
    return {"total": total}


def act(folder: str, run_id: str, number: int, weight: int, pause: float, deadly: str) -> int:
    """Take note of being called, and die the first time where told to."""
    with (Path(folder) / "calls").open("a") as calls:
        calls.write(f"{run_id} {number} {os.getpid()}\n")
    time.sleep(pause)
    if deadly and run_id.endswith(deadly) and number == 2:
        try:
            (Path(folder) / "died").touch(exist_ok=False)
        except FileExistsError:
            return weight
        os.kill(os.getpid(), signal.SIGKILL)
    return weight
