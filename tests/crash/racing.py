"""Processes that race for runs: sixteen long-lived ones, let off together round after round.

They wait on a lock that the harness holds, so the kernel wakes them all at once. `Racers` is the
harness' side, ``python -m tests.crash.racing FD…`` their parent, which forks one for each of the
sockets that it is given.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import kassette_nb as kb
from kassette_nb import kassette
from kassette_nb.clock import SystemClock, stamp
from kassette_nb.errors import KassetteError, UnknownRunError
from kassette_nb.journal import read
from kassette_nb.storage import LocalStorage

ROOT = Path(__file__).resolve().parents[2]
Told = dict[str, Any]


class Racers:
    """Racing processes, as the harness talks to them; a context manager that ends them."""

    def __init__(self, count: int, errors: Path) -> None:
        self.errors = errors
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
        self._lines = [ours for ours, _ in pairs]
        theirs = [their for _, their in pairs]
        with errors.open("w") as stderr:
            self._parent = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.racing", *(str(s.fileno()) for s in theirs)],
                cwd=ROOT,
                stderr=stderr,
                pass_fds=[s.fileno() for s in theirs],
            )
        for line in theirs:
            line.close()
        for line in self._lines:
            line.settimeout(60)

    def __enter__(self) -> Racers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for line in self._lines:
            line.close()  # which ends the process at its other end
        assert self._parent.wait(timeout=60) == 0, self.errors.read_text()

    def race(self, folder: Path, orders: Sequence[Told]) -> list[Told]:
        """Let each racer do one thing, all at the same time; returns what became of each."""
        gate = folder / "gate"
        with gate.open("w") as closed:
            fcntl.flock(closed, fcntl.LOCK_EX)
            racing = self._lines[: len(orders)]
            for line, order in zip(racing, orders, strict=True):
                line.send(json.dumps({"folder": str(folder), **order}).encode())
            for line in racing:
                self._receive(line)  # it stands at the gate
        found = [self._receive(line) for line in racing]
        assert not [each for each in found if "crash" in each], found
        return found

    def _receive(self, line: socket.socket) -> Told:
        message = line.recv(1 << 20)
        assert message, self.errors.read_text()
        told: Told = json.loads(message)
        return told


# ---------------------------------------------------------------------------- a racer's own side


def make(folder: Path, seconds: float) -> kb.Workflow:
    """Two steps, a question, two steps; each says in the log that it acts."""

    async def act(name: str) -> str:
        log = os.open(folder / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, f"{name} {os.getpid()}\n".encode())
        os.close(log)
        await asyncio.sleep(seconds)
        return name

    @kassette(storage=folder / "runs", name="raced")
    async def raced(ctx: kb.Context) -> list[Any]:
        told: list[Any] = [await ctx.step("a", act, "a"), await ctx.step("b", act, "b")]
        told.append(await ctx.suspend("ask"))
        return [*told, await ctx.step("c", act, "c"), await ctx.step("d", act, "d")]

    return raced


def start(order: Told) -> Told:
    result = asyncio.run(make(Path(order["folder"]), order["seconds"]).start(run_id="r"))
    return {"status": result.status, "value": result.value}


def resume(order: Told) -> Told:
    raced = make(Path(order["folder"]), order["seconds"])
    result = asyncio.run(raced.resume("r", "ask", order["value"], by=order["by"]))
    return {"status": result.status, "value": result.value}


def respond(order: Told) -> Told:
    """Answer where the workflow's code is not loaded, as a notebook of somebody else does."""
    kb.workflow.registry.pop("raced", None)
    run = kb.open(Path(order["folder"]) / "runs")["r"]
    run.respond(order["value"], by=order["by"])
    return {"status": "recorded"}


def cancel(order: Told) -> Told:
    raced = make(Path(order["folder"]), order["seconds"])
    result = asyncio.run(raced.cancel("r", reason=order["by"]))
    return {"status": result.status}


def view(order: Told) -> Told:
    """Look until the run is where it shall come to: each look shows the last one's, or more."""
    runs = kb.open(Path(order["folder"]) / "runs")
    storage = LocalStorage(Path(order["folder"]) / "runs")
    states: dict[str, int] = {}
    seen = b""
    looks = 0
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        looks += 1
        try:
            folded = runs["r"].fold()
        except UnknownRunError:
            assert not seen, "a run that was there is unknown"
            continue
        states[folded.status] = states.get(folded.status, 0) + 1
        if looks >= order["looks"] and folded.status in order["until"]:
            return {"status": "viewed", "states": states, "looks": looks}
        if order.get("quick"):
            continue
        frame = runs.frame()
        assert list(frame["run_id"]) == ["r"]
        assert frame["damage"].isna().all(), frame["damage"][0]
        journal = read(storage, "r")
        whole = journal.data[: journal.size]
        assert whole.startswith(seen), "a line that was seen is gone or has changed"
        assert folded.length <= len(journal.entries)
        seen = whole
    raise TimeoutError(f"the run is {states}")


ORDERS: dict[str, Callable[[Told], Told]] = {
    "start": start,
    "resume": resume,
    "respond": respond,
    "cancel": cancel,
    "view": view,
}


def race(line: socket.socket) -> None:
    """Do what is asked for until nobody asks any more."""
    while message := line.recv(1 << 20):
        order = json.loads(message)
        line.send(b'{"at": "the gate"}')
        with (Path(order["folder"]) / "gate").open() as gate:
            fcntl.flock(gate, fcntl.LOCK_SH)
        try:
            told = ORDERS[order["do"]](order)
        except KassetteError as error:
            told = {"error": type(error).__name__, "told": stamp(SystemClock().now())}
            told.update(error.__dict__, message=str(error))
        except BaseException as problem:
            traceback.print_exc()
            told = {"crash": repr(problem)}
        line.send(json.dumps(told, default=str).encode())


def main(descriptors: list[int]) -> None:
    # Imported once, before the racers are forked.
    import kassette_nb.frames  # noqa: F401

    lines = [socket.socket(fileno=fd) for fd in descriptors]
    racers = []
    for own in lines:
        child = os.fork()
        if not child:
            try:
                for line in lines:
                    if line is not own:
                        line.close()
                race(own)
            finally:
                os._exit(0)
        racers.append(child)
    for line in lines:
        line.close()
    for child in racers:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]])
