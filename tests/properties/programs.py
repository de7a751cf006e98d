"""Workflows as data: generated trees that run on a ctx, and on a plain oracle beside it.

The oracle is an uncrashed execution without a journal, in which every call is just made; it counts
ids by itself, so that it shares nothing with what it judges.
"""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from kassette_nb.errors import StepFailedError
from kassette_nb.retry import Retry

NAMES = ("a", "b", "c", "now")  # few, so that most are used twice; one is also a ctx call's


class Boom(Exception):
    """What a failing step raises."""


class Weather(Exception):
    """An exception that the generated workflows declare as ``transient``."""


@dataclass(frozen=True)
class Node:
    """One statement of a generated workflow.

    Attributes:
        kind: What it does; see `_perform`.
        name: The name of its step, event or block keys' stem.
        number: A constant that its value depends on.
        nodes: Its body; the branches of a block.
        other: What a choice takes otherwise.
    """

    kind: str
    name: str = "a"
    number: int = 0
    nodes: tuple[Node, ...] = ()
    other: tuple[Node, ...] = ()


#: Tools: one whose function takes the key (and one that fails with it), one that does not, and
#: one of which doubt is a failure. Odd numbers are plain functions.
TOOLS = ("sent", "bounces", "shouted", "strict")


class Stage(Protocol):
    """Where a program plays: what its steps do, and who watches."""

    async def act(self, key: str, node: Node, token: str | None = None) -> None:
        """Have the step's effect, once for a token; called by async steps."""

    def act_now(self, key: str, node: Node, token: str | None = None) -> None:
        """Have the step's effect, once for a token; called by plain steps."""

    def see(self, key: str, value: Any) -> None:
        """Take note of what the workflow gets from a call."""

    async def pause(self) -> None:
        """Let others run; called by the workflow's own code."""


class Strand:
    """One branch: counts its ids and keeps a digest of all that it has seen."""

    def __init__(self, path: str, seen: int) -> None:
        self.path = path
        self.seen = seen
        self._counts: Counter[str] = Counter()

    def take(self, name: str) -> str:
        """Return the id of the next use of a name."""
        self._counts[name] += 1
        count = self._counts[name]
        own = name if count == 1 else f"{name}#{count}"
        return f"{self.path}/{own}" if self.path else own


async def perform(ctx: Any, stage: Stage, nodes: tuple[Node, ...], path: str = "") -> list[Any]:
    """Run a program on a ctx; returns what it has seen."""
    strand = Strand(path, 0)
    return await _body(ctx, stage, strand, nodes)


async def _body(ctx: Any, stage: Stage, strand: Strand, nodes: tuple[Node, ...]) -> list[Any]:
    found = []
    for node in nodes:
        value = await _perform(ctx, stage, strand, node)
        strand.seen = zlib.crc32(json.dumps([strand.seen, value], sort_keys=True).encode())
        found.append(value)
    return found


async def _perform(ctx: Any, stage: Stage, strand: Strand, node: Node) -> Any:
    kind, name = node.kind, node.name
    if kind in ("step", "thread", "weather", "slow", "fails_out"):
        return await _step(ctx, stage, strand, node)
    if kind in TOOLS:
        return await _caught(_tool(ctx, stage, strand, node))
    if kind in ("retried", "tired"):
        # `retried` succeeds at its last attempt, `tired` fails at all of them.
        attempts = node.number + (1 if kind == "retried" else 0)
        patient = ctx.with_options(retry=Retry(attempts=max(1, attempts), wait=0, jitter=0))
        return await _caught(_step(patient, stage, strand, node))
    if kind == "fails":
        return await _caught(_step(ctx, stage, strand, node))
    if kind == "suspend":
        key = strand.take(name)
        return _seen(stage, key, await ctx.suspend(name, prompt=f"{name}?", context=strand.seen))
    if kind in ("nap", "long"):
        key = strand.take("sleep")
        return _seen(stage, key, await ctx.sleep(0.05 if kind == "nap" else 3600))
    if kind in ("now", "random", "uuid"):
        key = strand.take(kind)
        value = await getattr(ctx, kind)()
        plain = value.isoformat() if isinstance(value, datetime) else value
        return _seen(stage, key, plain)
    if kind == "block":
        return await _block(ctx, stage, strand, node)
    if kind == "pause":
        await stage.pause()
        return None
    if kind == "raises":
        raise LookupError(f"{node.number} {strand.seen}")
    if kind == "try":
        return await _caught(_body(ctx, stage, strand, node.nodes))
    if kind == "swallow":
        # Code that catches too much: it may not make the session act, or end the run.
        try:
            return await _body(ctx, stage, strand, node.nodes)
        except StepFailedError as failed:
            return _told(failed)
        except BaseException:
            return "swallowed"
    if kind == "finally":
        try:
            return await _body(ctx, stage, strand, node.nodes)
        finally:
            await _step(ctx, stage, strand, Node("step", "tidy"))
    if kind == "choice":
        chosen = node.nodes if strand.seen % 2 else node.other
        return await _body(ctx, stage, strand, chosen)
    raise AssertionError(kind)


async def _step(ctx: Any, stage: Stage, strand: Strand, node: Node) -> Any:
    key = strand.take(node.name)
    seen = strand.seen
    if node.kind == "thread":
        value = await ctx.step(node.name, lambda: _acted_now(stage, key, node, seen))
    else:

        async def work() -> Any:
            return await _acted(stage, key, node, seen)

        # A limit around a step, which is not the way to set one: it interrupts the session.
        async with asyncio.timeout(0.05 if node.kind == "slow" else None):
            value = await ctx.step(node.name, work)
    return _seen(stage, key, value)


async def _tool(ctx: Any, stage: Stage, strand: Strand, node: Node) -> Any:
    key = strand.take(node.name)

    async def send(seen: int, *, idempotency_key: str) -> Any:
        return await _acted(stage, key, node, seen, idempotency_key)

    def send_now(seen: int, *, idempotency_key: str) -> Any:
        return _acted_now(stage, key, node, seen, idempotency_key)

    async def shout(seen: int) -> Any:
        return await _acted(stage, key, node, seen)

    def shout_now(seen: int) -> Any:
        return _acted_now(stage, key, node, seen)

    ways = (send, send_now) if node.kind in ("sent", "bounces") else (shout, shout_now)
    if node.kind == "strict":
        ctx = ctx.with_options(on_doubt="fail")
    return _seen(stage, key, await ctx.tool(node.name, ways[node.number % 2], seen=strand.seen))


async def _acted(stage: Stage, key: str, node: Node, seen: int, token: str | None = None) -> Any:
    await stage.act(key, node, token)
    if node.kind in ("fails", "fails_out", "bounces"):
        raise Boom(f"no {key} {seen}")
    return [key, node.number, seen]


def _acted_now(stage: Stage, key: str, node: Node, seen: int, token: str | None = None) -> Any:
    stage.act_now(key, node, token)
    if node.kind == "bounces":
        raise Boom(f"no {key} {seen}")
    return (key, node.number, seen)


async def _block(ctx: Any, stage: Stage, strand: Strand, node: Node) -> Any:
    seen = strand.seen
    branches: dict[str, Callable[..., Any]] = {}
    for number, each in enumerate(node.nodes):
        name = NAMES[number % len(NAMES)]
        key = strand.take(name)
        if each.kind == "branch":

            async def branch(own: Any, key: str, each: Node) -> Any:
                return await _body(own, stage, Strand(key, seen), each.nodes)

            branches[name] = partial(branch, key=key, each=each)
        elif each.kind == "thread":
            branches[name] = partial(_acted_now, stage, key, each, seen)
        else:
            branches[name] = partial(_acted, stage, key, each, seen)
    return await ctx.parallel(branches)


async def _caught(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except StepFailedError as failed:
        return _told(failed)
    except LookupError as own:
        if type(own) is not LookupError:
            raise
        return ["own", str(own)]


def _told(failed: StepFailedError) -> list[Any]:
    return ["failed", failed.step_id, failed.name, failed.message]


def _seen(stage: Stage, key: str, value: Any) -> Any:
    stage.see(key, value)
    return value


# ---------------------------------------------------------------------------------- the oracle


class Unanswered(BaseException):
    """The oracle came to a question without an answer."""


class Oracle:
    """A ctx without a journal: every call is just made, one branch after the other."""

    def __init__(self, given: Mapping[str, Any], path: str = "", attempts: int = 1) -> None:
        self._given = given
        self._strand = Strand(path, 0)
        self._attempts = attempts

    def with_options(self, *, retry: Retry | None = None, on_doubt: str = "") -> Oracle:
        """Return this ctx with so many attempts; nothing is ever in doubt here."""
        other = Oracle(self._given, attempts=retry.attempts if retry else 1)
        other._strand = self._strand
        return other

    async def step(self, name: str, fn: Callable[[], Any]) -> Any:
        """Call the function."""
        key = self._strand.take(name)
        self.taken("step", key)
        return await self._settled(key, fn)

    async def tool(self, name: str, fn: Callable[..., Any], seen: int) -> Any:
        """Call the function, unless it was decided that this call has failed."""
        key = self._strand.take(name)
        self.taken("step", key)
        decided = self._given.get(f"{key}!")
        if decided is not None:
            raise StepFailedError("", step_id=key, name=decided["name"], message=decided["message"])
        token = {"idempotency_key": key} if fn.__name__.startswith("send") else {}
        return await self._settled(key, partial(fn, seen, **token))

    async def _settled(self, key: str, fn: Callable[[], Any]) -> Any:
        for left in reversed(range(self._attempts)):
            try:
                value = fn()
                if asyncio.iscoroutine(value):
                    value = await value
                return json.loads(json.dumps(value))
            except (Boom, LookupError) as problem:
                if not left:
                    raise StepFailedError(
                        "", step_id=key, name=type(problem).__name__, message=str(problem)
                    ) from None
        raise AssertionError("unreachable")

    async def suspend(self, name: str, **_: Any) -> Any:
        """Return the answer that was given."""
        key = self._strand.take(name)
        self.taken("suspend", key)
        if key not in self._given:
            raise Unanswered(key)
        return self._given[key]

    async def sleep(self, seconds: float) -> None:
        """Take the id."""
        self.taken("step", self._strand.take("sleep"))

    async def now(self) -> datetime:
        """Return what the run had."""
        return datetime.fromisoformat(self._value("now"))

    async def random(self) -> Any:
        """Return what the run had."""
        return self._value("random")

    async def uuid(self) -> Any:
        """Return what the run had."""
        return self._value("uuid")

    def _value(self, name: str) -> Any:
        key = self._strand.take(name)
        self.taken("step", key)
        if key not in self._given:
            raise Unanswered(key)
        return self._given[key]

    async def parallel(self, branches: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
        """Run the branches one after the other; all of them, then the first error is raised."""
        found: dict[str, Any] = {}
        errors: list[Exception] = []
        keys = {name: self._strand.take(name) for name in branches}
        own = [key for name, key in keys.items() if takes_ctx(branches[name])]
        for name, key in keys.items():
            fn = branches[name]
            try:
                if key in own:
                    found[name] = await fn(self.branch(key))
                else:
                    found[name] = await self._settled(key, fn)
            except (StepFailedError, LookupError) as problem:
                errors.append(problem)
        self.block([key for key in keys.values() if key not in own], own)
        if errors:
            raise errors[0]
        return found

    def branch(self, key: str) -> Oracle:
        """Return the ctx of a branch."""
        return Oracle(self._given, key)

    def taken(self, kind: str, key: str) -> None:
        """Take note of what is asked for: nothing, here."""

    def block(self, plain: list[str], keys: list[str]) -> None:
        """Take note of a block, with its single steps and its branches: nothing, here."""


def takes_ctx(fn: Any) -> bool:
    """Tell a generated branch from a single step, by how `_block` made it."""
    return bool(fn.keywords)


class Ideal:
    """The oracle's stage: notes the effects that an execution has."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.values: dict[str, Any] = {}

    async def act(self, key: str, node: Node, token: str | None = None) -> None:
        """Count the effect."""
        self.act_now(key, node)

    def act_now(self, key: str, node: Node, token: str | None = None) -> None:
        """Count the effect."""
        self.effects[key] += 1
        refuse_early(node, self.effects[key])

    def see(self, key: str, value: Any) -> None:
        """Keep the value."""
        self.values[key] = value

    async def pause(self) -> None:
        """Do nothing."""


def refuse_early(node: Node, attempt: int) -> None:
    """Fail the attempts that a repeated step is meant to fail."""
    failing = (node.kind == "retried" and attempt <= node.number) or node.kind == "tired"
    if failing:
        raise Boom(f"attempt {attempt}")


async def expected(nodes: tuple[Node, ...], given: Mapping[str, Any]) -> tuple[str, Any, Ideal]:
    """Return how an uncrashed execution ends: status, result or (name, message), and its stage.

    Args:
        nodes: The program.
        given: The answers, and the recorded times and chances, by id.
    """
    ideal = Ideal()
    work = perform(Oracle(given), ideal, nodes)
    try:
        return "success", json.loads(json.dumps(await work)), ideal
    except StepFailedError as failed:
        return "failed", (failed.name, failed.message), ideal
    except LookupError as own:
        return "failed", (type(own).__name__, str(own)), ideal
    except Unanswered as question:
        return "suspended", str(question), ideal


# ------------------------------------------------------------------------------ seeded programs

_LEAVES = (
    ("step", 24),
    ("thread", 8),
    ("fails", 8),
    ("sent", 8),
    ("bounces", 2),
    ("shouted", 8),
    ("strict", 3),
    ("retried", 5),
    ("tired", 2),
    ("suspend", 14),
    ("long", 3),
    ("nap", 4),
    ("now", 4),
    ("random", 5),
    ("uuid", 2),
    ("pause", 8),
    ("weather", 4),
    ("slow", 2),
    ("fails_out", 2),
    ("raises", 1),
)
_TREES = (("block", 14), ("try", 5), ("swallow", 3), ("finally", 4), ("choice", 6))


def program(chance: random.Random, size: int = 7, depth: int = 0) -> tuple[Node, ...]:
    """Return a random program of at most about ``size`` statements on this level."""
    return tuple(_node(chance, size, depth) for _ in range(chance.randint(1, max(1, size))))


def _node(chance: random.Random, size: int, depth: int) -> Node:
    menu = _LEAVES + (_TREES if depth < 3 else ())
    kind = chance.choices([k for k, _ in menu], [w for _, w in menu])[0]
    name, number = chance.choice(NAMES), chance.randint(0, 3)
    smaller = max(1, size // 2)
    if kind == "block":
        branches = tuple(
            Node("branch", nodes=program(chance, smaller, depth + 1))
            if chance.random() < 0.7
            else Node(chance.choice(("step", "thread", "fails")), number=chance.randint(0, 3))
            for _ in range(chance.randint(1, 4))
        )
        return Node(kind, name, number, branches)
    if kind in ("try", "swallow", "finally"):
        # Waits of the workflow's own are where a cancellation may be caught by its code.
        nodes = program(chance, smaller, depth + 1)
        own = (Node("pause"),) if chance.random() < 0.5 else ()
        return Node(kind, name, number, own + nodes)
    if kind == "choice":
        return Node(
            kind,
            name,
            number,
            program(chance, smaller, depth + 1),
            program(chance, smaller, depth + 1),
        )
    return Node(kind, name, number)
