"""Many attempts from one point: what they share is kept, each goes its own way, none is lost."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import kassette_nb as kb
from kassette_nb import LocalStorage, MemoryStorage, Storage, Usage, kassette, with_usage
from kassette_nb.entries import Step
from kassette_nb.workflow import Workflow
from tests.crash.farming import STEPS, farm

ROOT = Path(__file__).parents[2]


def agent(storage: Storage) -> tuple[Workflow, list[str]]:
    """An agent that plans once and acts by its plan, and what it did."""
    did: list[str] = []

    def planned() -> object:
        did.append("plan")
        return with_usage("A", Usage(model="m", cost_usd=0.5))

    def act(what: str, plan: str) -> str:
        did.append(what)
        return plan

    @kassette(storage=storage)
    async def think(ctx, task, model="small"):
        plan = await ctx.step("plan", planned)
        for number in range(3):
            await ctx.step("act", act, f"{plan}{number}{model}", plan)
        return f"{plan} by {model}"

    return think, did


def test_attempts_differ_by_the_result_of_a_step_and_share_what_came_before(
    tmp_path: Path,
) -> None:
    wf, did = agent(LocalStorage(tmp_path))
    wf.start_sync("t", run_id="run")
    del did[:]
    attempts = wf.fork_many("run", at="plan", values=["B", "C", "D"])
    found = attempts.wait(30)
    assert [each.result.value for each in found if each.result] == [
        f"{plan} by small" for plan in "BCD"
    ]
    assert sorted(did) == sorted(f"{plan}{n}small" for plan in "BCD" for n in range(3))
    runs = kb.open(tmp_path)
    assert [runs[run_id].label for run_id in attempts.run_ids] == ["B", "C", "D"]
    assert "3 completed" in attempts.line
    assert "9 steps" in attempts.line


def test_attempts_differ_by_arguments_that_only_the_live_part_sees(tmp_path: Path) -> None:
    wf, did = agent(LocalStorage(tmp_path))
    wf.start_sync("t", run_id="run")
    del did[:]
    attempts = wf.fork_many("run", at="act#2", params=[{"model": "big"}, {"model": "huge"}])
    assert attempts.verification is not None
    assert attempts.verification.line == "2 steps replayed, 0 live, prefix verified"
    assert [each.result.value for each in attempts.wait(30) if each.result] == [
        "A by big",
        "A by huge",
    ]
    assert sorted(did) == ["A1big", "A1huge", "A2big", "A2huge"]


def test_attempts_that_do_not_differ_run_on_the_loop_that_is_there(tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        wf, _ = agent(LocalStorage(tmp_path))
        await wf.start("t", run_id="run")
        attempts = wf.fork_many("run", at="act", n=4, limit=2)
        assert not attempts.done
        return [each.result.status for each in await attempts if each.result]

    assert asyncio.run(scenario()) == ["success"] * 4


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "say how the attempts differ"),
        ({"n": 2, "values": ["x"]}, "say how the attempts differ"),
        ({"n": 0}, "there is no attempt"),
        ({"n": 2, "labels": ["one"]}, "1 labels for 2"),
        ({"at": 3, "values": ["x"]}, "name it with at="),
        ({"at": "plan", "values": ["x", {1, 2}]}, r"values\[1\]"),
        ({"params": [{"model": "big"}, {"modle": "big"}]}, r"params\[1\].*no argument 'modle'"),
        ({"at": "gone", "n": 2}, "no step 'gone'"),
        ({"n": "2"}, "n='2' is no count"),
        ({"n": True}, "n=True is no count"),
        ({"n": 2, "limit": 0}, "limit=0 is no count"),
        ({"n": 2, "limit": "x"}, "limit='x' is no count"),
        ({"n": 2, "via": "dask"}, r"via='dask' has no submit\(\)"),
        ({"n": 2, "via": ThreadPoolExecutor}, "has no submit"),
        ({"at": "plan", "values": "ab"}, "values='ab' is no list"),
        ({"at": "plan", "values": 5}, "values=5 is no list"),
        ({"n": 2, "labels": "ab"}, "labels='ab' is no list"),
        ({"n": 2, "labels": ["a", 1]}, r"labels\[1\] is 1, no text"),
        ({"params": {"model": "big"}}, r"params=.* takes a list of dicts"),
        ({"params": [{"model": "big"}, 1]}, r"params\[1\] is 1, not a dict"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    tmp_path: Path, given: dict[str, Any], told: str
) -> None:
    wf, _ = agent(LocalStorage(tmp_path))
    wf.start_sync("t", run_id="run")
    with pytest.raises(kb.KassetteError, match=told):
        wf.fork_many("run", **{"at": "act", **given})
    assert [p.name for p in tmp_path.glob("*.jsonl")] == ["run.jsonl"]


def test_an_executor_that_takes_no_work_is_told_before_anything_is_written(tmp_path: Path) -> None:
    wf, _ = agent(LocalStorage(tmp_path))
    wf.start_sync("t", run_id="run")
    closed = ThreadPoolExecutor(1)
    closed.shutdown()
    with pytest.raises(kb.KassetteError, match="takes no work: RuntimeError: cannot schedule"):
        wf.fork_many("run", at="act", n=2, via=closed)
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(kb.KassetteError, match="limit= counts attempts in this process"),
    ):
        wf.fork_many("run", at="act", n=2, via=pool, limit=1)
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes,
        pytest.raises(kb.KassetteError, match="put it in a module, or use an executor"),
    ):
        wf.fork_many("run", at="act", n=2, via=processes)
    assert [p.name for p in tmp_path.glob("*.jsonl")] == ["run.jsonl"]


class Unimportable:
    """An executor whose workers cannot import the workflow: each call ends with an error."""

    def __init__(self, takes: int = 9) -> None:
        self.takes = takes

    def submit(self, fn: object, /, *args: object, **kwargs: object) -> Future[object]:
        future: Future[object] = Future()
        if fn is not abs:
            self.takes -= 1
            if self.takes < 0:
                raise RuntimeError("shut meanwhile")
            future.set_exception(pickle.PicklingError("Can't pickle <function think>\nmore"))
        return future


def test_the_handle_says_what_keeps_each_attempt_and_what_to_do(tmp_path: Path) -> None:
    wf, _ = agent(LocalStorage(tmp_path))
    wf.start_sync("t", run_id="run")
    attempts = wf.fork_many("run", at="act", n=3, via=Unimportable(2))
    attempts.wait(5)
    line, stuck, shut = repr(attempts).split("\n")
    assert "3 ready" in line
    assert stuck.startswith("run.2, run.3: PicklingError: Can't pickle <function think>. ")
    assert "put it in a module" in stuck
    assert "without via=" in stuck
    assert shut == "run.4: RuntimeError: shut meanwhile"
    assert set(attempts.reap()) == set(attempts.run_ids)
    attempts.wait(30)
    assert repr(attempts).count("\n") == 0


def test_runs_that_are_there_are_taken_up_under_one_handle(tmp_path: Path) -> None:
    wf, did = agent(LocalStorage(tmp_path))
    wf.start_sync("t", run_id="run")
    forks = [asyncio.run(wf.fork("run", at="act#2")) for _ in range(2)]
    del did[:]
    attempts = wf.take_up(["run", *forks], limit=1)
    assert attempts.run_ids == ("run", *forks)
    assert [each.result.status for each in attempts.wait(30) if each.result] == ["success"] * 3
    assert len(did) == 4
    kassette(storage=LocalStorage(tmp_path), name="other")(_nothing).start_sync(run_id="foreign")
    for given, told in (
        ("run", "takes a list of run ids, not 'run'"),
        ([], "takes a list"),
        (["run", "gone"], "gone"),
        (["foreign"], "is of workflow 'other', not 'think'"),
    ):
        with pytest.raises(kb.KassetteError, match=told):
            wf.take_up(given)


async def _nothing(ctx):
    return None


@pytest.mark.timeout(120)
def test_forks_that_a_killed_script_had_not_begun_are_taken_up(tmp_path: Path) -> None:
    wf = Workflow(farm.definition, tmp_path)
    wf.start_sync(str(tmp_path), run_id="run")
    (tmp_path / "calls").unlink()
    code = (
        "import sys\nfrom kassette_nb.workflow import Workflow\n"
        "from tests.crash.farming import farm\n"
        "wf = Workflow(farm.definition, sys.argv[1])\n"
        "wf.fork_many('run', at='work#2', params=[{'pause': 0.3}] * 6, limit=2).wait()"
    )
    script = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT)
    calls = tmp_path / "calls"
    deadline = time.monotonic() + 60
    while not calls.exists() or len(calls.read_text().split("\n")) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    script.kill()
    script.wait()
    runs = kb.open(tmp_path)
    forks = [run.run_id for run in runs.forks_of("run")]
    states = [runs[run_id].state for run_id in forks]
    assert sorted(states) == ["interrupted"] * 2 + ["ready"] * 4
    assert len(asyncio.run(wf.recover())) == 2  # what nobody began may be there to be looked at
    attempts = wf.take_up(forks)
    found = attempts.wait(60)
    assert [each.result.status for each in found if each.result] == ["success"] * 6
    for run_id in forks:
        steps = [e for e in runs[run_id].journal.entries if isinstance(e, Step)]
        assert len(steps) == STEPS


def test_code_that_no_longer_fits_is_told_before_a_fork_is_made(tmp_path: Path) -> None:
    wf, _ = agent(LocalStorage(tmp_path))
    wf.start_sync("t", run_id="run")

    @kassette(storage=LocalStorage(tmp_path), name="think")
    async def changed(ctx, task, model="small"):
        await ctx.step("prepare", lambda: None)

    run = kb.open(tmp_path)["run"]
    with pytest.raises(kb.errors.ReplayMismatchError, match="prepare"):
        changed.fork_many("run", at="act", n=2)
    with pytest.raises(kb.errors.ReplayMismatchError, match="prepare"):
        run.fork(at="act", start=True)
    assert not run.verify().fits
    assert [p.name for p in tmp_path.glob("*.jsonl")] == ["run.jsonl"]
    made = run.fork(at="act")  # not started: a person may want to look, or to bring the code back
    assert made.verification is not None
    assert "prepare" in made.verification.line


def test_threads_of_an_executor_run_attempts_of_a_notebook(tmp_path: Path) -> None:
    wf, _ = agent(MemoryStorage("attempts"))
    wf.start_sync("t", run_id="run")
    with ThreadPoolExecutor(2) as pool:
        attempts = wf.fork_many("run", at="act", n=3, via=pool)
        assert [each.result.status for each in attempts.wait(30) if each.result] == ["success"] * 3


def test_a_workflow_travels_by_its_name_and_keeps_its_options(tmp_path: Path) -> None:
    here = Workflow(farm.definition, tmp_path).with_options(label="far", fingerprint="f")
    there = pickle.loads(pickle.dumps(here))
    assert there.definition == here.definition
    assert there.storage.place == here.storage.place


def test_a_workflow_of_a_notebook_travels_with_its_function(tmp_path: Path) -> None:
    wf, _ = agent(LocalStorage(tmp_path))
    wf.start_sync("t", run_id="run")
    made = asyncio.run(wf.fork("run", at="act#3"))
    (tmp_path / "workflow").write_bytes(cloudpickle.dumps(wf))
    code = (
        "import sys, pickle; wf = pickle.load(open(sys.argv[1], 'rb')); "
        "print(wf.start_sync(run_id=sys.argv[2]).value)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "workflow"), made],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout == "A by small\n"


@pytest.mark.timeout(120)
def test_what_a_killed_worker_left_behind_is_taken_up_again(tmp_path: Path) -> None:
    wf = Workflow(farm.definition, tmp_path)
    wf.start_sync(str(tmp_path), run_id="run")
    (tmp_path / "calls").unlink()
    params = [{"weight": number, "deadly": ".3"} for number in range(4)]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        attempts = wf.fork_many("run", at="work#2", params=params, via=pool)
        first = attempts.wait(60)
    lost = [each.run_id for each in first if each.result is None]
    assert "run.3" in lost
    assert all(each.error is not None for each in first if each.result is None)
    assert set(attempts.reap()) == set(lost)
    assert attempts.reap() == ()
    found = attempts.wait(60)
    assert [each.result.value for each in found if each.result] == [
        {"total": 1 + number * (STEPS - 1)} for number in range(4)
    ]
    runs = kb.open(tmp_path)
    for run_id in attempts.run_ids:
        steps = [e for e in runs[run_id].journal.entries if isinstance(e, Step)]
        assert len(steps) == STEPS
    called = (tmp_path / "calls").read_text().split("\n")[:-1]
    # At least once: only the step in which the worker died was called twice.
    assert len(called) <= 4 * (STEPS - 1) + len(lost)


def test_a_memory_of_this_process_is_not_offered_to_others() -> None:
    wf, _ = agent(MemoryStorage("not-there"))
    wf.start_sync("t", run_id="run")
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(kb.KassetteError, match="this process's memory"),
    ):
        wf.fork_many("run", at="act", n=1, via=pool)


def test_attempts_of_which_one_does_not_fit_are_refused_before_the_first_is_written() -> None:
    storage = MemoryStorage()

    @kassette(storage=storage)
    async def asks(ctx, prompt="a"):
        await ctx.step(f"read {prompt}", lambda: 1)
        await ctx.step("end", lambda: 2)

    asks.start_sync(run_id="run")
    with pytest.raises(kb.errors.ReplayMismatchError):
        asks.fork_many("run", at="end", params=[{"prompt": "a"}, {"prompt": "b"}])
    assert list(storage.list()) == ["run"]


def test_a_second_fork_is_made_while_the_first_is_at_work(tmp_path: Path) -> None:
    release = threading.Event()

    @kassette(storage=LocalStorage(tmp_path))
    async def works(ctx):
        await ctx.step("first", lambda: 1)
        await ctx.step("second", release.wait, 20)

    release.set()
    works.start_sync(run_id="run")
    release.clear()
    run = kb.open(tmp_path)["run"]
    busy = run.fork(at="second", start=True)
    try:
        assert run.fork(at="second").run_id == "run.3"
    finally:
        release.set()
        asyncio.run(_settled(busy))


async def _settled(run: Any) -> None:
    await run


def test_a_workflow_that_is_not_called_like_its_function_is_sent_by_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "apart.py").write_text(
        "from kassette_nb import kassette\n"
        "async def raw(ctx): return await ctx.step('a', lambda: 1)\n"
        f"made = kassette(storage={str(tmp_path / 'runs')!r})(raw)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import apart  # type: ignore[import-not-found]

    made: Workflow = apart.made
    assert pickle.loads(pickle.dumps(made)).definition.fn is made.definition.fn
    made.start_sync(run_id="run")
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        attempts = made.fork_many("run", at="a", n=1, via=pool)
        attempts.wait(60)
    assert kb.open(tmp_path / "runs")["run.2"].state == "completed"
