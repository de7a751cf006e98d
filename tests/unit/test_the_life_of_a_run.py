"""Cancel, retry, verify, recover, launch, and calls from code that cannot await."""

import asyncio
import os
import signal
import threading
import time
from typing import Any

import pytest
from msgspec import Raw

import kassette_nb as kb
from kassette_nb import MemoryStorage, kassette
from kassette_nb.entries import Note
from kassette_nb.errors import (
    InterruptedRunError,
    KassetteError,
    RunCancelledError,
    StepFailedError,
    TerminalRunError,
)
from tests.waiting import until_recorded


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage("life")


def types(storage: MemoryStorage, run_id: str) -> list[str]:
    return list(kb.open(storage)[run_id].entries()["type"])


# ------------------------------------------------------------------------------------- cancel


def test_a_suspended_run_is_cancelled_with_one_line(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="asks")
    async def asks(ctx: kb.Context) -> Any:
        return await ctx.suspend("approval")

    async def scenario() -> None:
        await asks.start(run_id="r")
        done = await asks.cancel("r", reason="not needed")
        assert (done.status, done.reason) == ("cancelled", "not needed")
        with pytest.raises(RunCancelledError, match="not needed"):
            await asks.resume("r", "approval", 1)
        with pytest.raises(RunCancelledError):
            await asks.cancel("r")
        assert (await asks.start(run_id="r")).status == "cancelled"
        with pytest.raises(RunCancelledError):
            _ = done.result

    asyncio.run(scenario())
    assert types(storage, "r") == ["start", "suspend", "cancel"]


def test_a_live_run_ends_itself_with_its_cancellation(storage: MemoryStorage) -> None:
    ran: list[str] = []

    def thread() -> str:
        time.sleep(0.15)
        return "paid"

    async def slow(ctx: kb.Context) -> None:
        await ctx.step("slow", asyncio.sleep, 60)
        ran.append("went on")

    async def paid(ctx: kb.Context) -> None:
        await ctx.step("paid", thread)

    @kassette(storage=storage, name="lives")
    async def lives(ctx: kb.Context) -> None:
        try:
            await ctx.parallel({"a": slow, "b": paid})
        finally:
            await ctx.step("tidy", ran.append, "tidied")

    async def scenario() -> None:
        task = asyncio.create_task(lives.start(run_id="r"))
        await until_recorded(storage)
        await lives.cancel("r", reason="enough")
        result = await task
        assert (result.status, result.reason) == ("cancelled", "enough")
        assert storage.holder("r") is None

    asyncio.run(scenario())
    assert ran == []
    assert types(storage, "r") == ["start", "step", "cancel"], "what was paid for is recorded"


def test_a_live_run_of_this_process_is_cancelled_from_outside_too(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="outside")
    async def outside(ctx: kb.Context) -> None:
        await ctx.step("slow", asyncio.sleep, 60)

    async def scenario() -> None:
        task = asyncio.create_task(outside.start(run_id="r"))
        await until_recorded(storage)
        kb.open(storage)["r"].cancel(reason="enough")
        assert (await task).status == "cancelled"

    asyncio.run(scenario())
    assert types(storage, "r") == ["start", "cancel"]


@pytest.mark.parametrize("other", ["completes", "suspends"])
def test_going_on_looks_again_once_the_run_is_held(
    storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    from kassette_nb import lease

    @kassette(storage=storage, name="overtaken")
    async def overtaken(ctx: kb.Context) -> None:
        await ctx.step("a", lambda: 1)
        if other == "suspends":
            await ctx.suspend("approval")

    acquire = lease.acquire_blocking

    def late(*args: Any) -> Any:
        """Another session goes on with the run while this one waits for the lock."""
        monkeypatch.setattr(lease, "acquire_blocking", acquire)
        overtaken.start_sync(run_id="r.2")
        return acquire(*args)

    async def scenario() -> None:
        await overtaken.start(run_id="r")
        await overtaken.fork("r", at="a")

    asyncio.run(scenario())
    run = kb.open(storage)["r.2"]
    monkeypatch.setattr(lease, "acquire_blocking", late)
    with pytest.raises(KassetteError, match=r"has completed|waits for 'approval'"):
        run.resume()
    assert run.state == ("completed" if other == "completes" else "suspended")
    assert storage.holder("r.2") is None


# -------------------------------------------------------------------------------------- retry


def test_a_retry_runs_the_failed_step_again_and_keeps_its_siblings_work(
    storage: MemoryStorage,
) -> None:
    ran: list[str] = []
    broken = True

    def fetch() -> str:
        ran.append("fetch")
        if broken:
            raise ConnectionError("down")
        return "fetched"

    async def left(ctx: kb.Context) -> Any:
        await ctx.step("first", ran.append, "left first")
        return await ctx.step("fetch", fetch)

    async def right(ctx: kb.Context) -> None:
        await ctx.step("work", ran.append, "right")

    @kassette(storage=storage, name="retried")
    async def retried(ctx: kb.Context) -> Any:
        await ctx.step("before", ran.append, "before")
        block: dict[str, Any] = {"left": left, "right": right, "plain": lambda: ran.append("plain")}
        found = await ctx.parallel(block)
        return found["left"]

    async def scenario() -> None:
        nonlocal broken
        failed = await retried.start(run_id="r")
        assert failed.status == "failed"
        assert sorted(ran) == ["before", "fetch", "left first", "plain", "right"]
        broken = False
        ran.clear()
        made = await retried.retry("r")
        assert kb.open(storage)[made].state == "ready"
        assert (await retried.start(run_id=made)).result == "fetched"
        assert ran == ["fetch"]

    asyncio.run(scenario())
    old, new = (kb.open(storage)[i].journal for i in ("r", "r.2"))
    note = next(entry for entry in new.entries if isinstance(entry, Note))
    assert note.kind == "retried"
    assert isinstance(note.data, Raw)
    assert old.line(note.offset).rstrip() == bytes(note.data)
    assert new.opening.key_scope == "r", "a call that may have acted carries the same key"


def test_only_a_run_with_a_failed_step_can_be_retried(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="bodies")
    async def bodies(ctx: kb.Context, fail: bool) -> None:
        await ctx.step("a", lambda: 1)
        if fail:
            raise LookupError("of the workflow itself")

    async def scenario() -> None:
        await bodies.start(True, run_id="failed")
        await bodies.start(False, run_id="done")
        with pytest.raises(KassetteError, match=r"raised LookupError; .* fork\(at="):
            await bodies.retry("failed")
        with pytest.raises(KassetteError, match="only a failed run"):
            await bodies.retry("done")

    asyncio.run(scenario())
    assert list(storage.list()) == ["done", "failed"]


# ------------------------------------------------------------------------------------- verify


def test_verify_says_how_much_was_replayed_and_what_comes_next(storage: MemoryStorage) -> None:
    ran: list[str] = []

    def workflow(*names: str, result: str = "done") -> kb.Workflow:
        @kassette(storage=storage, name="verified")
        async def verified(ctx: kb.Context) -> str:
            for name in names:
                await ctx.step(name, ran.append, name)
            await ctx.suspend("then")
            return result

        return verified

    async def scenario() -> None:
        code = workflow("a", "b")
        await code.start(run_id="r")
        before = storage.read("r")
        ran.clear()
        found = await code.verify("r")
        assert (found.fits, found.replayed, found.live) == (True, 2, 0)
        assert found.next == "suspend 'then'"
        other = await workflow("a", "x").verify("r")
        assert not other.fits
        assert "'x'" in str(other.divergence)
        assert (ran, storage.read("r")) == ([], before)

        await workflow("a", "b").resume("r", "then", None)
        found = await workflow("a", "b").verify("r")
        assert (found.fits, found.replayed, found.next) == (True, 3, None)
        assert "to the recorded end" in repr(found)
        changed = await workflow("a", "b", result="other").verify("r")
        assert "another result" in str(changed.divergence)

    asyncio.run(scenario())


def test_verify_looks_at_every_branch_though_one_of_them_waits(storage: MemoryStorage) -> None:
    def workflow(name: str) -> kb.Workflow:
        async def waits(ctx: kb.Context) -> Any:
            return await ctx.suspend("approval")

        async def works(ctx: kb.Context) -> None:
            await asyncio.sleep(0.01)
            await ctx.step(name, lambda: 1)

        @kassette(storage=storage, name="branches")
        async def branches(ctx: kb.Context) -> None:
            await ctx.parallel({"waits": waits, "works": works})

        return branches

    async def scenario() -> None:
        await workflow("one").start(run_id="r")
        found = await workflow("one").verify("r")
        assert (found.fits, found.replayed, found.next) == (True, 1, "suspend 'waits/approval'")
        assert not (await workflow("other").verify("r")).fits
        before = storage.read("r")
        with pytest.raises(KassetteError, match="'works/other'"):
            kb.open(storage)["r"].approve()
        assert storage.read("r") == before, "the answer is not spent"

    asyncio.run(scenario())


def test_verify_of_a_failed_run_comes_to_the_same_failure(storage: MemoryStorage) -> None:
    def workflow(error: type[Exception]) -> kb.Workflow:
        @kassette(storage=storage, name="fails")
        async def fails(ctx: kb.Context) -> None:
            await ctx.step("a", lambda: 1)
            raise error("x")

        return fails

    asyncio.run(workflow(LookupError).start(run_id="r"))
    assert asyncio.run(workflow(LookupError).verify("r")).fits
    assert not asyncio.run(workflow(ValueError).verify("r")).fits


# ------------------------------------------------------------------------------------ recover


def test_recover_goes_on_with_what_is_its_own_and_reports_what_does_not_fit(
    storage: MemoryStorage,
) -> None:
    stop = True

    async def call() -> str:
        if stop:
            raise ConnectionError("down")
        return "ok"

    @kassette(storage=storage, name="mine", transient=(ConnectionError,))
    async def mine(ctx: kb.Context) -> Any:
        await ctx.step("a", lambda: 1)
        return await ctx.step("call", call)

    @kassette(storage=storage, name="theirs", transient=(ConnectionError,))
    async def theirs(ctx: kb.Context) -> Any:
        return await ctx.step("call", call)

    async def scenario() -> None:
        nonlocal stop
        for workflow, run_id in ((mine, "a"), (mine, "b"), (mine, "held"), (theirs, "t")):
            with pytest.raises(ConnectionError):
                await workflow.start(run_id=run_id)
        fork = await mine.fork("a", at=2)
        stop = False
        hold = storage.hold("held", "somebody")
        found = await mine.recover()
        hold.release()
        assert [each.run_id for each in found] == ["a", "b"]
        assert all(each.result and each.result.result == "ok" for each in found)
        assert kb.open(storage)[fork].state == "ready", "never an unstarted fork"
        assert kb.open(storage)["t"].state == "interrupted", "never another workflow's run"

        @kassette(storage=storage, name="mine")
        async def changed(ctx: kb.Context) -> Any:
            return await ctx.step("something else", call)

        before = storage.read("held")
        (told,) = await changed.recover()
        assert "something else" in str(told.error)
        assert storage.read("held") == before

    asyncio.run(scenario())


# --------------------------------------------------------------------------- launch and sync


@pytest.mark.parametrize("thread", [False, True])
def test_a_launched_run_goes_on_while_the_caller_does_something_else(
    storage: MemoryStorage, thread: bool
) -> None:
    where: list[str] = []

    @kassette(storage=storage, name="launched")
    async def launched(ctx: kb.Context, n: int) -> int:
        where.append(threading.current_thread().name)
        return int(await ctx.step("double", lambda: 2 * n))

    async def scenario() -> None:
        handle = launched.launch(21, run_id="r", thread=thread)
        assert handle.run_id == "r"
        assert "'r'" in repr(handle)
        assert (await handle).result == 42
        assert "42" in repr(handle)

    asyncio.run(scenario())
    assert (where == [threading.main_thread().name]) is not thread


def test_a_launched_run_that_is_interrupted_raises_for_whoever_awaits_it(
    storage: MemoryStorage,
) -> None:
    @kassette(storage=storage, name="interrupted")
    async def interrupted(ctx: kb.Context) -> None:
        await ctx.step("set", lambda: {1})

    async def scenario() -> None:
        handle = interrupted.launch(run_id="r")
        with pytest.raises(KassetteError, match="is a set"):
            await handle

    asyncio.run(scenario())


def test_sync_calls_work_in_a_script_and_inside_a_live_loop(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="sync")
    async def sync(ctx: kb.Context, n: int) -> Any:
        answer = await ctx.suspend("more")
        return n + answer

    assert sync.start_sync(1, run_id="script").status == "suspended"
    assert sync.resume_sync("script", "more", 1).result == 2

    async def cell() -> None:
        assert sync.start_sync(1, run_id="cell").status == "suspended"
        assert sync.resume_sync("cell", "more", 2).result == 3

    asyncio.run(cell())


def test_ctrl_c_reaches_a_sync_call_inside_a_live_loop(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="ctrl_c")
    async def ctrl_c(ctx: kb.Context) -> None:
        await ctx.step("first", lambda: 1)
        await ctx.step("slow", asyncio.sleep, 60)

    async def cell() -> None:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            ctrl_c.start_sync(run_id="r")
        assert time.monotonic() - began < 10

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(cell())
    finally:
        loop.close()
    assert kb.open(storage)["r"].state == "interrupted"
    assert storage.holder("r") is None


# ---------------------------------------------------------------------------------- children


def test_a_child_workflow_is_a_step_that_returns_its_result(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="child")
    async def child(ctx: kb.Context, ask: bool, fail: bool = False) -> Any:
        if ask:
            await ctx.suspend("approval")
        if fail:
            await ctx.step("boom", lambda: 1 / 0)
        return await ctx.step("work", lambda: "worked")

    @kassette(storage=storage, name="parent")
    async def parent(ctx: kb.Context, ask: bool, fail: bool = False) -> Any:
        async def run_child() -> Any:
            return (await child.start(ask, fail, run_id=f"{ctx.run_id}.child")).result

        return await ctx.step("child", run_child)

    async def scenario() -> None:
        assert (await parent.start(False, run_id="a")).result == "worked"
        with pytest.raises(InterruptedRunError, match=r"'b\.child' waits for 'approval'"):
            await parent.start(True, run_id="b")
        await child.resume("b.child", "approval", None)
        assert (await parent.start(run_id="b")).result == "worked"
        failed = await parent.start(False, True, run_id="c")
        assert failed.error is not None
        assert failed.error.name == "ZeroDivisionError"
        with pytest.raises(StepFailedError):
            _ = failed.result

    asyncio.run(scenario())


def test_a_run_cancelled_from_inside_is_a_named_interruption(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="inside")
    async def inside(ctx: kb.Context) -> None:
        await ctx.step("a", lambda: 1)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    with pytest.raises(InterruptedRunError, match="cancelled from inside"):
        asyncio.run(inside.start(run_id="r"))
    assert kb.open(storage)["r"].state == "interrupted"


def test_an_ended_run_takes_no_retry_of_its_end(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="ends")
    async def ends(ctx: kb.Context) -> int:
        return 1

    async def scenario() -> None:
        await ends.start(run_id="r")
        with pytest.raises(TerminalRunError):
            await ends.cancel("r")

    asyncio.run(scenario())


def test_a_run_that_is_called_off_while_its_loop_is_busy_ends_cancelled(
    storage: MemoryStorage,
) -> None:
    begun, seen = threading.Event(), threading.Event()

    @kassette(storage=storage)
    async def busy(ctx: kb.Context) -> int:
        await ctx.step("a", lambda: 1)
        begun.set()
        seen.wait(20)  # the loop stands still, and its workflow has nothing more to ask
        return 1

    run = busy.launch(run_id="r", thread=True)
    begun.wait(20)
    said = asyncio.run(busy.cancel("r", reason="stop"))
    seen.set()
    asyncio.run(run.wait())
    assert said.status == kb.open(storage)["r"].state == "cancelled"
