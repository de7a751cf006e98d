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
from kassette_nb.dispatch import Verdict, handle_answer_sync, handle_sync
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
async def triage(ctx: kb.Context, ticket: str) -> str:
    await ctx.step("look", mark, f"look-{ticket}")
    await ctx.step("plan", mark, "plan", 1.5)
    answer: str = await ctx.suspend("approval")
    await ctx.tool("act", act, ticket=ticket)
    return answer


def act(ticket: str, idempotency_key: str) -> str:
    return mark("act")


def work_on(body: dict[str, Any]) -> Verdict:
    """Begin a run or go on with it; a message with an event is an answer."""
    if "event" in body:
        return handle_answer_sync(triage, **body)
    return handle_sync(triage, **body)


@huey.task()
def work(body: dict[str, Any]) -> None:
    """Handle a message."""
    guard: Any = work.schedule((body,), delay=PATIENCE)
    verdict = work_on(body)
    guard.revoke()
    if not verdict.ack:
        work.schedule((body,), delay=verdict.wait)
    elif verdict.due is not None:
        work.schedule(({"run_id": body["run_id"]},), delay=verdict.due)
