"""Branches side by side: ids from their path, results in declared order, nothing run twice."""

import asyncio
import itertools
from functools import partial
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import MemoryStorage, kassette
from kassette_nb.errors import (
    ConcurrentUseError,
    InterruptedRunError,
    JournalValueError,
    KassetteError,
    ReplayMismatchError,
    StepFailedError,
)
from kassette_nb.testing import Fault, FaultyStorage
from tests.waiting import until_recorded


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage("parallel")


def ids(storage: Any, run_id: str = "r") -> list[str]:
    return [step.step_id for step in kb.open(storage)[run_id].fold().steps]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_results_come_back_in_declared_order_whatever_finished_first(
    storage: MemoryStorage, order: tuple[int, ...]
) -> None:
    prompts: list[str] = []

    async def fetch(ctx: kb.Context, turn: int, name: str) -> str:
        await ctx.step("wait", asyncio.sleep, turn * 0.004)
        return str(await ctx.step("fetch", lambda: name.upper()))

    @kassette(storage=storage, name="fetches")
    async def fetches(ctx: kb.Context) -> Any:
        block = {n: partial(fetch, turn=order[i], name=n) for i, n in enumerate("abc")}
        found = await ctx.parallel(block)
        prompts.append(str(found))
        await ctx.suspend("then")
        return found

    async def scenario() -> None:
        await fetches.start(run_id="r")
        await fetches.resume("r", "then", None)

    asyncio.run(scenario())
    assert prompts == ["{'a': 'A', 'b': 'B', 'c': 'C'}"] * 2
    assert sorted(ids(storage)) == [
        "a/fetch", "a/wait", "b/fetch", "b/wait", "c/fetch", "c/wait",
    ]  # fmt: skip


def test_a_plain_function_is_one_step_named_by_its_key(storage: MemoryStorage) -> None:
    async def quick() -> int:
        return 1

    @kassette(storage=storage, name="plain")
    async def plain(ctx: kb.Context) -> Any:
        first = await ctx.parallel({"a": quick, "b": lambda: 2})
        second = await ctx.parallel({"a": quick})
        return [first, second]

    assert asyncio.run(plain.start(run_id="r")).result == [{"a": 1, "b": 2}, {"a": 1}]
    assert ids(storage) == ["a", "b", "a#2"]


def test_two_blocks_with_the_same_keys_in_a_loop_keep_their_own_ids(
    storage: MemoryStorage,
) -> None:
    async def branch(ctx: kb.Context) -> str:
        return str(await ctx.step("look", lambda: "x"))

    @kassette(storage=storage, name="loops")
    async def loops(ctx: kb.Context) -> None:
        for _ in range(2):
            await ctx.parallel({"tool": branch})
        await ctx.suspend("then")

    async def scenario() -> None:
        await loops.start(run_id="r")
        await loops.resume("r", "then", None)

    asyncio.run(scenario())
    assert ids(storage) == ["tool/look", "tool#2/look"]


def test_a_suspension_in_a_branch_suspends_the_block_after_its_siblings(
    storage: MemoryStorage,
) -> None:
    ran: list[str] = []

    async def asks(ctx: kb.Context) -> Any:
        return await ctx.suspend("approval", prompt="ok?")

    async def works(ctx: kb.Context) -> str:
        await ctx.step("slow", asyncio.sleep, 0.01)
        await ctx.step("work", ran.append, "work")
        return "worked"

    async def fails(ctx: kb.Context) -> None:
        await ctx.step("boom", lambda: 1 / 0)

    @kassette(storage=storage, name="mixed")
    async def mixed(ctx: kb.Context) -> Any:
        try:
            await ctx.parallel({"asks": asks, "works": works, "fails": fails})
        except StepFailedError as error:
            return f"{error.step_id}: {error.name}"

    async def scenario() -> None:
        first = await mixed.start(run_id="r")
        assert (first.status, first.events) == ("suspended", ("asks/approval",))
        last = await mixed.resume("r", "approval", True)
        assert last.result == "fails/boom: ZeroDivisionError"

    asyncio.run(scenario())
    assert ran == ["work"]


def test_several_questions_end_a_session_as_one_group(storage: MemoryStorage) -> None:
    async def asks(ctx: kb.Context) -> Any:
        return await ctx.suspend("approval")

    @kassette(storage=storage, name="asks_twice")
    async def asks_twice(ctx: kb.Context) -> Any:
        return await ctx.parallel({"a": asks, "b": asks})

    async def scenario() -> None:
        first = await asks_twice.start(run_id="r")
        assert first.events == ("a/approval", "b/approval")
        with pytest.raises(KassetteError, match="in 2 places"):
            await asks_twice.resume("r", "approval", 1)
        second = await asks_twice.resume("r", "b/approval", "for b")
        assert second.events == ("a/approval",)
        third = await asks_twice.resume("r", "approval", "for a")
        assert third.result == {"a": "for a", "b": "for b"}

    asyncio.run(scenario())
    lines = kb.open(storage)["r"].entries()
    assert list(lines["type"]) == [
        "start", "suspend", "suspend", "resume", "suspend", "resume", "complete",
    ]  # fmt: skip


def test_a_hundred_ready_branches_are_one_write() -> None:
    storage = FaultyStorage(MemoryStorage())
    counts: list[int] = []

    async def ready() -> int:
        return 1

    @kassette(storage=storage, name="hundred")
    async def hundred(ctx: kb.Context) -> Any:
        await ctx.step("first", ready)
        before = storage.writes
        found = await ctx.parallel({f"k{n}": ready for n in range(100)})
        counts.append(storage.writes - before)
        return sum(found.values())

    assert asyncio.run(hundred.start(run_id="r")).result == 100
    assert counts == [1]


def test_a_failed_write_reaches_every_branch_of_the_batch() -> None:
    storage = FaultyStorage(MemoryStorage())
    seen: list[str] = []

    async def ready() -> int:
        return 1

    async def branch(ctx: kb.Context) -> None:
        try:
            await ctx.step("x", ready)
        except BaseException as problem:
            seen.append(type(problem).__name__)
            raise

    @kassette(storage=storage, name="breaks")
    async def breaks(ctx: kb.Context) -> None:
        storage.fail_at = storage.writes + 2
        await ctx.parallel({f"k{n}": branch for n in range(5)})

    with pytest.raises((Fault, InterruptedRunError)):
        asyncio.run(breaks.start(run_id="r"))
    assert seen == ["Fault"] * 5
    assert ids(storage) == []


def test_a_ctx_of_another_branch_is_refused(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="steals")
    async def steals(ctx: kb.Context) -> None:
        async def branch(own: kb.Context) -> None:
            await ctx.step("stolen", lambda: 1)

        await ctx.parallel({"a": branch})

    with pytest.raises(ConcurrentUseError):
        asyncio.run(steals.start(run_id="r"))


def test_a_branch_whose_code_changed_is_told_before_it_acts(storage: MemoryStorage) -> None:
    ran: list[str] = []

    def workflow(*names: str) -> kb.Workflow:
        async def branch(ctx: kb.Context) -> None:
            for name in names:
                await ctx.step(name, ran.append, name)

        @kassette(storage=storage, name="changes")
        async def changes(ctx: kb.Context) -> None:
            await ctx.parallel({"a": branch})
            await ctx.suspend("then")

        return changes

    asyncio.run(workflow("one", "two").start(run_id="r"))
    before = storage.read("r")
    for names in [("one",), ("one", "two", "three"), ("two", "one"), ("other",)]:
        ran.clear()
        with pytest.raises(ReplayMismatchError):
            asyncio.run(workflow(*names).resume("r", "then", None))
        assert (ran, storage.read("r")) == ([], before)


def test_a_key_that_became_a_step_is_a_mismatch(storage: MemoryStorage) -> None:
    async def branch(ctx: kb.Context) -> None:
        await ctx.step("x", lambda: 1)

    @kassette(storage=storage, name="kinds")
    async def before(ctx: kb.Context) -> None:
        await ctx.parallel({"a": branch})
        await ctx.suspend("then")

    asyncio.run(before.start(run_id="r"))

    @kassette(storage=storage, name="kinds")
    async def after(ctx: kb.Context) -> None:
        await ctx.step("a", lambda: 1)

    with pytest.raises(ReplayMismatchError, match="recorded the parallel 'a'"):
        asyncio.run(after.resume("r", "then", None))


def test_a_branch_that_needs_more_than_its_ctx_is_refused(storage: MemoryStorage) -> None:
    async def greedy(ctx: kb.Context, more: int) -> None: ...

    @kassette(storage=storage, name="greedy")
    async def workflow(ctx: kb.Context) -> None:
        await ctx.parallel({"a": greedy})

    with pytest.raises(JournalValueError, match=r"functools\.partial"):
        asyncio.run(workflow.start(run_id="r"))
    assert list(storage.list()) == []


def test_an_exception_of_a_branchs_own_code_is_the_workflows_to_handle(
    storage: MemoryStorage,
) -> None:
    async def raises(ctx: kb.Context) -> None:
        await ctx.step("x", lambda: 1)
        raise LookupError("mine")

    @kassette(storage=storage, name="handles")
    async def handles(ctx: kb.Context) -> Any:
        try:
            await ctx.parallel({"a": raises})
        except LookupError:
            return await ctx.step("handled", lambda: "handled")

    assert asyncio.run(handles.start(run_id="r")).result == "handled"


def test_nested_blocks_have_paths(storage: MemoryStorage) -> None:
    async def inner(ctx: kb.Context) -> Any:
        return await ctx.step("leaf", lambda: ctx.run_id)

    async def outer(ctx: kb.Context) -> Any:
        return await ctx.parallel({"i": inner, "j": inner})

    @kassette(storage=storage, name="nests")
    async def nests(ctx: kb.Context) -> Any:
        return await ctx.parallel({"o": outer})

    assert asyncio.run(nests.start(run_id="r")).result == {"o": {"i": "r", "j": "r"}}
    assert sorted(ids(storage)) == ["o/i/leaf", "o/j/leaf"]


def test_a_cancelled_block_settles_what_is_in_flight(storage: MemoryStorage) -> None:
    async def slow(ctx: kb.Context) -> None:
        await ctx.step("slow", asyncio.sleep, 60)

    async def thread(ctx: kb.Context) -> None:
        import time

        await ctx.step("thread", time.sleep, 0.2)

    @kassette(storage=storage, name="cancels")
    async def cancels(ctx: kb.Context) -> None:
        await ctx.parallel({"a": slow, "b": thread})

    async def scenario() -> None:
        task = asyncio.create_task(cancels.start(run_id="r"))
        await until_recorded(storage)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert storage.holder("r") is not None
        while storage.holder("r"):  # noqa: ASYNC110  # a thread frees it
            await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert ids(storage) == ["b/thread"]
    assert kb.open(storage)["r"].state == "interrupted"
