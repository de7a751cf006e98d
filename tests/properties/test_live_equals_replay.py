"""A workflow gets the same values, of the same types, from a replay as from the live run.

And it is told when its code has changed, before anything runs: a generated change that asks for
other ids than the recorded ones never slips through, and one that does not is never refused.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import decimal
import enum
import math
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kassette_nb import Context, MemoryStorage, Workflow, kassette
from kassette_nb.errors import JournalValueError, ReplayMismatchError, StepFailedError
from kassette_nb.testing import ManualClock
from tests.properties import journals
from tests.properties.programs import (
    NAMES,
    Ideal,
    Node,
    Oracle,
    Unanswered,
    expected,
    perform,
    program,
    refuse_early,
)

GATE = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
SOAK = settings(GATE, max_examples=5_000, derandomize=False)


def same(a: object, b: object) -> bool:
    """Tell whether two values are equal, type for type and bit for bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        assert isinstance(b, dict)
        return list(a) == list(b) and all(map(same, a.values(), b.values()))
    if isinstance(a, list | tuple):
        assert isinstance(b, list | tuple)
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        assert isinstance(b, float)
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, msgspec.Struct):
        return all(same(getattr(a, name), getattr(b, name)) for name in a.__struct_fields__)
    return a == b


def listed(value: Any) -> Any:
    """Return the value as JSON brings it back: tuples are lists."""
    if isinstance(value, dict):
        return {key: listed(item) for key, item in value.items()}
    return [listed(item) for item in value] if isinstance(value, list | tuple) else value


# -------------------------------------------------------------------------------- plain values

texts = st.text(max_size=8)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.sampled_from([0.0, -0.0, 1.0, 2**53 + 1, -(2**63), 2**64 - 1, 2**64, 5e-324, 1e22])
)


def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(texts, inner, max_size=4)
    )


plain = st.recursive(leaves, grown, max_leaves=12)


def check_plain(value: Any, answer: Any) -> None:
    storage = MemoryStorage()
    traces: list[list[Any]] = []

    async def make() -> Any:
        return value

    @kassette(storage=storage, name="values")
    async def workflow(ctx: Context, given: Any) -> Any:
        trace = [given, await ctx.step("async", make), await ctx.step("thread", lambda: value)]
        trace.append(await ctx.parallel({"k": make, "j": lambda: value}))
        traces.append(trace)
        trace.append(await ctx.suspend("end", context=value))
        return trace

    async def scenario() -> None:
        await workflow.start(value, run_id="r")
        ended = await workflow.resume("r", "end", answer)
        assert same(ended.result, (await workflow.start(run_id="r")).result)
        assert same(ended.result, traces[1])
        assert (await workflow.verify("r")).fits
        fork = await workflow.fork("r", at=len(journals.entries(bytes_of(storage))) - 1)
        await workflow.start(run_id=fork)

    asyncio.run(scenario())
    wanted = listed(value)
    seen = [wanted, wanted, wanted, {"k": wanted, "j": wanted}]
    assert same(traces[0], seen)
    for later in traces[1:]:
        assert same(later, [*seen, listed(answer)])
    assert len(traces) == 4


def bytes_of(storage: MemoryStorage, run_id: str = "r") -> bytes:
    found = storage.read(run_id)
    assert found is not None
    return found[0]


@GATE
@given(plain, plain)
def test_json_values_come_back_equal_and_of_the_same_type(value: Any, answer: Any) -> None:
    check_plain(value, answer)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@SOAK
@given(plain, plain)
def test_many_json_values_come_back_equal(value: Any, answer: Any) -> None:
    check_plain(value, answer)


# -------------------------------------------------------------------------------- typed values


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: float
    note: str | None = None


class Plan(msgspec.Struct):
    title: str
    points: list[Point]
    colour: Colour = Colour.RED
    when: dt.datetime | None = None
    amount: decimal.Decimal | None = None


class Row(NamedTuple):
    key: str
    place: Point
    raw: bytes


class Table(TypedDict):
    rows: list[Row]
    ident: uuid.UUID
    pair: tuple[int, str]


points = st.builds(
    Point, st.integers(-(2**63), 2**63), st.floats(allow_nan=False, allow_infinity=False),
    st.none() | texts,
)  # fmt: skip
plans = st.builds(
    Plan, texts, st.lists(points, max_size=3), st.sampled_from(Colour),
    st.none() | st.datetimes(timezones=st.just(dt.UTC)),
    st.none() | st.decimals(allow_nan=False, allow_infinity=False),
)  # fmt: skip
rows = st.builds(Row, texts, points, st.binary(max_size=5))
tables = st.fixed_dictionaries(
    {"rows": st.lists(rows, max_size=3), "ident": st.uuids(),
     "pair": st.tuples(st.integers(0, 9), texts)}
)  # fmt: skip
typed = st.one_of(
    st.tuples(st.just(Point), points),
    st.tuples(st.just(Plan), plans),
    st.tuples(st.just(Row), rows),
    st.tuples(st.just(Table), tables),
    st.tuples(st.just(list[Plan]), st.lists(plans, max_size=3)),
    st.tuples(st.just(dict[str, Row]), st.dictionaries(texts, rows, max_size=3)),
    st.tuples(st.just(tuple[Point, Plan]), st.tuples(points, plans)),
    st.tuples(st.just(Point | None), points | st.none()),
    st.tuples(st.just(set[str]), st.sets(texts, max_size=3)),
)


@GATE
@given(typed)
def test_values_of_declared_types_come_back_as_what_they_were(pair: tuple[Any, Any]) -> None:
    declared, value = pair
    storage = MemoryStorage()
    seen: list[Any] = []

    async def make() -> Any:
        return value

    @kassette(storage=storage, name="typed")
    async def workflow(ctx: Context) -> None:
        seen.append(await ctx.with_options(returns=declared).step("make", make))
        seen.append(await ctx.with_options(returns=declared).step("thread", lambda: value))
        await ctx.suspend("end")

    async def scenario() -> None:
        await workflow.start(run_id="r")
        await workflow.verify("r")
        await workflow.resume("r", "end", None)

    asyncio.run(scenario())
    assert len(seen) == 6
    for each in seen:
        assert same(each, value), (each, value)


# ------------------------------------------------------------------------------ refused values


class Text(str):
    """Would come back as a plain str."""


bad = st.sampled_from(
    [math.nan, math.inf, -math.inf, {1}, b"bytes", object(), dt.date(2026, 1, 1), 1j, Text("x"),
     decimal.Decimal(1), Colour.RED, "\ud800", {1: "int key"}, {None: 1}, {"\udfff": 1}, range(3)]
)  # fmt: skip


@st.composite
def refused(draw: st.DrawFn) -> tuple[Any, str]:
    """A value with something in it that JSON cannot carry, and the path to that."""
    value = draw(bad)
    path = ""
    for _ in range(draw(st.integers(0, 4))):
        before = draw(st.lists(leaves, max_size=2))
        if draw(st.booleans()):
            value = draw(st.sampled_from([list, tuple]))([*before, value])
            path = f"[{len(before)}]{path}"
        else:
            key = draw(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True) | texts)
            others = {f"{key}{n}": item for n, item in enumerate(before)}
            value = {**others, key: value}
            named = key.isascii() and key.isidentifier()
            path = (f".{key}" if named else f"[{key!a}]") + path
    return value, "$" + path


@GATE
@given(refused())
def test_a_value_that_would_change_is_refused_with_its_path_and_not_written(
    pair: tuple[Any, str],
) -> None:
    value, path = pair
    storage = MemoryStorage()
    where = ""

    async def make() -> Any:
        return value

    @kassette(storage=storage, name="refuses")
    async def workflow(ctx: Context, given: Any = None) -> Any:
        if where == "async":
            await ctx.step("s", make)
        if where == "thread":
            await ctx.step("s", lambda: value)
        if where == "branch":
            await ctx.parallel({"s": make})
        if where == "context":
            await ctx.suspend("s", context=value)
        if where == "answer":
            await ctx.suspend("s")
        return value

    async def scenario() -> None:
        nonlocal where
        for where in ("async", "thread", "branch", "context", "result"):
            with pytest.raises(JournalValueError) as told:
                await workflow.start(run_id=where)
            assert told.value.path == path, where
            kinds = [e["type"] for e in journals.entries(storage._journals.get(where, b""))]
            assert kinds in ([], ["start"]), kinds
            assert storage.holder(where) is None
        with pytest.raises(JournalValueError) as told:
            await workflow.start(value, run_id="argument")
        assert told.value.path == path.replace("$", "$.given", 1)
        assert "argument" not in storage.list()
        where = "answer"
        await workflow.start(run_id="answer")
        before = bytes_of(storage, "answer")
        with pytest.raises(JournalValueError) as told:
            await workflow.resume("answer", "s", value)
        assert told.value.path == path
        assert bytes_of(storage, "answer") == before
        assert storage.holder("answer") is None

    asyncio.run(scenario())


# ----------------------------------------------------------------------------------- programs


class Recorder:
    """The stage of one session: what the workflow saw, and what ran."""

    def __init__(self) -> None:
        self.trace: list[tuple[str, Any]] = []
        self.attempts: Counter[str] = Counter()

    async def act(self, key: str, node: Node, token: str | None = None) -> None:
        await asyncio.sleep(0)
        self.act_now(key, node)

    def act_now(self, key: str, node: Node, token: str | None = None) -> None:
        self.attempts[key] += 1
        refuse_early(node, self.attempts[key])

    def see(self, key: str, value: Any) -> None:
        self.trace.append((key, value))

    async def pause(self) -> None:
        await asyncio.sleep(0)


class Theatre:
    """A program as a workflow, with the stage of its latest session."""

    def __init__(self, nodes: tuple[Node, ...], storage: MemoryStorage, clock: ManualClock) -> None:
        self.nodes = nodes
        self.stage = Recorder()

        @kassette(storage=storage, name="program", clock=clock)
        async def workflow(ctx: Context) -> Any:
            self.stage = Recorder()
            return await perform(ctx, self.stage, nodes)

        self.workflow: Workflow = workflow


def fit(nodes: tuple[Node, ...], unwanted: tuple[str, ...]) -> tuple[Node, ...]:
    """Return a program without some kinds of statement."""
    return tuple(
        dataclasses.replace(n, nodes=fit(n.nodes, unwanted), other=fit(n.other, unwanted))
        for n in nodes
        if n.kind not in unwanted
    )


seeds = st.randoms(use_true_random=False)


def check_program(chance: random.Random) -> None:
    nodes = fit(program(chance, 6), ("weather", "slow"))
    storage, clock = MemoryStorage(), ManualClock()
    theatre = Theatre(nodes, storage, clock)
    workflow = theatre.workflow
    known: dict[str, Any] = {}

    def compare() -> None:
        for key, value in theatre.stage.trace:
            assert same(known.setdefault(key, value), value), key

    async def scenario() -> None:
        result = await workflow.start(run_id="r")
        compare()
        sessions = 1
        while result.status == "suspended":
            live = theatre.stage.trace
            before = bytes_of(storage)
            found = await workflow.verify("r")
            assert found.fits, found
            assert not theatre.stage.attempts
            assert sorted(theatre.stage.trace, key=str) == sorted(live, key=str)
            assert bytes_of(storage) == before
            questions = [e for e in result.events if "sleep" not in e.split("/")[-1]]
            if questions:
                event = chance.choice(questions)
                result = await workflow.resume("r", event, {"answer": sessions})
            else:
                clock.advance(3601)
                result = await workflow.start(run_id="r")
            compare()
            sessions += 1
        lines = journals.check(bytes_of(storage))
        assert lines[-1]["session"] == sessions
        live = theatre.stage.trace
        found = await workflow.verify("r")
        assert found.fits, found
        assert not theatre.stage.attempts
        assert found.replayed == len(journals.step_ids(lines)) + len(journals.answers(lines))
        # The last session replayed what the earlier ones did; a fork at the end replays it all.
        fork = await workflow.fork("r", at=len(lines) - 1)
        again = await workflow.start(run_id=fork)
        assert not theatre.stage.attempts
        assert sorted(theatre.stage.trace, key=str) == sorted(live, key=str)
        assert again.status == result.status
        assert same(again.value, result.value)
        assert again.error == result.error
        given = {**journals.answers(lines), **journals.values(lines)}
        status, outcome, ideal = await expected(nodes, given)
        assert status == result.status
        if status == "success":
            assert same(result.result, outcome)
        for key, value in known.items():
            assert ideal.values[key] == value

    asyncio.run(scenario())


@GATE
@given(seeds)
def test_a_workflow_sees_the_same_live_and_on_replay(chance: random.Random) -> None:
    check_program(chance)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@SOAK
@given(seeds)
def test_many_workflows_see_the_same_live_and_on_replay(chance: random.Random) -> None:
    check_program(chance)


# --------------------------------------------------------------------------------- changed code


class Asked(Oracle):
    """An oracle that hands back what is recorded, and notes what is asked for on every branch."""

    def __init__(
        self,
        given: dict[str, Any],
        steps: dict[str, journals.Entry],
        path: str = "",
        notes: dict[str, list[Any]] | None = None,
    ) -> None:
        super().__init__(given, path)
        self._recorded = given
        self.steps = steps
        self.notes: dict[str, list[Any]] = {} if notes is None else notes

    def with_options(self, **_: Any) -> Asked:
        return self

    def branch(self, key: str) -> Asked:
        return Asked(self._recorded, self.steps, key, self.notes)

    async def _settled(self, key: str, fn: Any) -> Any:
        if key not in self.steps:
            raise Unanswered(key)
        error = self.steps[key].get("error")
        if error is not None:
            raise StepFailedError("", step_id=key, **error)
        return self.steps[key]["result"]

    def taken(self, kind: str, key: str) -> None:
        self.note(kind, key)

    def note(self, *what: Any) -> None:
        self.notes.setdefault(self._strand.path, []).append(what)

    def block(self, plain: list[str], keys: list[str]) -> None:
        # A branch that records nothing leaves no trace; the order in a block has no meaning.
        paths = [f"{path}/" for path in self.notes]
        traced = [key for key in keys if any(path.startswith(f"{key}/") for path in paths)]
        if plain or traced:
            self.note("block", frozenset(plain), frozenset(traced))


async def asked(nodes: tuple[Node, ...], lines: list[journals.Entry]) -> dict[str, list[Any]]:
    """Return what a program asks of a journal on every branch, until it asks for more."""
    steps = {entry["stepId"]: entry for entry in lines if entry["type"] == "step"}
    oracle = Asked({**journals.answers(lines), **journals.values(lines)}, steps)
    try:
        await perform(oracle, Ideal(), nodes)
    except (StepFailedError, LookupError) as ending:
        oracle.note("ends with", repr(ending))
    except Unanswered as question:
        oracle.note("ends at", str(question))
    return oracle.notes


def bodies(nodes: tuple[Node, ...]) -> Iterator[tuple[Node, ...]]:
    """Yield every sequence of statements of a program."""
    yield nodes
    for node in nodes:
        if node.kind == "block":
            for each in node.nodes:
                if each.kind == "branch":
                    yield from bodies(each.nodes)
        elif node.nodes:
            yield from bodies(node.nodes)


def replaced(
    nodes: tuple[Node, ...], old: tuple[Node, ...], new: tuple[Node, ...]
) -> tuple[Node, ...]:
    """Return the program with one sequence, found by identity, exchanged."""
    if nodes is old:
        return new
    return tuple(
        dataclasses.replace(n, nodes=replaced(n.nodes, old, new)) if n.nodes else n for n in nodes
    )


def changed(chance: random.Random, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the program with one step inserted, removed, renamed or swapped with the next."""
    body = chance.choice(list(bodies(nodes)))
    at = chance.randrange(len(body) + 1)
    how = chance.choice(("insert", "remove", "rename", "swap", "kind"))
    if how == "insert" or at == len(body):
        name = chance.choice((*NAMES, "new"))
        kind = chance.choice(("step", "suspend", "random", "fails", "nap"))
        new = (*body[:at], Node(kind, name), *body[at:])
    elif how == "remove":
        new = (*body[:at], *body[at + 1 :])
    elif how == "rename":
        new = (*body[:at], dataclasses.replace(body[at], name="new"), *body[at + 1 :])
    elif how == "kind":
        kind = "suspend" if body[at].kind == "step" else "step"
        new = (*body[:at], Node(kind, body[at].name), *body[at + 1 :])
    else:
        new = (*body[:at], *reversed(body[at : at + 2]), *body[at + 2 :])
    return replaced(nodes, body, new)


#: Choices are left out: what they take depends on values, and behind a change those are others.
STRAIGHT = ("weather", "slow", "choice", "fails_out", "raises", "tired")


def check_change(chance: random.Random, count: Counter[str]) -> None:
    inner = fit(program(chance, 5), STRAIGHT)
    inner = inner or (Node("step"),)
    other = changed(chance, inner)
    end = (Node("suspend", "end"), Node("step", "last"))
    storage, clock = MemoryStorage(), ManualClock()
    theatre = Theatre((*inner, *end), storage, clock)

    async def finish(workflow: Workflow) -> None:
        result = await workflow.start(run_id="r")
        while result.event != "end":
            assume(result.status == "suspended")
            questions = [e for e in result.events if "sleep" not in e.split("/")[-1]]
            if questions:
                result = await workflow.resume("r", questions[0], 1)
            else:
                clock.advance(3601)
                result = await workflow.start(run_id="r")

    async def scenario() -> None:
        await finish(theatre.workflow)
        lines = journals.check(bytes_of(storage))
        told = await asked((*inner, *end), lines) != await asked((*other, *end), lines)
        count["told" if told else "fits"] += 1
        new = Theatre((*other, *end), storage, clock)
        before = bytes_of(storage)
        found = await new.workflow.verify("r")
        assert found.fits != told, found
        assert found.live == 0
        assert not new.stage.attempts
        # `start` goes on with a run whose answer is on record already.
        answer = dict(lines[-1], type="resume", offset=len(lines), value=1)
        answer["session"] += 1
        storage.create("copy", before + msgspec.json.encode(answer) + b"\n")
        for run_id in ("r", "copy"):
            old = bytes_of(storage, run_id)
            live = (
                new.workflow.resume("r", "end", 1)
                if run_id == "r"
                else new.workflow.start(run_id="copy")
            )
            if told:
                with pytest.raises(ReplayMismatchError):
                    await live
                assert not new.stage.attempts, "something ran"
                assert bytes_of(storage, run_id) == old
                assert storage.holder(run_id) is None
            else:
                assert (await live).status == "success"
                assert set(new.stage.attempts) == {"last"}
        assert told is False or (await theatre.workflow.resume("r", "end", 1)).status == "success"

    asyncio.run(scenario())


CHANGES = settings(GATE, max_examples=400)


def test_a_change_that_asks_for_other_ids_is_told_and_no_other_change_is() -> None:
    count: Counter[str] = Counter()

    @CHANGES
    @given(seeds)
    def changes(chance: random.Random) -> None:
        check_change(chance, count)

    changes()
    print(f"\n{dict(count)}")
    assert min(count["told"], count["fits"]) >= 20, count


@pytest.mark.slow
@pytest.mark.timeout(3600)
@SOAK
@given(seeds)
def test_many_changes_are_told(chance: random.Random) -> None:
    check_change(chance, Counter())


@GATE
@given(seeds)
def test_a_change_behind_all_that_is_recorded_is_nobodys_business(chance: random.Random) -> None:
    inner = fit(program(chance, 4), (*STRAIGHT, "suspend", "long"))
    storage, clock = MemoryStorage(), ManualClock()
    first = Theatre((*inner, Node("suspend", "end"), Node("step", "last")), storage, clock)
    behind = fit(program(chance, 4), (*STRAIGHT, "suspend", "long"))
    second = Theatre((*inner, Node("suspend", "end"), *behind), storage, clock)

    async def scenario() -> None:
        started = await first.workflow.start(run_id="r")
        assume(started.status == "suspended")  # a single step of a block may fail, uncaught
        found = await second.workflow.verify("r")
        assert found.fits, found
        ended = await second.workflow.resume("r", "end", 1)
        given = {**journals.answers(lines()), **journals.values(lines())}
        status, outcome, _ = await expected(second.nodes, given)
        assert ended.status == status
        assert ended.error is not None or ended.result == outcome

    def lines() -> list[journals.Entry]:
        return journals.check(bytes_of(storage))

    asyncio.run(scenario())


# -------------------------------------------------------------------------------------- retries

SMOOTH = (*STRAIGHT, "try", "swallow", "finally", "suspend", "long")


@GATE
@given(seeds)
def test_a_retry_runs_what_failed_and_nothing_that_its_siblings_recorded(
    chance: random.Random,
) -> None:
    inner = fit(program(chance, 6), SMOOTH)
    body = chance.choice(list(bodies(inner)))
    at = chance.randrange(len(body) + 1)

    def around(kind: str) -> tuple[Node, ...]:
        return replaced(inner, body, (*body[:at], Node(kind, "flaky"), *body[at:]))

    storage, clock = MemoryStorage(), ManualClock()
    breaks = Theatre(around("fails_out"), storage, clock)
    healed = Theatre(around("step"), storage, clock)

    async def scenario() -> None:
        first = await breaks.workflow.start(run_id="r")
        assume(first.status == "failed")  # not where the body chosen is an empty one
        old = journals.check(bytes_of(storage))
        failed = old[-1]["stepId"]
        assume(failed.endswith("flaky"))  # a single step of a block may have failed before it
        made = await breaks.workflow.retry("r")
        # Deterministic failures fail again, and the failed attempt stays as it is.
        found = await healed.workflow.verify(made)
        assert found.fits, found
        last = await healed.workflow.start(run_id=made)
        lines = journals.check(bytes_of(storage, made))
        status, outcome, ideal = await expected(healed.nodes, journals.values(lines))
        assert last.status == status
        assert last.error is not None or same(last.result, outcome)
        kept = journals.step_ids(old) - {failed}
        assert healed.stage.attempts.keys() == ideal.effects.keys() - kept
        assert journals.entries(bytes_of(storage)) == old

    asyncio.run(scenario())
