"""Mistakes that people make: each gets an error that names it and says what to write instead."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import MemoryStorage, Usage, kassette, with_usage
from kassette_nb.errors import JournalValueError, KassetteError, RunCancelledError, UnknownRunError
from kassette_nb.testing import ManualClock


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage("trips")


async def answer() -> int:
    return 1


def run_once(storage: MemoryStorage, body: Any) -> Any:
    workflow = kassette(storage=storage, name="trips")(body)
    return asyncio.run(workflow.start(run_id="r"))


def test_a_called_function_instead_of_a_function(storage: MemoryStorage) -> None:
    async def body(ctx: Any) -> None:
        await ctx.step("a", answer())

    with pytest.raises(
        JournalValueError, match=r"not 'coroutine': write ctx\.step\('name', fn, x\)"
    ):
        run_once(storage, body)


def test_a_list_of_branches(storage: MemoryStorage) -> None:
    async def body(ctx: Any) -> None:
        await ctx.parallel([answer])

    with pytest.raises(JournalValueError, match="functions by key, not a list"):
        run_once(storage, body)


def test_wait_for_around_a_call_names_the_option_instead(storage: MemoryStorage) -> None:
    async def body(ctx: Any) -> None:
        await asyncio.gather(ctx.step("a", answer))

    with pytest.raises(KassetteError, match=r"with_options\(timeout=…\)"):
        run_once(storage, body)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ({1, 2}, r"is a set, .* use sorted"),
        (Path("x"), r"use str\(…\)"),
        (b"x", "decode it"),
        (1 + 2j, "is a complex"),
    ],
)
def test_values_that_json_has_no_place_for_come_with_a_hint(
    storage: MemoryStorage, value: Any, hint: str
) -> None:
    async def body(ctx: Any) -> Any:
        return await ctx.step("a", lambda: value)

    with pytest.raises(JournalValueError, match=hint):
        run_once(storage, body)


def test_pandas_and_numpy_values_come_with_a_hint(storage: MemoryStorage) -> None:
    import numpy as np
    import pandas as pd

    values = (pd.DataFrame({"a": [1]}), np.int64(1), np.array([1]))
    for value, hint in zip(values, ("to_dict", r"an int64.*\.item", "tolist"), strict=True):

        async def body(ctx: Any, value: Any = None, given: Any = value) -> Any:
            return given

        workflow = kassette(storage=storage, name="frames")(body)
        with pytest.raises(JournalValueError, match=hint):
            asyncio.run(workflow.start(given=value))


def test_calling_the_workflow_itself_and_leaving_out_arguments(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="called")
    async def called(ctx: kb.Context, ticket: str) -> None: ...

    with pytest.raises(TypeError, match=r"await called\.start\(…\)"):
        called("x")
    with pytest.raises(TypeError, match="workflow 'called': missing a required argument: 'ticket'"):
        asyncio.run(called.start())
    with pytest.raises(TypeError, match="workflow 'called'"):
        asyncio.run(called.start("x", nothing=1))


def test_comparing_the_wrong_things() -> None:
    runs = kb.open(Path(__file__).parent.parent / "golden" / "good")
    a, b = runs["attempt-a"], runs["attempt-b"]
    for given, reason in (((a,), "one list of runs"), ((["a", "b"],), "runs, not ids")):
        with pytest.raises(KassetteError, match=reason):
            kb.compare(*given)
    with pytest.raises(KassetteError, match="two or more"):
        kb.compare([a])
    assert b.run_id == "attempt-b"


def test_mistyped_ids_come_with_what_is_close() -> None:
    runs = kb.open(Path(__file__).parent.parent / "golden" / "good")
    with pytest.raises(UnknownRunError, match="Close to it: attempt-b, attempt-a"):
        runs["atempt-b"]
    with pytest.raises(KeyError, match="close to it: 'edit'"):
        runs["attempt-a"]["edti"]


def test_a_failed_steps_error_carries_the_traceback_of_its_function(
    storage: MemoryStorage,
) -> None:
    def inner() -> None:
        raise KeyError("deep inside")

    def tool() -> None:
        inner()

    async def body(ctx: Any) -> None:
        await ctx.step("t", tool)

    result = run_once(storage, body)
    assert result.error.name == "KeyError"
    error = kb.open(storage)["r"]["t"].error
    assert error is not None
    assert error.traceback is not None
    assert "in inner" in error.traceback
    assert "kassette_nb/" not in error.traceback, "our own frames say nothing"


def test_a_step_out_of_time_says_so(storage: MemoryStorage) -> None:
    async def body(ctx: Any) -> None:
        await ctx.with_options(timeout=0.01).step("slow", asyncio.sleep, 60)

    assert run_once(storage, body).error.message == "no result within 0.01 s"


def test_a_failed_run_is_forked_at_its_failure_by_default(storage: MemoryStorage) -> None:
    broken = True

    def tool() -> str:
        if broken:
            raise ValueError("no")
        return "done"

    @kassette(storage=storage, name="fails")
    async def fails(ctx: kb.Context) -> Any:
        await ctx.step("before", answer)
        return await ctx.step("t", tool)

    async def scenario() -> None:
        nonlocal broken
        await fails.start(run_id="r")
        broken = False
        fork = kb.open(storage)["r"].fork(start=True)
        await fork
        assert fork.result == "done"
        assert fork.source is not None
        assert fork.source.from_offset == 2

    asyncio.run(scenario())


def test_an_overdue_question_takes_no_click(storage: MemoryStorage) -> None:
    clock = ManualClock()  # its time is long past

    @kassette(storage=storage, name="late", clock=clock)
    async def late(ctx: kb.Context) -> Any:
        return await ctx.suspend("approval", timeout=60)

    asyncio.run(late.start(run_id="r"))
    run = kb.open(storage)["r"]
    with pytest.raises(RunCancelledError, match="before its deadline"):
        run.approve(by="late")
    assert run.state == "cancelled"


def test_usage_is_recorded_beside_the_value_and_counted(storage: MemoryStorage) -> None:
    usage = Usage(model="m-1", input_tokens=100, output_tokens=20, cost_usd=0.25)

    async def call() -> Any:
        return with_usage({"text": "hi"}, usage)

    async def body(ctx: Any) -> Any:
        return await ctx.step("ask", call)

    assert run_once(storage, body).result == {"text": "hi"}
    run = kb.open(storage)["r"]
    assert run["ask"].usage == usage
    step = run.steps().loc[0]
    assert (step.kind, step.input_tokens, step.cost_usd, step.model) == ("llm", 100, 0.25, "m-1")
    assert run.panel().main["facts"]["cost"]["own"] == 0.25
    for bad in (-1, float("nan"), float("inf")):
        with pytest.raises(JournalValueError, match="cost_usd"):
            with_usage(1, Usage(cost_usd=bad))


@pytest.mark.parametrize("plain", [True, False])
def test_arguments_that_the_function_does_not_take_fail_the_step(
    storage: MemoryStorage, plain: bool
) -> None:
    def takes_none() -> None: ...

    async def async_takes_none() -> None: ...

    async def body(ctx: Any) -> None:
        await ctx.step("t", takes_none if plain else async_takes_none, 1)

    result = run_once(storage, body)
    assert (result.status, result.error.name) == ("failed", "TypeError")
    assert "takes 0 positional arguments" in result.error.message


def test_forks_stand_in_the_order_of_their_numbers(storage: MemoryStorage) -> None:
    @kassette(storage=storage)
    async def one(ctx: kb.Context) -> None:
        await ctx.step("a", lambda: 1)

    one.start_sync(run_id="r")
    runs = kb.open(storage)
    for _ in range(11):
        runs["r"].fork(at="a")
    assert [run.run_id for run in runs.forks_of("r")] == [f"r.{n}" for n in range(2, 13)]


def test_slips_in_calls_on_a_run_are_told(storage: MemoryStorage) -> None:
    @kassette(storage=storage)
    async def asks(ctx: kb.Context) -> None:
        await ctx.suspend("approval")

    asks.start_sync(run_id="r")
    run: Any = kb.open(storage)["r"]
    with pytest.raises(TypeError, match=r"named by its id, as in run\['plan#2'\]"):
        run[0]
    with pytest.raises(kb.KassetteError, match="say which with at=, as in"):
        run.fork(answer={"approved": True})
    with pytest.raises(kb.KassetteError, match=r"use approve\(\), reject\(\) or respond\(\)"):
        run.resume()
    assert run.frame()["state"].tolist() == ["suspended"]


def test_two_runs_that_sleep_at_other_times_are_the_same(storage: MemoryStorage) -> None:
    @kassette(storage=storage)
    async def rests(ctx: kb.Context) -> None:
        await ctx.sleep(0.001)
        await ctx.step("a", lambda: 1)

    rests.start_sync(run_id="r")
    rests.start_sync(run_id="s")
    runs = kb.open(storage)
    assert kb.compare([runs["r"], runs["s"]]).sub == "all 2 steps equal"
