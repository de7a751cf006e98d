"""A budget is a fold over the journal: a crash does not reset it, a fork carries it once."""

import asyncio
import math
from typing import Any

import msgspec
import pytest

import kassette_nb as kb
from kassette_nb import Budget, MemoryStorage, Usage, kassette, with_usage
from kassette_nb.errors import BudgetExceededError, EventMismatchError, JournalValueError
from kassette_nb.journal import read


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage("budgets")


def ask(cost: float | None = 0.25, tokens: int = 100) -> str:
    usage = Usage(model="m", input_tokens=tokens, output_tokens=tokens, cost_usd=cost)
    answer: str = with_usage("answer", usage)
    return answer


def agent(storage: MemoryStorage, calls: list[int], budget: Budget | None = None) -> kb.Workflow:
    @kassette(storage=storage, name="agent", budget=budget)
    async def flow(ctx: kb.Context, turns: int = 8) -> int:
        for turn in range(turns):

            def call(turn: int = turn) -> str:
                calls.append(turn)
                return ask()

            await ctx.step("ask", call)
        return turns

    return flow


def lines(storage: MemoryStorage, run_id: str = "r") -> list[dict[str, Any]]:
    journal = read(storage, run_id)
    return [msgspec.json.decode(journal.line(n)) for n in range(len(journal.entries))]


@pytest.mark.parametrize(
    ("budget", "calls"),
    [
        (Budget(max_cost_usd=1), 4),
        (Budget(max_cost_usd=0.9), 4),
        (Budget(max_tokens=600), 3),
        (Budget(max_steps=2), 2),
        (Budget(max_steps=0), 0),
        (Budget(max_steps=7, max_tokens=399), 2),
    ],
)
def test_a_spent_budget_asks_before_the_next_live_step(
    storage: MemoryStorage, budget: Budget, calls: int
) -> None:
    made: list[int] = []
    stopped = asyncio.run(agent(storage, made, budget).start(run_id="r"))
    assert (stopped.status, stopped.event) == ("suspended", "budget")
    assert len(made) == calls
    (question,) = kb.open(storage)["r"].questions
    assert question.event == "budget"
    assert question.context["spent"]["steps"] == calls


def test_the_answer_is_new_limits_and_counts_from_then_on(storage: MemoryStorage) -> None:
    made: list[int] = []
    flow = agent(storage, made, Budget(max_cost_usd=0.5, max_steps=100))
    asyncio.run(flow.start(run_id="r"))
    again = asyncio.run(flow.resume("r", "budget", {"max_cost_usd": 1}, by="ana"))
    assert (again.status, again.event) == ("suspended", "budget#2")
    assert made == [0, 1, 2, 3]
    done = asyncio.run(flow.resume("r", "budget", {"max_cost_usd": None}))
    assert (done.status, done.result) == ("success", 8)
    assert made == list(range(8))


def test_an_answer_that_is_too_small_asks_again(storage: MemoryStorage) -> None:
    made: list[int] = []
    flow = agent(storage, made, Budget(max_cost_usd=0.5))
    asyncio.run(flow.start(run_id="r"))
    assert asyncio.run(flow.resume("r", "budget", {"max_cost_usd": 0.5})).event == "budget#2"
    assert len(made) == 2


@pytest.mark.parametrize(
    "answer", [{}, True, {"max_cost_usd": -1}, {"max_steps": 1.5}, {"cost": 3}, {"max_steps": "2"}]
)
def test_an_answer_of_another_shape_is_refused(storage: MemoryStorage, answer: Any) -> None:
    flow = agent(storage, [], Budget(max_cost_usd=0.5))
    asyncio.run(flow.start(run_id="r"))
    before = read(storage, "r").data
    with pytest.raises(JournalValueError):
        asyncio.run(flow.resume("r", "budget", answer))
    with pytest.raises(EventMismatchError, match="new limits"):
        kb.open(storage)["r"].approve()
    assert read(storage, "r").data == before


def test_a_crash_does_not_reset_what_has_been_spent(storage: MemoryStorage) -> None:
    made: list[int] = []

    @kassette(storage=storage, name="dies", budget=Budget(max_cost_usd=1))
    async def flow(ctx: kb.Context) -> None:
        for turn in range(20):

            def call(turn: int = turn) -> str:
                made.append(turn)
                if len(made) % 2 == 0:
                    raise KeyboardInterrupt
                return ask()

            await ctx.step("ask", call)

    result: Any = None
    while result is None:
        try:
            result = asyncio.run(flow.start(run_id="r"))
        except KeyboardInterrupt:
            continue
    assert result.event == "budget"
    recorded = [line for line in lines(storage) if line["type"] == "step"]
    assert len(recorded) == 4
    assert (
        len(lines(storage)) == 4 + len(made) - 4 + 2
    )  # a start for each crash and one, the question


def test_failed_steps_count(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="fails", budget=Budget(max_steps=3))
    async def flow(ctx: kb.Context) -> None:
        def call() -> None:
            ctx.record_usage(Usage(input_tokens=5, cost_usd=0.1))
            raise ValueError("no")

        while True:
            try:
                await ctx.step("try", call)
            except kb.StepFailedError:
                continue

    assert asyncio.run(flow.start(run_id="r")).event == "budget"
    assert kb.open(storage)["r"].fold().own.cost_usd == pytest.approx(0.3)


def test_values_of_the_moment_and_sleeps_are_free(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="free", budget=Budget(max_steps=1))
    async def flow(ctx: kb.Context) -> str:
        for _ in range(3):
            await ctx.now()
            await ctx.random()
            await ctx.uuid()
            await ctx.sleep(0)
        await ctx.step("one", lambda: 1)
        return "done"

    assert asyncio.run(flow.start(run_id="r")).result == "done"


def test_branches_in_flight_finish_and_one_question_is_asked(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="wide", budget=Budget(max_steps=3))
    async def flow(ctx: kb.Context) -> Any:
        return await ctx.parallel({f"b{n}": lambda: ask() for n in range(5)})

    stopped = asyncio.run(flow.start(run_id="r"))
    assert stopped.events == ("budget",)
    assert [line["type"] for line in lines(storage)] == ["start", *["step"] * 3, "suspend"]
    done = asyncio.run(flow.resume("r", "budget", {"max_steps": 5}))
    assert list(done.result) == [f"b{n}" for n in range(5)]


def test_a_question_of_the_workflow_and_the_budgets_are_asked_together(
    storage: MemoryStorage,
) -> None:
    @kassette(storage=storage, name="both", budget=Budget(max_steps=0))
    async def flow(ctx: kb.Context) -> Any:
        return await ctx.parallel({"ask": lambda ctx: ctx.suspend("ok"), "work": lambda: 1})

    stopped = asyncio.run(flow.start(run_id="r"))
    assert set(stopped.events) == {"ask/ok", "budget"}
    assert set(kb.open(storage)["r"].waiting_on) == {"ask/ok", "budget"}
    still = asyncio.run(flow.resume("r", "ok", True))
    assert still.events == ("budget",)
    assert asyncio.run(flow.resume("r", "budget", {"max_steps": 9})).result == {
        "ask": True,
        "work": 1,
    }


def test_a_workflow_may_fail_instead(storage: MemoryStorage) -> None:
    made: list[int] = []
    flow = agent(storage, made, Budget(max_cost_usd=0.5, on_exceeded="fail"))
    failed = asyncio.run(flow.start(run_id="r"))
    assert failed.error is not None
    assert (failed.status, failed.error.name) == ("failed", "BudgetExceededError")
    assert lines(storage)[-1]["type"] == "error"
    assert asyncio.run(flow.verify("r")).fits
    with pytest.raises(kb.KassetteError, match="larger budget"):
        asyncio.run(flow.retry("r"))
    fork = asyncio.run(flow.fork("r"))
    larger = flow.with_options(budget=Budget(max_cost_usd=5))
    assert asyncio.run(larger.start(run_id=fork)).result == 8
    assert made == list(range(8))


def test_a_workflow_that_swallows_it_ends_all_the_same(storage: MemoryStorage) -> None:
    seen: list[BudgetExceededError] = []

    @kassette(storage=storage, name="stubborn", budget=Budget(max_steps=1, on_exceeded="fail"))
    async def flow(ctx: kb.Context) -> str:
        for _ in range(5):
            try:
                await ctx.step("again", lambda: 1)
            except BudgetExceededError as problem:
                seen.append(problem)
        return "not bothered"

    failed = asyncio.run(flow.start(run_id="r"))
    assert failed.status == "failed"
    assert len(seen) == 4
    assert (seen[0].what, seen[0].limit, seen[0].spent) == ("max_steps", 1, 1)
    assert len(lines(storage)) == 3


def test_a_fork_carries_the_prefix_once_and_takes_the_limits_of_its_code(
    storage: MemoryStorage,
) -> None:
    made: list[int] = []
    flow = agent(storage, made, Budget(max_cost_usd=0.5))
    asyncio.run(flow.start(run_id="r"))
    asyncio.run(flow.resume("r", "budget", {"max_cost_usd": 9}))
    fork = asyncio.run(flow.fork("r", at="ask#4"))
    folded = kb.open(storage)[fork].fold()
    assert (folded.prefix.cost_usd, folded.own.cost_usd) == (0.75, None)
    stopped = asyncio.run(flow.start(run_id=fork))
    assert (
        stopped.status == "suspended"
    )  # 0.75 is spent already; the source's answer is not its own
    assert stopped.event == "budget#2"
    asyncio.run(flow.resume(fork, "budget", {"max_cost_usd": 1.0}))
    both = kb.compare([kb.open(storage)["r"], kb.open(storage)[fork]])
    own = kb.open(storage)[fork].fold().own.cost_usd
    assert own == pytest.approx(0.25)
    assert both.frame()["cost_usd"].sum() > 0


def test_the_latest_start_counts(storage: MemoryStorage) -> None:
    made: list[int] = []
    flow = agent(storage, made, Budget(max_cost_usd=9))

    @kassette(storage=storage, name="agent")
    async def unlimited(ctx: kb.Context, turns: int = 8) -> None:
        def die() -> None:
            raise KeyboardInterrupt

        await ctx.step("ask", die)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(unlimited.start(run_id="r"))
    assert "budget" not in lines(storage)[0]
    smaller = flow.with_options(budget=Budget(max_cost_usd=0.5))
    assert asyncio.run(smaller.start(run_id="r")).event == "budget"
    assert lines(storage)[1]["budget"] == {"maxCostUsd": 0.5}


@pytest.mark.parametrize(
    "limits",
    [
        {"max_steps": -1},
        {"max_steps": 1.5},
        {"max_tokens": True},
        {"max_cost_usd": math.nan},
        {"max_cost_usd": math.inf},
        {"max_cost_usd": "1"},
        {"on_exceeded": "panic"},
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(limits: Any) -> None:
    with pytest.raises(JournalValueError, match=next(iter(limits))):
        Budget(**limits)


# ---------------------------------------------------------------------------------- record_usage


def test_usage_told_while_a_step_runs_is_summed_with_what_it_returns(
    storage: MemoryStorage,
) -> None:
    @kassette(storage=storage, name="told")
    async def flow(ctx: kb.Context) -> str:
        def plain() -> str:
            ctx.record_usage(Usage(model="a", input_tokens=1, cost_usd=0.1))
            ctx.record_usage(Usage(model="b", output_tokens=2))
            return with_usage("done", Usage(input_tokens=10, cost_usd=0.2))  # type: ignore[no-any-return]

        async def coroutine() -> str:
            ctx.record_usage(Usage(input_tokens=4, cost_usd=0.5))
            return "done"

        await ctx.step("plain", plain)
        await ctx.tool("tool", coroutine)
        return "end"

    asyncio.run(flow.start(run_id="r"))
    steps = {line["stepId"]: line for line in lines(storage) if line["type"] == "step"}
    assert steps["plain"]["usage"] == {
        "model": "a, b",
        "inputTokens": 11,
        "outputTokens": 2,
        "costUsd": pytest.approx(0.3),
        "unpriced": 1,
    }
    assert steps["plain"]["kind"] == "step"
    assert steps["tool"]["usage"] == {"inputTokens": 4, "costUsd": 0.5}
    spend = kb.open(storage)["r"].fold().own
    assert (spend.tokens, spend.unpriced) == (17, 1)


def test_usage_outside_a_step_is_refused(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="outside")
    async def flow(ctx: kb.Context) -> None:
        ctx.record_usage(Usage(input_tokens=1))

    failed = asyncio.run(flow_failed(flow))
    assert "of a step or tool" in failed


async def flow_failed(flow: kb.Workflow) -> str:
    with pytest.raises(JournalValueError) as caught:
        await flow.start(run_id="r")
    return str(caught.value)


def test_usage_that_makes_no_sense_is_refused(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="senseless")
    async def flow(ctx: kb.Context) -> None:
        await ctx.step("s", lambda: ctx.record_usage(Usage(cost_usd=math.nan)))

    with pytest.raises(JournalValueError, match="cost_usd=nan"):
        asyncio.run(flow.start(run_id="r"))


def test_a_run_inside_a_step_is_not_part_of_that_step(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="child")
    async def child(ctx: kb.Context) -> str:
        await ctx.step("ask", ask)
        return "asked"

    @kassette(storage=storage, name="parent")
    async def parent(ctx: kb.Context) -> Any:
        async def run() -> Any:
            return (await child.start(run_id=f"{ctx.run_id}.child")).result

        return await ctx.step("child", run)

    assert asyncio.run(parent.start(run_id="r")).result == "asked"
    assert kb.open(storage)["r"].fold().own.cost_usd is None
    assert kb.open(storage)["r.child"].fold().own.cost_usd == 0.25
