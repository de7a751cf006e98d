"""Sleeps and deadlines that survive the process; values of the moment recorded once."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import MemoryStorage, kassette
from kassette_nb.definition import live
from kassette_nb.errors import JournalValueError, RunCancelledError, VersionMismatchError
from kassette_nb.notebook.browser import row
from kassette_nb.notebook.rows import rows_of
from kassette_nb.testing import ManualClock


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage("waits")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 3, 1, tzinfo=UTC))


def types(storage: MemoryStorage, run_id: str = "r") -> list[str]:
    return list(kb.open(storage)[run_id].entries()["type"])


def test_a_long_sleep_ends_the_session_and_recover_wakes_it_when_due(
    storage: MemoryStorage, clock: ManualClock
) -> None:
    ran: list[str] = []

    @kassette(storage=storage, name="naps", clock=clock)
    async def naps(ctx: kb.Context) -> str:
        await ctx.step("before", ran.append, "before")
        await ctx.sleep(3600)
        await ctx.step("after", ran.append, "after")
        return "awake"

    async def scenario() -> None:
        first = await naps.start(run_id="r")
        assert (first.status, first.events) == ("suspended", ("sleep",))
        assert (await naps.start(run_id="r")).status == "suspended"
        assert await naps.recover() == []
        clock.advance(3599)
        assert await naps.recover() == []
        clock.advance(2)
        (woken,) = await naps.recover()
        assert woken.result is not None
        assert woken.result.result == "awake"

    asyncio.run(scenario())
    assert ran == ["before", "after"]
    assert types(storage) == [
        "start", "step", "step", "suspend", "start", "step", "complete",
    ]  # fmt: skip


def test_a_short_sleep_waits_in_the_process_and_not_again_on_replay(
    storage: MemoryStorage, clock: ManualClock
) -> None:
    @kassette(storage=storage, name="short", clock=clock)
    async def short(ctx: kb.Context) -> None:
        await ctx.sleep(20)
        await ctx.step("after", lambda: 1)
        await ctx.suspend("then")

    async def scenario() -> None:
        before = clock.now()
        await short.start(run_id="r")
        assert (clock.now() - before).total_seconds() == 20
        await short.resume("r", "then", None)
        assert (clock.now() - before).total_seconds() == 20

    asyncio.run(scenario())


def test_sleeps_in_parallel_branches_are_one_group(
    storage: MemoryStorage, clock: ManualClock
) -> None:
    async def nap(ctx: kb.Context) -> str:
        await ctx.sleep(100)
        return "up"

    async def ask(ctx: kb.Context) -> Any:
        return await ctx.suspend("ok")

    @kassette(storage=storage, name="both", clock=clock)
    async def both(ctx: kb.Context) -> Any:
        return await ctx.parallel({"a": nap, "b": ask, "c": nap})

    async def scenario() -> None:
        first = await both.start(run_id="r")
        assert first.events == ("a/sleep", "b/ok", "c/sleep")
        second = await both.resume("r", "ok", "yes")
        assert second.events == ("a/sleep", "c/sleep")
        clock.advance(101)
        (done,) = await both.recover()
        assert done.result is not None
        assert done.result.result == {"a": "up", "b": "yes", "c": "up"}

    asyncio.run(scenario())


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), True, "1"])
def test_a_sleep_of_no_number_of_seconds_is_refused(storage: MemoryStorage, seconds: Any) -> None:
    @kassette(storage=storage, name="bad")
    async def bad(ctx: kb.Context) -> None:
        await ctx.sleep(seconds)

    with pytest.raises(JournalValueError, match="not a number of seconds"):
        asyncio.run(bad.start(run_id="r"))
    assert list(storage.list()) == []


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (3, "int is no JSON Schema"),
        ("boolean", "str is no JSON Schema"),
        (["boolean"], "list is no JSON Schema"),
        ({"type": "array", "items": {"$ref": "#/x"}}, r"\$ref is not supported"),
        ({"type": "objekt"}, r"\$.type: 'objekt' is not valid"),
        (
            {"properties": {"a": {"pattern": "("}}},
            r"\$.properties.a.pattern: '\(' is not a 'regex'",
        ),
    ],
)
def test_what_is_no_schema_is_refused_before_the_question_is_asked(
    storage: MemoryStorage, schema: Any, reason: str
) -> None:
    @kassette(storage=storage, name="asks")
    async def asks(ctx: kb.Context) -> None:
        await ctx.suspend("go on", schema=schema)

    with pytest.raises(JournalValueError, match=f"the schema of 'go on': {reason}"):
        asyncio.run(asks.start(run_id="r"))
    assert "r" not in kb.open(storage)


def test_a_date_of_an_answer_is_one(storage: MemoryStorage) -> None:
    schema = {"type": "object", "properties": {"on": {"type": "string", "format": "date"}}}

    @kassette(storage=storage)
    async def asks(ctx: kb.Context) -> Any:
        return await ctx.suspend("when", schema=schema)

    asks.start_sync(run_id="r")
    with pytest.raises(JournalValueError, match=r"\$.on: '2026-13-45' is not a 'date'"):
        asks.resume_sync("r", "when", {"on": "2026-13-45"})
    assert asks.resume_sync("r", "when", {"on": "2026-12-31"}).result == {"on": "2026-12-31"}


def test_an_overdue_question_cancels_the_run_for_whoever_looks_next(
    storage: MemoryStorage, clock: ManualClock
) -> None:
    @kassette(storage=storage, name="deadline", clock=clock)
    async def deadline(ctx: kb.Context) -> Any:
        return await ctx.suspend("approval", timeout=60)

    async def scenario() -> None:
        for run_id in ("start", "resume", "recover", "answered"):
            await deadline.start(run_id=run_id)
        made = await deadline.resume("answered", "approval", "in time")
        assert made.result == "in time"
        clock.advance(61)
        assert kb.open(storage)["start"].state == "suspended", "viewing writes nothing"
        late = await deadline.start(run_id="start")
        assert (late.status, late.reason) == (
            "cancelled", "nobody answered 'approval' before its deadline",
        )  # fmt: skip
        with pytest.raises(RunCancelledError, match="before its deadline"):
            await deadline.resume("resume", "approval", "too late")
        (swept,) = await deadline.recover()
        assert (swept.run_id, swept.result and swept.result.status) == ("recover", "cancelled")

    asyncio.run(scenario())
    assert types(storage, "resume") == ["start", "suspend", "cancel"]


def test_a_deadline_counts_from_the_first_asking(
    storage: MemoryStorage, clock: ManualClock
) -> None:
    async def ask(ctx: kb.Context) -> Any:
        return await ctx.suspend("a", timeout=60)

    async def other(ctx: kb.Context) -> Any:
        return await ctx.suspend("b")

    @kassette(storage=storage, name="first_asked", clock=clock)
    async def first_asked(ctx: kb.Context) -> Any:
        return await ctx.parallel({"x": ask, "y": other})

    async def scenario() -> None:
        await first_asked.start(run_id="r")
        clock.advance(50)
        await first_asked.resume("r", "b", 1)
        (question,) = kb.open(storage)["r"].fold().questions
        assert question.deadline == "2026-03-01T00:01:00.000Z"
        clock.advance(11)
        assert (await first_asked.start(run_id="r")).status == "cancelled"

    asyncio.run(scenario())


def test_time_and_chance_are_recorded_once(storage: MemoryStorage, clock: ManualClock) -> None:
    seen: list[Any] = []

    @kassette(storage=storage, name="moments", clock=clock)
    async def moments(ctx: kb.Context) -> None:
        seen.append([await ctx.now(), await ctx.random(), await ctx.uuid(), await ctx.now()])
        await ctx.suspend("then")

    async def scenario() -> None:
        await moments.start(run_id="r")
        clock.advance(1000)
        await moments.resume("r", "then", None)

    asyncio.run(scenario())
    assert seen[0] == seen[1]
    assert seen[0][0] == datetime(2026, 3, 1, tzinfo=UTC)
    assert 0 <= seen[0][1] < 1
    steps = kb.open(storage)["r"].steps()
    assert list(steps.step_id) == ["now", "random", "uuid", "now#2"]
    assert set(steps.kind) == {"value"}


def test_print_is_silent_on_replay(
    storage: MemoryStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    @kassette(storage=storage, name="prints")
    async def prints(ctx: kb.Context) -> None:
        await ctx.step("a", lambda: 1)
        ctx.print("after a")
        await ctx.suspend("then")
        ctx.print("after the answer")

    async def scenario() -> None:
        await prints.start(run_id="r")
        await prints.resume("r", "then", None)

    asyncio.run(scenario())
    assert capsys.readouterr().out == "after a\nafter the answer\n"


def test_a_fingerprint_is_compared_like_a_version(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="prints", fingerprint="model-a")
    async def runs(ctx: kb.Context) -> Any:
        return await ctx.suspend("then")

    async def scenario() -> None:
        await runs.start(run_id="r")
        other = runs.with_options(fingerprint="model-b")
        with pytest.raises(VersionMismatchError, match="fingerprint 'model-a'"):
            await other.resume("r", "then", 1)
        made = await other.fork("r", at="then")
        assert (await other.start(run_id=made)).status == "suspended"
        assert (await runs.resume("r", "then", 1)).result == 1

    asyncio.run(scenario())


def test_a_sleeping_run_waits_for_nobody_and_says_until_when(storage: MemoryStorage) -> None:
    clock = ManualClock(datetime(2126, 3, 1, tzinfo=UTC))

    @kassette(storage=storage, name="night", clock=clock)
    async def night(ctx: kb.Context) -> None:
        await ctx.sleep(9 * 3600)

    asyncio.run(night.start(run_id="r"))
    run = kb.open(storage)["r"]
    shown = row(run, run.fold())
    assert (shown["group"], shown["text"]) == ("rest", "sleeps until 2126-03-01 09:00:00 UTC")
    assert rows_of(run.journal, run.fold()).shown()[0]["p"] == "until 2126-03-01 09:00:00 UTC"


def test_what_is_called_now_is_told_by_its_id(storage: MemoryStorage) -> None:
    seen: list[tuple[str, ...]] = []

    @kassette(storage=storage, name="again")
    async def again(ctx: kb.Context) -> None:
        def look() -> None:
            found = live(storage.locate("r"))
            assert found is not None
            seen.append(found[0].in_flight)

        for _ in range(3):
            await ctx.step("work", look)
        await ctx.parallel({"a": lambda branch: branch.step("work", look)})

    asyncio.run(again.start(run_id="r"))
    assert seen == [("work",), ("work#2",), ("work#3",), ("a/work",)]
