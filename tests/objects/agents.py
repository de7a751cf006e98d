"""What tests run over an object store, in processes of their own too.

``python -m tests.objects.agents VERB URL …`` does one thing and prints JSON lines about it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import kassette_nb as kb
from kassette_nb import kassette
from kassette_nb.clock import SystemClock
from kassette_nb.entries import Note, Start
from kassette_nb.errors import FencedError, KassetteError, RunBusyError
from kassette_nb.journal import Writer, find
from kassette_nb.storage.objects import ObjectStorage
from kassette_nb.values import encode


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def appending(url: str, run_id: str, who: str, count: int) -> None:
    """Append notes to a run that others append to as well, each once; fenced, begin anew."""
    storage = ObjectStorage(url)
    fenced = done = 0
    writer: Writer | None = None
    while done < count:
        try:
            if writer is None:
                journal = find(storage, run_id)
                writer = Writer(storage, run_id, journal, SystemClock())
                if journal is None:
                    writer.append(Start(session=0, workflow="race"))
            writer.append(Note(session=0, kind="mark", data=encode([who, done])))
            done += 1
        except FencedError:
            fenced, writer = fenced + 1, None
    say(who=who, done=done, fenced=fenced)


def stepping(url: str, run_id: str, lease: str, folder: str, steps: str, pause: str) -> None:
    """Go on with a run of many steps, waiting for its holder to die; each step leaves a mark."""
    storage = ObjectStorage(url, lease=float(lease))
    marks = Path(folder) / "marks"

    def mark(number: int) -> int:
        with marks.open("a") as file:
            file.write(f"{number} {os.getpid()}\n")
        time.sleep(float(pause))
        return number

    @kassette(storage=storage, name="stepping")
    async def workflow(ctx: kb.Context) -> int:
        say(session=ctx.session)
        for number in range(int(steps)):
            await ctx.step(f"s{number}", mark, number)
            say(step=number, live=not ctx.replaying)
        return int(steps)

    began = time.monotonic()
    while True:
        try:
            result = asyncio.run(workflow.start(run_id=run_id))
        except RunBusyError:
            time.sleep(0.1)
            continue
        say(result=result.value, seconds=time.monotonic() - began)
        return


def tooling(url: str, run_id: str, lease: str, folder: str) -> None:
    """Act on the world behind a gate: says what it did, or the name of what stopped it."""
    storage = ObjectStorage(url, lease=float(lease))
    gate, acts = Path(folder) / "gate", Path(folder) / "acts"

    def wait() -> str:
        say(at="gate")
        while not gate.exists():
            time.sleep(0.02)
        return "open"

    def act(who: int) -> str:
        with acts.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return f"done for {who}"

    @kassette(storage=storage, name="tooling")
    async def workflow(ctx: kb.Context) -> Any:
        await ctx.step("gate", wait)
        return await ctx.tool("act", act, who=1)

    while True:
        try:
            result = asyncio.run(workflow.start(run_id=run_id))
            say(result=result.value)
        except RunBusyError:
            time.sleep(0.1)
            continue
        except KassetteError as problem:
            say(error=type(problem).__name__, text=str(problem))
        return


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    if verb == "appending":
        appending(rest[0], rest[1], rest[2], int(rest[3]))
    elif verb == "stepping":
        stepping(*rest)
    elif verb == "tooling":
        tooling(*rest)
