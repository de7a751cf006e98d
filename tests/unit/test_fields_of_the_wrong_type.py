"""What nobody could read back is refused before it is written, whoever says it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import MemoryStorage, Usage, kassette, with_usage
from kassette_nb.errors import JournalValueError
from kassette_nb.journal import read


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage("wrong")


def asking(storage: MemoryStorage) -> kb.Workflow:
    @kassette(storage=storage, name="asks")
    async def flow(ctx: kb.Context) -> Any:
        return await ctx.suspend("ok")

    asyncio.run(flow.start(run_id="r"))
    return flow


ACTS: dict[str, Callable[[kb.Workflow, kb.Run], Any]] = {
    "approve by": lambda _, run: run.approve(by=3),  # type: ignore[arg-type]
    "approve note": lambda _, run: run.approve(note=3),  # type: ignore[arg-type]
    "respond by": lambda _, run: run.respond(1, by=["a"]),  # type: ignore[arg-type]
    "resume by": lambda flow, _: asyncio.run(flow.resume("r", "ok", 1, by=3)),  # type: ignore[arg-type]
    "cancel": lambda _, run: run.cancel(reason=3),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_an_answer_or_a_cancellation(
    storage: MemoryStorage, act: Callable[[kb.Workflow, kb.Run], Any]
) -> None:
    flow = asking(storage)
    run = kb.open(storage)["r"]
    before = read(storage, "r").data
    with pytest.raises(JournalValueError, match="cannot be recorded like this"):
        act(flow, run)
    assert read(storage, "r").data == before
    assert asyncio.run(flow.resume("r", "ok", 1)).result == 1


def test_a_label(storage: MemoryStorage) -> None:
    flow = asking(storage)
    with pytest.raises(kb.KassetteError, match="label=3 is no text"):
        kb.open(storage)["r"].fork(at="ok", label=3)  # type: ignore[arg-type]
    with pytest.raises(JournalValueError, match=r"\$\.label"):
        asyncio.run(flow.with_options(label=3).start(run_id="new"))  # type: ignore[arg-type]
    assert list(kb.open(storage)) == ["r"]


@pytest.mark.parametrize(
    "usage",
    [
        Usage(input_tokens=5.0),  # type: ignore[arg-type]
        Usage(output_tokens=1.5),  # type: ignore[arg-type]
        Usage(unpriced=1.5),  # type: ignore[arg-type]
        Usage(input_tokens=True),
        Usage(model=3),  # type: ignore[arg-type]
        {"input_tokens": 5},
    ],
)
def test_a_usage(storage: MemoryStorage, usage: Any) -> None:
    with pytest.raises(JournalValueError, match=r"^usage: "):
        with_usage("answer", usage)


def test_a_usage_of_numpy_numbers(storage: MemoryStorage) -> None:
    import numpy as np

    with pytest.raises(JournalValueError, match="plain number"):
        with_usage("answer", Usage(cost_usd=np.float64(0.1)))
    with pytest.raises(JournalValueError, match="plain whole number"):
        with_usage("answer", Usage(input_tokens=np.int64(5)))  # type: ignore[arg-type]


def test_a_budget_of_numpy_numbers() -> None:
    import numpy as np

    with pytest.raises(JournalValueError, match="plain number"):
        kb.Budget(max_cost_usd=np.float64(1))
    with pytest.raises(JournalValueError, match="plain whole number"):
        kb.Budget(max_steps=np.int64(5))  # type: ignore[arg-type]


def test_a_budget_that_is_none(storage: MemoryStorage) -> None:
    async def flow(ctx: kb.Context) -> None: ...

    with pytest.raises(TypeError, match="Budget"):
        kassette(storage=storage, budget=3)(flow)  # type: ignore[call-overload]


@pytest.mark.parametrize("retry", ["3", -1, 0, True, 1.5])
def test_a_policy_of_retries(storage: MemoryStorage, retry: Any) -> None:
    @kassette(storage=storage, name="retries")
    async def flow(ctx: kb.Context) -> Any:
        return await ctx.with_options(retry=retry).step("s", lambda: 1)

    with pytest.raises(JournalValueError, match="retry="):
        asyncio.run(flow.start(run_id="r"))


def test_answers_about_budgets_and_each_question_about_a_doubt_are_in_the_table(
    storage: MemoryStorage,
) -> None:
    @kassette(storage=storage, name="tabled", budget=kb.Budget(max_steps=0))
    async def flow(ctx: kb.Context) -> Any:
        def die() -> None:
            raise KeyboardInterrupt

        return await ctx.tool("act", die)

    asyncio.run(flow.start(run_id="r"))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(flow.resume("r", "budget", {"max_steps": 9}, by="ana"))
    assert asyncio.run(flow.start(run_id="r")).event == "act"
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(flow.resume("r", "act", {"action": "retry"}, by="bob"))
    asyncio.run(flow.start(run_id="r"))
    table = kb.open(storage)["r"].suspensions()
    assert list(table["event"]) == ["budget", "in-doubt", "in-doubt"]
    assert list(table["state"]) == ["answered", "answered", "waiting"]
    assert list(table["by"].fillna("")) == ["ana", "bob", ""]
