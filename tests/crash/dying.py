"""What lives in a process that is going to be killed: the workflows, and the watch on them.

The watch is this process' own: it stretches the moments of a step, which last microseconds, so
that a kill from outside can fall into each of them; it notes in memory shared with the harness
which one it is; and it can be told to end the process at a named point. The package itself is as
it is; only `os.write`, `os.fsync` and the hash of a step's code, which is taken just before its
function is called, are wrapped.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jsonschema  # noqa: F401  # what checks answers: once here instead of in each child

import kassette_nb as kb
from kassette_nb import codehash, kassette, steps, tool
from kassette_nb.clock import SystemClock

#: Where a process can be when it is killed.
PHASES = (
    "starting",
    "replaying",
    "before call",
    "inside",
    "after call",
    "mid-write",
    "before sync",
    "after sync",
    "between steps",
    "asleep",
    "settled",
)
#: Where a process can be told to end itself, for a certain step or kind of line; beside these, in
#: any phase of the process itself.
POINTS = ("before call", "inside", "after call", "mid-write", "before sync", "after sync")
#: Where it can be for a tool, and be told to end itself.
TOOL_PHASES = ("before intent", "between intent and act", "between act and result")
_ALL = (*PHASES, *TOOL_PHASES)
_CODES = {phase: code for code, phase in enumerate(_ALL, 1)}
_SIZE = 64
#: What counts before all else (the disk), the process, and its steps.
_FIRST, _PROCESS, _STEPS = 0, 1, 2

SECONDS_INSIDE = 0.004
SECONDS_BETWEEN = 0.001


class Watch:
    """Which phase this process is in, kept where it survives the process.

    Args:
        folder: Of the run; holds the shared memory and the effects.
        told: The point to die at, if any: ``point``, ``target`` and, mid-write, ``cut``.
    """

    def __init__(self, folder: Path, told: dict[str, Any]) -> None:
        self._memory = memory(folder)
        self._memory[:] = bytes(_SIZE)
        self._effects = os.open(folder / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._point: str | None = told.get("point")
        self._target: str = told.get("target", "")
        self._cut: str = told.get("cut", "half")
        self._slow: bool = told.get("slow", False)
        self._slots: dict[str, int] = {}
        self._lock = threading.Lock()
        self._created = False
        self._written: dict[int, bytes] = {}
        self._write, self._fsync, self._hash = os.write, os.fsync, codehash.code_hash
        self.process("starting")

    def install(self) -> None:
        os.write = self.write  # type: ignore[assignment]  # the same, in pieces
        os.fsync = self.fsync
        vars(steps)["code_hash"] = self.before_call
        vars(tool)["code_hash"] = self.before_intent

    def process(self, phase: str) -> None:
        self._memory[_PROCESS] = _CODES[phase]
        self._die(phase, "")

    def pause(self, seconds: float = SECONDS_BETWEEN) -> None:
        if self._slow:
            time.sleep(seconds)

    # --------------------------------------------------------------------------- a step

    def before_call(self, fn: Callable[..., object]) -> str | None:
        name: str = getattr(fn, "step_id", "")
        self._step(name, "before call")
        self._die("before call", name)
        self.pause()
        return self._hash(fn)

    def act(self, name: str) -> None:
        """What a step is for: it happens in the world, and cannot be taken back."""
        self._step(name, "inside")
        self._write(self._effects, f"{os.getpid()} {name}\n".encode())
        self._die("inside", name)

    def acted(self, name: str) -> None:
        self._step(name, "after call")

    # --------------------------------------------------------------------------- a tool

    def before_intent(self, fn: Callable[..., object]) -> str | None:
        name: str = getattr(fn, "step_id", "")
        self.tool(name, "before intent")
        self.pause()
        return self._hash(fn)

    def tool(self, name: str, phase: str) -> None:
        self._step(name, phase)
        self._die(phase, name)

    # --------------------------------------------------------------------------- the disk

    def write(self, fd: int, data: bytes) -> int:
        if not data.startswith(b'{"type"'):
            return self._write(fd, data)
        if any(line_is(self._target, line) for line in data.splitlines()):
            self._die("after call", self._target)
        self.pause()
        self._memory[_FIRST] = _CODES["mid-write"]
        cut = _cut(data, self._target, self._cut)
        written = self._write(fd, data[:cut])
        if any(line_is(self._target, line) for line in data.splitlines()):
            self._die("mid-write", self._target)
        self.pause()
        written += self._write(fd, data[cut:])
        self._memory[_FIRST] = _CODES["before sync"]
        self._written[fd] = data
        return written

    def fsync(self, fd: Any) -> None:
        lines = self._written.pop(fd, b"").splitlines()
        if not lines:  # of a new journal, which has its name now
            if self._created:
                self._die("before sync", "directory")
            self._fsync(fd)
            return
        ours = any(line_is(self._target, line) for line in lines)
        if ours:
            self._die("before sync", self._target)
        self.pause()
        self._fsync(fd)
        self._created = True
        self._memory[_FIRST] = _CODES["after sync"]
        if ours:
            self._die("after sync", self._target)
        self.pause()
        intents = []
        for name, slot in self._slots.items():
            found = [line for line in lines if line_is(name, line)]
            if any(line_is("intent", line) for line in found):
                intents.append(name)
            elif found:
                self._memory[slot] = 0
        self.process("between steps")
        self._memory[_FIRST] = 0
        for name in intents:
            self.tool(name, "between intent and act")

    def _step(self, name: str, phase: str) -> None:
        with self._lock:
            slot = self._slots.setdefault(name, _STEPS + len(self._slots))
        self._memory[slot] = _CODES[phase]

    def _die(self, point: str, name: str) -> None:
        if point == self._point and name == self._target:
            self._memory[_FIRST] = _CODES[point]  # whatever else goes on
            os.kill(os.getpid(), signal.SIGKILL)


def memory(folder: Path) -> mmap.mmap:
    """The memory shared with the harness, made by whoever comes first."""
    descriptor = os.open(folder / "phase", os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(descriptor, _SIZE)
        return mmap.mmap(descriptor, _SIZE)
    finally:
        os.close(descriptor)


def phase(shared: mmap.mmap) -> str:
    """Where a killed process was: at the disk, or else in whichever step was nearest to it."""
    if not shared[_FIRST] and not shared[_PROCESS]:
        return "starting"
    if shared[_FIRST]:
        return _ALL[shared[_FIRST] - 1]
    at = set(shared[_STEPS:])
    for each in (*reversed(TOOL_PHASES), "after call", "before call", "inside"):
        if _CODES[each] in at:
            return each
    return _ALL[shared[_PROCESS] - 1]


def line_is(target: str, line: bytes) -> bool:
    """Tell whether a journal line is of this step id, or of this type."""
    return bool(target) and (
        b'"type":"%s"' % target.encode() in line or b'"stepId":"%s"' % target.encode() in line
    )


def _cut(data: bytes, target: str, where: str) -> int:
    """How many bytes of a batch reach the file: the lines before the target's, and a part of it."""
    start = 0
    lines = data.splitlines(keepends=True)
    for line in lines:
        if line_is(target, line):
            break
        start += len(line)
    else:
        start, line = 0, data
    return start + {"byte": 1, "half": len(line) // 2, "newline": len(line) - 1}[where]


class Clock(SystemClock):
    """Notes when the workflow sleeps in the process."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    async def sleep(self, seconds: float) -> None:
        self._watch.process("asleep")
        await super().sleep(seconds)
        self._watch.process("between steps")


Steps = dict[str, Callable[..., Any]]


def plain(watch: Watch, name: str, value: int) -> Callable[[], int]:
    def step() -> int:
        watch.act(name)
        watch.pause(SECONDS_INSIDE)
        watch.acted(name)
        return value * value

    step.step_id = name  # type: ignore[attr-defined]
    return step


def coroutine(watch: Watch, name: str, value: int) -> Callable[[], Awaitable[int]]:
    async def step() -> int:
        watch.act(name)
        # Not pause(): the siblings of a parallel block act meanwhile.
        await asyncio.sleep(SECONDS_INSIDE if watch._slow else 0)
        watch.acted(name)
        return value * value

    step.step_id = name  # type: ignore[attr-defined]
    return step


def journey(watch: Watch, storage: Path) -> kb.Workflow:
    """24 steps with everything between them that a run can wait for."""

    async def some(ctx: kb.Context, path: str, numbers: range) -> list[int]:
        found = []
        for number in numbers:
            if ctx.replaying:
                watch.process("replaying")
                watch.pause(SECONDS_BETWEEN / 2)
            name = f"s{number}"
            make = plain if number % 2 else coroutine
            found.append(await ctx.step(name, make(watch, path + name, number)))
            if not ctx.replaying:
                watch.pause(SECONDS_BETWEEN / 2)
        return found

    @kassette(storage=storage, name="journey", clock=Clock(watch))
    async def journey(ctx: kb.Context) -> dict[str, Any]:
        watch.process("replaying")
        watch.pause()
        told: dict[str, Any] = {"first": await some(ctx, "", range(5)), "uuid": await ctx.uuid()}
        told["approval"] = await ctx.suspend("approval", prompt="Go on?")
        told["second"] = await some(ctx, "", range(5, 7))

        async def left(ctx: kb.Context) -> list[int]:
            return await some(ctx, "left/", range(3))

        async def right(ctx: kb.Context) -> list[int]:
            found = await some(ctx, "right/", range(2))
            await ctx.sleep(0.015)
            return found + await some(ctx, "right/", range(2, 4))

        told["block"] = await ctx.parallel(
            {
                "left": left,
                "right": right,
                "lone": plain(watch, "lone", 8),
                "along": coroutine(watch, "along", 9),
            }
        )
        await ctx.sleep(0.02)

        async def asking(ctx: kb.Context) -> list[Any]:
            before: list[Any] = await some(ctx, "asking/", range(1))
            return [*before, await ctx.suspend("details"), *await some(ctx, "asking/", range(1, 2))]

        async def going(ctx: kb.Context) -> list[int]:
            return await some(ctx, "going/", range(2))

        told["asked"] = await ctx.parallel({"asking": asking, "going": going})
        await ctx.sleep(0.1, short=0)
        told["last"] = await some(ctx, "", range(7, 11))
        return told

    return journey


def short(watch: Watch, storage: Path) -> kb.Workflow:
    """One step of each shape, each between two neighbours; then two questions at once."""

    @kassette(storage=storage, name="short", clock=Clock(watch))
    async def short(ctx: kb.Context) -> list[Any]:
        watch.process("replaying")
        told: list[Any] = []
        for number, name in enumerate(("early", "plain", "async", "late")):
            make = plain if name == "plain" else coroutine
            told.append(await ctx.step(name, make(watch, name, number)))

        async def branch(ctx: kb.Context) -> list[int]:
            return [
                await ctx.step("plain", plain(watch, "branch/plain", 5)),
                await ctx.step("async", coroutine(watch, "branch/async", 6)),
            ]

        block: Steps = {
            "a": coroutine(watch, "a", 2),
            "b": coroutine(watch, "b", 3),
            "c": plain(watch, "c", 4),
            "branch": branch,
        }
        told.append(await ctx.parallel(block))

        async def one(ctx: kb.Context) -> Any:
            return await ctx.suspend("one")

        async def two(ctx: kb.Context) -> Any:
            return await ctx.suspend("two")

        told.append(await ctx.parallel({"x": one, "y": two}))
        told.append(await ctx.step("end", plain(watch, "end", 7)))
        return told

    return short


class Sink:
    """Where tools act: a file of the world outside, which keeps what a killed process did.

    Whoever brings a key that it knows does not act again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def act(self, name: str, key: str | None = None) -> None:
        known = self._path.read_text().splitlines() if self._path.exists() else []
        if key is not None and any(line.endswith(f" {key}") for line in known):
            return
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, f"{name} {key or '-'}\n".encode())
        finally:
            os.close(descriptor)


def errand(watch: Watch, sink: Sink, name: str, *, keyed: bool, wait: bool) -> Callable[..., Any]:
    """Make a tool's function: one that takes the key or does not, a coroutine or a plain one."""

    def act(key: str | None) -> str:
        watch.pause(SECONDS_INSIDE)
        sink.act(name, key)
        watch.tool(name, "between act and result")
        watch.pause(SECONDS_INSIDE)
        return f"{name} done"

    async def send(to: str, *, idempotency_key: str) -> str:
        await asyncio.sleep(0)
        return act(idempotency_key)

    async def shout(to: str) -> str:
        await asyncio.sleep(0)
        return act(None)

    def send_now(to: str, *, idempotency_key: str) -> str:
        return act(idempotency_key)

    def shout_now(to: str) -> str:
        return act(None)

    chosen: Any = (send if wait else send_now) if keyed else (shout if wait else shout_now)
    chosen.step_id = name
    made: Callable[..., Any] = chosen
    return made


def errands(watch: Watch, storage: Path) -> kb.Workflow:
    """Tools with a key and without one, after each other and side by side."""
    sink = Sink(storage.parent / "sink")

    async def run(ctx: kb.Context, path: str, wait: bool) -> list[str]:
        found = []
        for name in ("send", "shout"):
            make = errand(watch, sink, path + name, keyed=name == "send", wait=wait)
            found.append(await ctx.tool(name, make, to=path))
        return found

    @kassette(storage=storage, name="errands", clock=Clock(watch))
    async def errands(ctx: kb.Context) -> list[Any]:
        watch.process("replaying")
        told: list[Any] = [await run(ctx, "", wait=False)]

        async def left(ctx: kb.Context) -> list[str]:
            return await run(ctx, "left/", wait=True)

        async def right(ctx: kb.Context) -> list[str]:
            return await run(ctx, "right/", wait=False)

        told.append(await ctx.parallel({"left": left, "right": right}))
        return told

    return errands


WORKFLOWS = {"journey": journey, "short": short, "errands": errands}


def live(told: dict[str, Any]) -> None:
    """The life of one process: one call of a workflow, unless it is killed before the end.

    ``told`` has the ``folder``, the ``workflow``, what to ``do`` (start, recover or resume, with
    ``event`` and ``value``), and what a `Watch` takes.
    """
    folder = Path(told["folder"])
    watch = Watch(folder, told)
    watch.install()
    workflow = WORKFLOWS[told["workflow"]](watch, folder / "runs")
    watch.pause(SECONDS_BETWEEN * 2)

    async def act() -> None:
        if told["do"] == "recover":
            for each in await workflow.recover():
                if each.error is not None:
                    raise each.error
        elif told["do"] == "resume":
            await workflow.resume("r", told["event"], told["value"], by="the killed")
        else:
            await workflow.start(run_id="r")

    asyncio.run(act())
    watch.process("settled")
    watch.pause(SECONDS_BETWEEN * 6)
