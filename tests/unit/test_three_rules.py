"""A ctx belongs to its task; a session that ends is closed; what it started is settled first."""

import asyncio
import threading
import time
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import MemoryStorage, Suspended, kassette
from kassette_nb.errors import ConcurrentUseError, InterruptedRunError, KassetteError
from kassette_nb.storage import LocalStorage
from tests.waiting import until_recorded


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage("rules")


def types(storage: Any, run_id: str = "r") -> list[str]:
    found = storage.read(run_id)
    return [line.split(b'"')[3].decode() for line in found[0].splitlines()] if found else []


async def nothing() -> None: ...


def test_calls_from_gathered_tasks_are_refused_before_anything_runs(
    storage: MemoryStorage,
) -> None:
    ran: list[int] = []

    @kassette(storage=storage, name="gathers")
    async def gathers(ctx: kb.Context) -> None:
        await asyncio.gather(ctx.step("a", ran.append, 1), ctx.step("b", ran.append, 2))

    with pytest.raises(ConcurrentUseError, match="another task"):
        asyncio.run(gathers.start(run_id="r"))
    assert ran == []
    assert list(storage.list()) == []


def test_a_call_during_another_one_is_refused_and_closes_the_session(
    storage: MemoryStorage,
) -> None:
    @kassette(storage=storage, name="nested")
    async def nested(ctx: kb.Context) -> None:
        async def inner() -> None:
            await ctx.step("inner", nothing)

        await ctx.step("outer", inner)

    with pytest.raises(ConcurrentUseError, match="step 'outer' is still in flight"):
        asyncio.run(nested.start(run_id="r"))
    assert types(storage) == ["start"]


def test_a_ctx_call_from_a_thread_is_refused(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="threads")
    async def threads(ctx: kb.Context) -> None:
        await ctx.step("outer", lambda: asyncio.run(ctx.step("inner", nothing)))

    with pytest.raises(ConcurrentUseError):
        asyncio.run(threads.start(run_id="r"))
    assert types(storage) == ["start"]


def test_nothing_runs_in_finally_after_a_suspension(storage: MemoryStorage) -> None:
    ran: list[str] = []

    @kassette(storage=storage, name="cleans")
    async def cleans(ctx: kb.Context) -> str:
        try:
            await ctx.suspend("approval")
        finally:
            await ctx.step("clean up", ran.append, "cleaned")
        return "done"

    async def scenario() -> None:
        assert (await cleans.start(run_id="r")).status == "suspended"
        assert ran == []
        assert (await cleans.resume("r", "approval", True)).result == "done"

    asyncio.run(scenario())
    assert ran == ["cleaned"]
    assert types(storage) == ["start", "suspend", "resume", "step", "complete"]


def test_a_suspension_that_the_workflow_swallows_still_suspends(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="swallows")
    async def swallows(ctx: kb.Context) -> str:
        try:
            await ctx.suspend("approval")
        except BaseException:
            return "carried on regardless"
        return "answered"

    assert asyncio.run(swallows.start(run_id="r")).status == "suspended"
    assert types(storage) == ["start", "suspend"]


def test_suspended_raised_by_hand_is_an_interruption(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="by_hand")
    async def by_hand(ctx: kb.Context) -> None:
        raise Suspended("r", "x")

    with pytest.raises(InterruptedRunError, match="raised by hand"):
        asyncio.run(by_hand.start(run_id="r"))


def test_an_error_of_ours_that_leaves_the_workflow_leaves_the_run_open(
    storage: MemoryStorage,
) -> None:
    @kassette(storage=storage, name="ours")
    async def ours(ctx: kb.Context) -> None:
        await ctx.step("a", nothing)
        raise KassetteError("something of ours")

    with pytest.raises(KassetteError, match="something of ours"):
        asyncio.run(ours.start(run_id="r"))
    assert types(storage) == ["start", "step"]


def test_a_cancelled_async_step_is_not_recorded_and_the_run_goes_on_later(
    storage: MemoryStorage,
) -> None:
    slow = True

    async def call() -> str:
        if slow:
            await asyncio.sleep(60)
        return "paid"

    @kassette(storage=storage, name="cancelled")
    async def cancelled(ctx: kb.Context) -> Any:
        return await ctx.step("call", call)

    async def scenario() -> None:
        nonlocal slow
        task = asyncio.create_task(cancelled.start(run_id="r"))
        await until_recorded(storage)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert types(storage) == ["start"]
        assert storage.holder("r") is None
        slow = False
        assert (await cancelled.start(run_id="r")).result == "paid"

    asyncio.run(scenario())


def test_the_workflows_own_timeout_around_a_step_interrupts_and_writes_no_ending(
    storage: MemoryStorage,
) -> None:
    @kassette(storage=storage, name="timeouts")
    async def timeouts(ctx: kb.Context) -> str:
        try:
            async with asyncio.timeout(0.02):
                await ctx.step("slow", asyncio.sleep, 60)
        except TimeoutError:
            await ctx.step("give up", nothing)
        return "gave up"

    with pytest.raises(InterruptedRunError, match="step 'slow' was interrupted"):
        asyncio.run(timeouts.start(run_id="r"))
    assert types(storage) == ["start"]


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_a_thread_that_outlives_its_caller_is_recorded_and_then_frees_the_run(
    storage: Any, kind: str, tmp_path: Any
) -> None:
    if kind == "local":
        storage = LocalStorage(tmp_path)
    started, release = threading.Event(), threading.Event()

    def pay() -> str:
        started.set()
        release.wait(10)
        return "paid"

    @kassette(storage=storage, name="outlives")
    async def outlives(ctx: kb.Context) -> Any:
        return await ctx.step("pay", pay)

    async def scenario() -> None:
        task = asyncio.create_task(outlives.start(run_id="r"))
        while not started.is_set():  # noqa: ASYNC110  # a thread's event
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert storage.holder("r") is not None, "what it started has not returned"

    asyncio.run(scenario())
    assert types(storage) == ["start"]
    release.set()
    deadline = time.monotonic() + 10
    while storage.holder("r") is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert types(storage) == ["start", "step"]
    release.clear()
    assert asyncio.run(outlives.start(run_id="r")).result == "paid"


def test_a_step_that_stops_the_loop_interrupts(storage: MemoryStorage) -> None:
    async def stop() -> None:
        raise KeyboardInterrupt

    @kassette(storage=storage, name="stops")
    async def stops_at_step(ctx: kb.Context) -> None:
        await ctx.step("stop", stop)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(stops_at_step.start(run_id="r"))
    assert types(storage) == ["start"]


def test_generator_functions_are_refused(storage: MemoryStorage) -> None:
    def gives() -> Any:
        yield 1

    @kassette(storage=storage, name="generators")
    async def generators(ctx: kb.Context) -> None:
        await ctx.step("gives", gives)

    with pytest.raises(KassetteError, match="generator function"):
        asyncio.run(generators.start(run_id="r"))
    assert list(storage.list()) == []


def test_a_lambda_around_an_async_function_is_awaited(storage: MemoryStorage) -> None:
    async def answer() -> int:
        return 42

    @kassette(storage=storage, name="lambdas")
    async def lambdas(ctx: kb.Context) -> Any:
        return await ctx.step("ask", lambda: answer())

    assert asyncio.run(lambdas.start(run_id="r")).result == 42


def test_a_task_group_around_calls_is_refused(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="groups")
    async def groups(ctx: kb.Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("a", nothing))

    with pytest.raises(ConcurrentUseError, match=r"ctx\.parallel"):
        asyncio.run(groups.start(run_id="r"))
    assert list(storage.list()) == []


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(
    "error", [StopIteration(1), SystemExit(2), BaseExceptionGroup("g", [ValueError()])]
)
def test_whatever_leaves_a_steps_function_is_recorded_as_its_error(
    storage: MemoryStorage, plain: bool, error: BaseException
) -> None:
    def raises() -> None:
        raise error

    async def async_raises() -> None:
        raise error

    @kassette(storage=storage, name="odd_errors")
    async def odd_errors(ctx: kb.Context) -> str:
        try:
            await ctx.step("odd", raises if plain else async_raises)
        except kb.StepFailedError as failed:
            return failed.name
        return "no error"

    name = asyncio.run(odd_errors.start(run_id="r")).result
    # Python itself turns a StopIteration that leaves a coroutine into a RuntimeError.
    expected = {type(error).__name__} | ({"RuntimeError"} if not plain else set())
    assert name in expected
    assert types(storage) == ["start", "step", "complete"]


def test_a_step_in_a_thread_that_forks_the_process_stays_one_session(tmp_path: Any) -> None:
    import subprocess
    import sys

    storage = LocalStorage(tmp_path)

    def work() -> int:
        return subprocess.run([sys.executable, "-c", "print(1)"], check=True).returncode

    @kassette(storage=storage, name="spawns")
    async def spawns(ctx: kb.Context) -> Any:
        return await ctx.step("work", work)

    assert asyncio.run(spawns.start(run_id="r")).result == 0
    assert storage.holder("r") is None


def test_a_task_group_whose_failure_is_handled_does_not_stop_the_workflow(
    storage: MemoryStorage,
) -> None:
    async def boom() -> None:
        raise ValueError

    @kassette(storage=storage, name="handles")
    async def handles(ctx: kb.Context) -> Any:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(boom())
        except* ValueError:
            pass
        return await ctx.step("after", lambda: "went on")

    assert asyncio.run(handles.start(run_id="r")).result == "went on"


@pytest.mark.parametrize("attempt", range(10))
def test_clean_up_at_the_end_of_the_loop_does_not_act(
    storage: MemoryStorage, attempt: int, caplog: pytest.LogCaptureFixture
) -> None:
    @kassette(storage=storage, name="tidies")
    async def tidies(ctx: kb.Context) -> None:
        try:
            await ctx.step("first", nothing)
            await asyncio.sleep(1)
            await ctx.step("then", nothing)
        finally:
            await ctx.step("tidy", nothing)

    async def main() -> None:
        tidies.launch(run_id="r")
        await asyncio.sleep(0.001 * attempt)

    asyncio.run(main())
    assert "step" not in types(storage)[2:]
    assert caplog.records == [], "an interruption is no unhandled exception"
