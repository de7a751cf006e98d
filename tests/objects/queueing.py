"""A worker behind a real queue, huey with its broker in a SQLite file. Its consumer gets killed.

huey takes a message out of the queue before the work is done, so the handler first puts the message
back for later, should this worker die, and takes that back when it has a verdict.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from huey import SqliteHuey

import kassette_nb as kb
from kassette_nb import kassette
from kassette_nb.dispatch import handle_sync
from kassette_nb.storage.objects import ObjectStorage

FOLDER = Path(os.environ["QUEUE_FOLDER"])
#: Seconds, above the lease's, after which another worker looks whether this one has died.
PATIENCE = 5.0
huey = SqliteHuey(filename=str(FOLDER / "queue.db"), fsync=True)


def mark(name: str, seconds: float = 0.0) -> str:
    with (FOLDER / "marks").open("a") as file:
        file.write(f"{name} {os.getpid()}\n")
    time.sleep(seconds)
    return name


@kassette(storage=ObjectStorage(os.environ["QUEUE_STORAGE"], lease=4), name="queued")
async def queued(ctx: kb.Context, ticket: str) -> str:
    await ctx.step("look", mark, f"look-{ticket}")
    await ctx.step("plan", mark, "plan", 1.5)
    await ctx.tool("act", act, ticket=ticket)
    return ticket


def act(ticket: str, idempotency_key: str) -> str:
    return mark("act")


@huey.task()
def work(run_id: str, ticket: str) -> None:
    """Handle a message."""
    guard: Any = work.schedule((run_id, ticket), delay=PATIENCE)
    verdict = handle_sync(queued, run_id, ticket)
    guard.revoke()
    if not verdict.ack:
        work.schedule((run_id, ticket), delay=verdict.wait)
