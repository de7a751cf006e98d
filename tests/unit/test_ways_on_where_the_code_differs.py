"""Verify, record only, answer in a fork: what a panel offers where code and record part."""

from __future__ import annotations

import ast
import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import LocalStorage, MemoryStorage, Workflow, kassette, values
from kassette_nb.entries import Resume, Suspend
from kassette_nb.errors import EventAlreadyAnsweredError, ReplayMismatchError
from kassette_nb.notebook.panel import Panel


class Page:
    """Plays the page of one run's panel."""

    def __init__(self, run: Any, runs: Any = None) -> None:
        self.sent: list[dict[str, Any]] = []
        self.main: dict[str, Any] = {}
        self.panel = Panel(run, self.sent.append, self._publish, runs)
        self.panel.handle({"type": "hello"})

    def _publish(self, summary: dict[str, Any]) -> None:
        self.main = summary

    def act(self, verb: str, **fields: Any) -> dict[str, Any]:
        before = len(self.sent)
        self.panel.handle({"type": "act", "n": "1", "verb": verb, "view": "v", **fields})
        for _ in range(2000):  # verifying answers from a thread
            said = [m for m in self.sent[before:] if m["type"] == "acted"]
            if len(said) == 2:
                return said[1]
            time.sleep(0.01)
        raise TimeoutError(verb)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "ways")


def target(storage: LocalStorage) -> str:
    return f"kb.open({storage.url!r})['r']"


def in_kernel(scenario: Callable[[], Any]) -> None:
    asyncio.run(scenario())


def patcher(storage: Any, first: str = "plan", version: str | None = None) -> Workflow:
    @kassette(storage=storage, name="patcher", version=version)
    async def patches(ctx: kb.Context) -> Any:
        plan = await ctx.step(first, lambda: "the plan")
        answer = await ctx.suspend("apply", prompt="Apply?", context=plan)
        return await ctx.step("applied", lambda: answer)

    return patches


def unload(name: str) -> None:
    kb.workflow.registry.pop(name)


def ways(reply: dict[str, Any]) -> dict[str, dict[str, Any]]:
    assert reply["phase"] == "refused", reply
    found = {way["label"]: way for way in reply["ways"]}
    for way in found.values():
        ast.parse(way["line"], mode="eval")
        assert way["line"].isascii()
    return found


def test_record_only_is_one_resume_line_and_starts_nothing(storage: LocalStorage) -> None:
    async def scenario() -> None:
        await patcher(storage).start(run_id="r")
        patcher(storage, "another plan")
        run = kb.open(storage)["r"]
        page, length = Page(run), len(run.journal.entries)
        click = {"id": "apply", "by": "ana", "note": "go"}
        found = ways(page.act("approve", **click))
        assert list(found) == ["Record only", "Ask again in a fork"]
        assert len(run.journal.entries) == length, "nothing is spent by asking"
        only = found["Record only"]
        said = ".approve(by='ana', note='go', event='apply', start=False)"
        assert only["line"] == target(storage) + said
        assert page.act(**only["message"])["phase"] == "done"
        (line,) = run.journal.entries[length:]
        assert isinstance(line, Resume)
        assert line.by == "ana"
        assert (run.session, storage.holder("r")) == (None, None)
        assert page.main["state"] == "ready"
        late = page.act("reject", id="apply", by="bob")
        assert (late["phase"], "ana" in late["text"]) == ("refused", True)
        assert "ways" not in late
        with pytest.raises(EventAlreadyAnsweredError):
            run.reject(event="apply", start=False)
        patcher(storage)  # the old code again
        await run.resume()
        assert run.result == {"approved": True, "note": "go"}

    in_kernel(scenario)


def test_the_question_is_asked_again_in_a_fork_from_where_the_code_differs(
    storage: LocalStorage,
) -> None:
    async def scenario() -> None:
        await patcher(storage).start(run_id="r")
        patcher(storage, "another plan")
        runs = kb.open(storage)
        page = Page(runs["r"], runs)
        way = ways(page.act("approve", id="apply", by="ana", note=""))["Ask again in a fork"]
        assert "keeps 0 steps, `plan` runs again live" in way["text"]
        assert way["line"] == target(storage) + ".fork(at='plan', start=True)"
        made = page.act(**way["message"])
        assert made["phase"] == "done", made
        fork = runs[made["open"]]
        await fork
        assert fork.waiting_on == ("apply",)
        assert [s.step_id for s in fork.fold().steps] == ["another plan"]
        assert runs["r"].waiting_on == ("apply",), "and stays open here"

    in_kernel(scenario)


def test_of_another_version_the_answer_is_given_in_a_fork(storage: LocalStorage) -> None:
    async def scenario() -> None:
        await patcher(storage, version="1").start(run_id="r")
        patcher(storage, version="2")
        runs = kb.open(storage)
        page, before = Page(runs["r"], runs), storage.read("r")
        found = ways(page.act("reject", id="apply", by="ana", note="too risky"))
        assert list(found) == ["Record only", "Answer in a fork"]
        way = found["Answer in a fork"]
        assert "keeps 1 step up to `apply`" in way["text"]
        assert way["line"] == target(storage) + (
            ".fork(at='apply', answer={'approved': False, 'note': 'too risky'}, by='ana', "
            "note='too risky', start=True)"
        )
        made = page.act(**way["message"])
        assert made["phase"] == "done", made
        fork = runs[made["open"]]
        await fork
        assert fork.result == {"approved": False, "note": "too risky"}
        (decision,) = fork.fold().decisions
        assert (decision.by, decision.note) == ("ana", "too risky")
        assert storage.read("r") == before
        other = eval(way["line"])
        await other
        assert other.result == fork.result

    in_kernel(scenario)


def test_a_form_keeps_its_answer_on_either_way(storage: LocalStorage) -> None:
    def asks(version: str) -> Workflow:
        @kassette(storage=storage, name="asks", version=version)
        async def asks(ctx: kb.Context) -> Any:
            return await ctx.suspend("n", schema={"type": "integer"})

        return asks

    async def scenario() -> None:
        await asks("1").start(run_id="r")
        asks("2")
        runs = kb.open(storage)
        page = Page(runs["r"], runs)
        found = ways(page.act("respond", id="n", fields={"": "7"}, by="ana"))
        made = page.act(**found["Answer in a fork"]["message"])
        await runs[made["open"]]
        assert runs[made["open"]].result == 7
        assert found["Record only"]["line"].endswith(
            ".respond(7, by='ana', event='n', start=False)"
        )
        assert page.act(**found["Record only"]["message"])["phase"] == "done"
        assert values.decode(runs["r"].fold().decisions[-1].value) == 7

    in_kernel(scenario)


def test_an_answer_in_a_fork_is_refused_where_the_code_does_not_fit_that_either(
    storage: LocalStorage,
) -> None:
    async def scenario() -> None:
        await patcher(storage).start(run_id="r")
        patcher(storage, "another plan")
        run = kb.open(storage)["r"]
        with pytest.raises(ReplayMismatchError):
            run.fork(at="apply", answer=True, start=True)
        assert list(storage.list()) == ["r"], "nothing was written"

    in_kernel(scenario)


def test_files_that_differ_leave_both_ways_open(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()

    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tree)
    async def works(ctx: kb.Context) -> Any:
        await ctx.step("one", lambda: (ctx.workspace / "one").write_text("1"))
        answer = await ctx.suspend("go")
        await ctx.step("two", lambda: (ctx.workspace / "two").write_text("2"))
        return [answer["approved"], sorted(p.name for p in ctx.workspace.iterdir())]

    async def scenario() -> None:
        await works.start(run_id="r")
        (tree / "one").write_text("by hand")
        runs = kb.open(tmp_path / "store")
        page = Page(runs["r"], runs)
        found = ways(page.act("approve", id="go", by="ana", note=""))
        assert list(found) == ["Record only", "Answer in a fork"]
        made = page.act(**found["Answer in a fork"]["message"])
        fork = runs[made["open"]]
        await fork
        assert fork.result == [True, ["one", "two"]]
        assert (tree / "one").read_text() == "by hand"

    in_kernel(scenario)


def test_a_doubt_can_be_settled_without_going_on(storage: LocalStorage) -> None:
    @kassette(storage=MemoryStorage("before the crash"), name="deploys")
    async def deploys(ctx: kb.Context) -> Any:
        return await ctx.tool("publish", lambda version: version, version="2.14")

    @kassette(storage=storage, name="deploys")
    async def changed(ctx: kb.Context) -> Any:
        return await ctx.tool("upload", lambda version: version, version="2.14")

    async def scenario() -> None:
        await deploys.start(run_id="r")
        whole = deploys.storage.read("r")
        assert whole is not None
        storage.create("r", b"".join(whole[0].splitlines(keepends=True)[:2]))  # killed in the tool
        runs = kb.open(storage)
        page = Page(runs["r"], runs)
        click = {"id": "publish", "action": "record", "value_text": "1", "attempt": 1, "by": "ana"}
        found = ways(page.act("settle", **click))
        assert list(found) == ["Record only", "Fork there and run"]
        assert "1 tool call may act again" in found["Fork there and run"]["text"]
        assert found["Record only"]["line"].endswith(
            ".settle('record', 1, by='ana', event='publish', start=False, attempt=1)"
        )
        assert page.act(**found["Record only"]["message"])["phase"] == "done"
        assert runs["r"].fold().doubts == []
        assert runs["r"].session is None

    in_kernel(scenario)


def test_verify_says_its_line_writes_nothing_and_offers_the_fork(storage: LocalStorage) -> None:
    async def scenario() -> None:
        await patcher(storage).start(run_id="r")
        runs = kb.open(storage)
        page, before = Page(runs["r"], runs), storage.read("r")
        assert page.main["can"]["verify"] is True
        assert page.main["lines"]["verify"] == target(storage) + ".verify()"
        assert eval(page.main["lines"]["verify"]).fits
        fits = page.act("verify")
        assert fits["phase"] == "done"
        assert fits["text"] == "1 step replayed, 0 live, prefix verified; next is suspend 'apply'"
        patcher(storage, "another plan")
        differs = page.act("verify")
        assert differs["phase"] == "differs"
        assert differs["text"].startswith("0 steps replayed, 0 live; run 'r'")
        assert "another plan" in str(differs["text"])
        (way,) = differs["ways"]
        assert way["line"] == target(storage) + ".fork(at='plan', start=True)"
        assert storage.read("r") == before
        unload("patcher")
        page.panel.refresh()
        assert "not loaded in this kernel" in str(page.main["can"]["verify"])
        assert page.act("verify")["phase"] == "refused"

    in_kernel(scenario)


def test_verify_leaves_the_kernel_free_and_tells_what_the_code_raises(
    storage: LocalStorage,
) -> None:
    stops = False

    @kassette(storage=storage, name="slow")
    async def slow(ctx: kb.Context) -> None:
        await ctx.suspend("go")

    async def scenario() -> None:
        nonlocal stops
        await slow.start(run_id="r")

        @kassette(storage=storage, name="slow")
        async def changed(ctx: kb.Context) -> None:
            time.sleep(0.3)  # noqa: ASYNC251
            if stops:
                raise SystemExit("from the workflow itself")
            await ctx.suspend("go")

        run = kb.open(storage)["r"]
        page = Page(run)
        page.panel.handle({"type": "act", "n": "2", "verb": "verify"})
        page.panel.handle({"type": "value", "offset": 1, "part": "entry"})
        kinds = [m.get("phase", m["type"]) for m in page.sent]
        assert "value" in kinds
        assert "done" not in kinds, "the entry was shown while the code ran"
        while not any(m.get("phase") == "done" for m in page.sent):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        stops = True
        page.panel.handle({"type": "act", "n": "3", "verb": "verify"})
        while not any(m["type"] == "failed" for m in page.sent):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert page.sent[-1]["text"] == "SystemExit: from the workflow itself"
        assert "traceback" in page.sent[-1]

    in_kernel(scenario)


def test_recover_says_goes_on_only_of_what_does(storage: LocalStorage) -> None:
    async def scenario() -> None:
        for run_id in ("fits", "differs"):
            await patcher(storage).start(run_id=run_id)
            kb.open(storage)[run_id].approve(event="apply", by="ana", start=False)
        runs = kb.open(storage)
        first = runs["differs"].journal
        assert isinstance(first.entries[2], Suspend)

        @kassette(storage=storage, name="patcher")
        async def changed(ctx: kb.Context) -> Any:
            name = "plan" if ctx.run_id == "fits" else "another plan"
            await ctx.step(name, lambda: "the plan")
            answer = await ctx.suspend("apply", prompt="Apply?", context="the plan")
            return await ctx.step("applied", lambda: answer)

        told = runs.recover()
        assert told["fits"] == "goes on"
        assert "asks for step 'another plan'" in told["differs"]
        await runs["fits"]
        assert runs["fits"].state == "completed"
        assert runs["differs"].session is None, "nothing was begun"
        assert runs["differs"].journal.entries == first.entries
        assert storage.holder("differs") is None

    in_kernel(scenario)
