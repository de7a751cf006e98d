"""Ten ways in which a resumable agent loop goes wrong, each shown not to happen here."""

import asyncio
import multiprocessing
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import Budget, LocalStorage, MemoryStorage, Usage, kassette, with_usage
from kassette_nb.errors import (
    JournalValueError,
    ReplayMismatchError,
    RunBusyError,
    VersionMismatchError,
)
from kassette_nb.journal import read


def key_of(**args: Any) -> str:
    """Return the key that a tool of a run gets for these arguments."""
    keys: list[str] = []

    def act(idempotency_key: str, **_: Any) -> None:
        keys.append(idempotency_key)

    @kassette(storage=MemoryStorage("keys"), name="keys")
    async def flow(ctx: kb.Context) -> None:
        await ctx.tool("act", act, **args)

    asyncio.run(flow.start(run_id="r"))
    return keys[0]


def test_1_a_replay_writes_nothing() -> None:
    storage = MemoryStorage("replay")

    @kassette(storage=storage, name="flow")
    async def flow(ctx: kb.Context) -> Any:
        await ctx.tool("mail", lambda to: to, to="ana")
        await ctx.step("think", lambda: 1)
        return await ctx.suspend("ok")

    async def scenario() -> None:
        await flow.start(run_id="r")
        before = read(storage, "r").data
        for _ in range(5):
            await flow.start(run_id="r")
            assert (await flow.verify("r")).replayed == 2
        assert read(storage, "r").data == before

    asyncio.run(scenario())


def test_2_an_empty_key_is_refused_because_all_calls_would_share_it() -> None:
    @kassette(storage=MemoryStorage("empty"), name="flow")
    async def flow(ctx: kb.Context) -> None:
        await ctx.with_options(idempotency_key="").tool("mail", lambda: None)

    with pytest.raises(JournalValueError, match="every call would share it"):
        asyncio.run(flow.start(run_id="r"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param({"a": 1, "b": {"x": 1, "y": 2}}, {"b": {"y": 2, "x": 1}, "a": 1}, id="order"),
        pytest.param({"a": [1, 20]}, {"a": [1.0, 2e1]}, id="1 and 1.0"),
        pytest.param({"a": "Zo\u00eb"}, {"a": "Zoe\u0308"}, id="NFC and NFD"),
    ],
)
def test_3_the_same_call_spelled_differently_has_the_same_key(one: Any, other: Any) -> None:
    assert key_of(**one) == key_of(**other)


def test_4_time_in_a_prompt_is_told_unless_it_is_recorded() -> None:
    storage = MemoryStorage("time")
    clock = iter(range(100))
    died: list[int] = []

    def ask(prompt: str, idempotency_key: str) -> str:
        if not died:
            died.append(1)
            raise KeyboardInterrupt
        return prompt

    def flow(name: str, prompt: Callable[[kb.Context], Any]) -> kb.Workflow:
        @kassette(storage=storage, name=name)
        async def body(ctx: kb.Context) -> Any:
            return await ctx.tool("ask", ask, prompt=await prompt(ctx))

        return body

    async def wrong(_: kb.Context) -> str:
        return f"It is {next(clock)}."

    async def right(ctx: kb.Context) -> str:
        return f"It is {await ctx.now()}."

    asking = flow("wrong", wrong)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(asking.start(run_id="wrong"))
    with pytest.raises(ReplayMismatchError, match=r"Time, chance .* belong in steps"):
        asyncio.run(asking.start(run_id="wrong"))

    died.clear()
    asking = flow("right", right)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(asking.start(run_id="right"))
    assert asyncio.run(asking.start(run_id="right")).result.startswith("It is 20")


def test_5_parallel_tools_come_back_in_the_order_of_the_calls() -> None:
    async def act(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    waits = {"call_a": 0.02, "call_b": 0.0, "call_c": 0.01}
    orders = []

    @kassette(storage=MemoryStorage("order"), name="flow")
    async def flow(ctx: kb.Context) -> list[str]:
        def call(seconds: float) -> Callable[[kb.Context], Any]:
            return lambda ctx: ctx.tool("act", act, seconds=seconds)

        found = await ctx.parallel({name: call(s) for name, s in waits.items()})
        orders.append(list(found))
        return list(found)

    assert asyncio.run(flow.start(run_id="r")).result == list(waits)
    assert asyncio.run(flow.verify("r")).fits
    assert orders == [list(waits)] * 2


def test_6_the_footprint_that_is_reported_is_the_one_on_the_disk(tmp_path: Path) -> None:
    @kassette(storage=tmp_path / "runs", name="flow")
    async def flow(ctx: kb.Context) -> None:
        for _ in range(10):
            await ctx.tool("act", lambda text: text, text="x" * 300)

    asyncio.run(flow.start(run_id="r"))
    reported = kb.open(tmp_path / "runs")["r"].entries()["bytes"].sum()
    on_disk = sum(path.stat().st_size for path in (tmp_path / "runs").rglob("*") if path.is_file())
    lock = tmp_path / "runs" / ".locks" / "r.lock"
    assert reported == on_disk - lock.stat().st_size
    assert lock.stat().st_size < 200


def _resume(folder: str, gate: Any, results: Any) -> None:
    @kassette(storage=folder, name="two-workers")
    async def flow(ctx: kb.Context) -> Any:
        answer = await ctx.suspend("ok")
        await ctx.tool("mail", lambda n: open(f"{folder}/mails", "a").write("1\n"), n=1)  # noqa: SIM115
        return answer

    gate.wait()
    try:
        results.put(("won", asyncio.run(flow.resume("r", "ok", True)).status))
    except kb.KassetteError as problem:
        results.put(("lost", type(problem).__name__))


def test_7_of_two_workers_that_resume_one_run_one_acts(tmp_path: Path) -> None:
    folder = str(tmp_path / "runs")

    @kassette(storage=folder, name="two-workers")
    async def flow(ctx: kb.Context) -> Any:
        return await ctx.suspend("ok")

    asyncio.run(flow.start(run_id="r"))
    spawn = multiprocessing.get_context("spawn")
    gate, results = spawn.Barrier(2), spawn.Queue()
    workers = [spawn.Process(target=_resume, args=(folder, gate, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    told = sorted(results.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join()
    assert told[1] == ("won", "success")
    assert told[0][0] == "lost"
    assert told[0][1] in ("EventAlreadyAnsweredError", RunBusyError.__name__)
    assert (tmp_path / "runs" / "mails").read_text() == "1\n"


def test_8_a_budget_is_counted_in_the_journal_not_in_the_process() -> None:
    storage = MemoryStorage("budget")
    paid: list[int] = []

    @kassette(storage=storage, name="flow", budget=Budget(max_cost_usd=1))
    async def flow(ctx: kb.Context) -> None:
        def ask(turn: int) -> Any:
            paid.append(turn)
            return with_usage("answer", Usage(model="m", cost_usd=0.3))

        for turn in range(10):
            await ctx.step("ask", ask, turn)
            if len(paid) in (1, 3) and not ctx.replaying:
                raise KeyboardInterrupt  # the process dies between two turns

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(flow.start(run_id="r"))
    assert asyncio.run(flow.start(run_id="r")).event == "budget"
    assert paid == [0, 1, 2, 3]


def test_9_a_changed_model_or_template_is_refused_and_goes_on_as_a_fork() -> None:
    storage = MemoryStorage("changed")

    @kassette(storage=storage, name="flow", fingerprint="gpt-a, template 1")
    async def flow(ctx: kb.Context) -> Any:
        plan = await ctx.step("plan", lambda: "the paid plan")
        return [plan, await ctx.suspend("ok")]

    asyncio.run(flow.start(run_id="r"))
    changed = flow.with_options(fingerprint="gpt-b, template 1")
    with pytest.raises(VersionMismatchError, match="gpt-b"):
        asyncio.run(changed.resume("r", "ok", True))
    fork = asyncio.run(changed.fork("r", at="ok"))
    asyncio.run(changed.start(run_id=fork))
    done = asyncio.run(changed.resume(fork, "ok", True))
    assert done.result == ["the paid plan", True]


def test_10_a_journal_is_a_copy_of_data_that_others_cannot_read(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "runs")

    @kassette(storage=storage, name="flow")
    async def flow(ctx: kb.Context) -> None:
        await ctx.tool("login", lambda **_: None, user="ana", password="hunter2")

    asyncio.run(flow.start(run_id="r"))
    folder = tmp_path / "runs"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "r.jsonl").stat().st_mode) == 0o600
    assert "hunter2" not in (folder / "r.jsonl").read_text()
