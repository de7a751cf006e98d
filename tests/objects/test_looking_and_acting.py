"""Panel, frames, comparison and command line over an object store; the kernel's loop goes on."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from click.testing import CliRunner

import kassette_nb as kb
from kassette_nb import kassette
from kassette_nb.cli import main
from kassette_nb.notebook import follow
from kassette_nb.notebook.panel import Panel
from kassette_nb.storage.objects import ObjectStorage
from tests.objects.proxy import Proxy


def asking(bucket: str) -> kb.Workflow:
    @kassette(storage=ObjectStorage(bucket), name="asking")
    async def asking(ctx: kb.Context) -> Any:
        plan = await ctx.step("plan", lambda: "restart")
        answer = await ctx.suspend("approval", prompt="Restart?", context=plan)
        return await ctx.step("done", lambda: answer)

    return asking


class Page:
    """A page whose messages arrive as Jupyter delivers them."""

    def __init__(self, view: Any) -> None:
        self.view = view
        self.sent: list[dict[str, Any]] = []
        self.threads: set[str] = set()

        def send(message: dict[str, Any], buffers: Any = None) -> None:
            self.threads.add(threading.current_thread().name)
            self.sent.append(message)

        view.send = send

    def says(self, kind: str, **fields: Any) -> None:
        self.view._handle_custom_msg({"ch": "main", "type": kind, **fields}, [])

    def heard(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.sent if message["type"] == kind]


async def until(what: Any, seconds: float = 20) -> None:
    for _ in range(int(seconds / 0.02)):
        if what():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come to that")


def test_a_click_and_what_follows_do_not_hold_up_the_kernel(net: Proxy, bucket: str) -> None:
    async def scenario() -> None:
        await asking(bucket).start(run_id="r")
        view = kb.open(bucket)["r"].panel()
        page = Page(view)
        loop = asyncio.get_running_loop()
        longest, last = 0.0, loop.time()

        async def beat() -> None:
            nonlocal longest, last
            while True:
                now = loop.time()
                longest, last = max(longest, now - last), now
                await asyncio.sleep(0.01)

        net.plan(latency=0.15)
        beating = asyncio.create_task(beat())
        page.says("hello")
        page.says("act", n="1", verb="approve", by="ana", id="approval")
        await until(lambda: len(page.heard("acted")) == 2)
        requests = len(net._call("GET")["log"])
        beating.cancel()
        net.plan()
        assert page.heard("acted")[-1]["phase"] == "done", page.heard("acted")
        assert page.threads <= {"kassette view", "kassette storage"}
        assert requests >= 5, "the click cost so many requests, one after the other"
        assert longest < 0.15 * requests / 2, "the loop waited for them"
        await until(lambda: view.main["state"] == "completed")
        view.close()

    asyncio.run(scenario())
    assert kb.open(bucket)["r"].result == {"approved": True, "note": ""}


def test_a_panel_follows_another_process_with_conditional_gets(
    net: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "INTERVAL_REMOTE", 0.05)

    async def scenario() -> None:
        workflow = asking(bucket)
        await workflow.start(run_id="r")
        view = kb.open(bucket)["r"].panel()
        page = Page(view)
        page.says("hello")
        panel = view._handlers["main"]
        assert isinstance(panel, Panel)
        await until(lambda: panel.follower.following)
        await asyncio.sleep(0.2)
        net.plan()
        await until(lambda: len(net.requests("GET", "/journal.jsonl")) > 5)
        looks = net.requests("GET", "/journal.jsonl")
        answered = {look["status"] for look in looks if look["status"]}  # one may be on its way
        assert answered == {304}, "nothing is read again"
        await workflow.resume("r", "approval", {"approved": True})
        await until(lambda: view.main["state"] == "completed")
        view.close()

    asyncio.run(scenario())


def test_waiting_for_another_process_leaves_the_loop_alone(net: Proxy, bucket: str) -> None:
    async def scenario() -> None:
        await asking(bucket).start(run_id="r")
        hold = ObjectStorage(bucket).hold("r", "process 1 on elsewhere")
        net.plan(latency=0.1)
        waiting = asyncio.ensure_future(_awaited(kb.open(bucket)["r"]))
        began, turns = asyncio.get_running_loop().time(), 0
        while asyncio.get_running_loop().time() < began + 0.5:
            await asyncio.sleep(0.01)
            turns += 1
        assert turns > 15, "the loop waited for the store"
        assert not waiting.done()
        net.plan()
        await asyncio.to_thread(hold.release)
        assert (await waiting).state == "suspended"

    asyncio.run(scenario())


async def _awaited(run: kb.Run) -> kb.Run:
    return await run


def test_the_browser_looks_at_all_runs_with_one_listing(net: Proxy, bucket: str) -> None:
    async def scenario() -> None:
        workflow = asking(bucket)
        for number in range(5):
            await workflow.start(run_id=f"r{number}")
        view = kb.open(bucket).panel()
        browser: Any = view._handlers["main"]
        assert view.main["total"] == 5
        first = browser.version(False)
        browser._next = 0.0
        net.plan()
        assert browser.version(False) == first
        assert len(net._call("GET")["log"]) == 1
        await workflow.resume("r3", "approval", None)
        browser._next = 0.0
        assert browser.version(False) != first
        view.close()

    asyncio.run(scenario())


def test_frames_and_comparisons_over_an_object_store(bucket: str) -> None:
    workflow = asking(bucket)
    asyncio.run(workflow.start(run_id="r"))
    runs = kb.open(bucket)
    fork = runs["r"].fork(override={"plan": "drain"}, label="drain instead")
    asyncio.run(workflow.start(run_id=fork.run_id))
    asyncio.run(workflow.resume(fork.run_id, "approval", True))
    assert list(runs.frame()["state"]) == ["suspended", "completed"]
    assert list(runs.steps()["step_id"]) == ["plan", "plan", "done"]
    compared = kb.compare([runs["r"], runs[fork.run_id]]).frame()
    assert set(compared["run_id"]) == {"r", fork.run_id}
    assert [run.run_id for run in runs.forks_of("r")] == [fork.run_id]
    assert "s3://" in runs.html()


def test_the_command_line_over_an_object_store(bucket: str) -> None:
    workflow = asking(bucket)
    asyncio.run(workflow.start(run_id="r"))

    def called(*arguments: str) -> str:
        result = CliRunner().invoke(main, ["--storage", bucket, *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    assert json.loads(called("list")) == {"runId": "r"}
    assert json.loads(called("status", "r"))["runId"] == "r"
    assert json.loads(called("fork", "r", "--from-step", "plan")) == {"runId": "r.2"}
    assert called("dump", "r").count("\n") == 3
    called("approve", "r", "--by", "ana")
    assert asyncio.run(workflow.start(run_id="r")).status == "success"
    assert kb.open(bucket)["r"].fold().decisions[-1].by == "ana"
    refused = CliRunner().invoke(main, ["--storage", bucket, "status", "nope"])
    assert refused.exit_code == 1
    assert f"no run 'nope' in {bucket}" in refused.output


def test_an_answer_for_a_run_that_another_holds_is_busy_not_a_fencing(bucket: str) -> None:
    workflow = asking(bucket)
    asyncio.run(workflow.start(run_id="r"))
    other = ObjectStorage(bucket)
    hold = other.hold("r", "process 1 on elsewhere")
    for act in (
        lambda: kb.open(bucket)["r"].approve(),
        lambda: kb.open(bucket)["r"].cancel(),
        lambda: asyncio.run(workflow.cancel("r")),
        lambda: asyncio.run(workflow.resume("r", "approval", True)),
    ):
        with pytest.raises(kb.errors.RunBusyError) as busy:
            act()
        assert busy.value.holder == "process 1 on elsewhere"
    assert kb.open(bucket)["r"].state == "running"
    hold.check()  # the living one has lost nothing
    hold.release()
    assert kb.open(bucket)["r"].approve(by="ana").run_id == "r"
