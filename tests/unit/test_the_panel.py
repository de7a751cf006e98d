"""The panel without a browser: messages in, messages out, and the journal as the only truth."""

import ast
import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import MemoryStorage, Workflow, kassette
from kassette_nb.notebook import follow
from kassette_nb.notebook.panel import Panel
from kassette_nb.notebook.view import View

GOLDEN = Path(__file__).parent.parent / "golden"


class Page:
    """Plays the page: sends messages to a view and keeps what comes back."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.sent: list[dict[str, Any]] = []
        view.send = lambda message, buffers=None: self.sent.append(message)
        self.ask("hello")

    def ask(self, kind: str, ch: str = "main", **fields: Any) -> list[dict[str, Any]]:
        before = len(self.sent)
        self.view.handle({"ch": ch, "type": kind, **fields})
        assert self.view.last_error is None, self.view.last_error
        return self.sent[before:]

    def act(self, verb: str, **fields: Any) -> dict[str, Any]:
        replies = [m for m in self.ask("act", n="1", verb=verb, **fields) if m["type"] == "acted"]
        assert replies[0]["phase"] == "received"
        return replies[1]

    @property
    def main(self) -> dict[str, Any]:
        summary: dict[str, Any] = self.view.main
        return summary

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for message in self.sent:
            if message["type"] == "rows" and message["ch"] == "main":
                rows = rows[: message["from"]] + message["rows"]
        return rows


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage("panel")


def patcher(storage: MemoryStorage, **suspend: Any) -> Workflow:
    @kassette(storage=storage, name="patcher")
    async def patcher(ctx: kb.Context) -> Any:
        plan = await ctx.step("plan", lambda: "-old\n+new\n")
        answer = await ctx.suspend("apply", prompt="Apply?", context=plan, **suspend)
        return await ctx.step("applied", lambda: answer)

    return patcher


def in_kernel(scenario: Callable[[], Any]) -> None:
    """Run as a kernel does: in a running loop, with clicks handled on it."""

    async def run() -> None:
        made = scenario()
        if asyncio.iscoroutine(made):
            await made

    asyncio.run(run())


def test_a_click_on_approve_is_one_line_and_the_run_goes_on_here(storage: MemoryStorage) -> None:
    async def scenario() -> None:
        await patcher(storage).start(run_id="r")
        run = kb.open(storage)["r"]
        page = Page(run.panel())
        (question,) = page.main["questions"]
        assert question["context"]["format"] == "diff"
        assert question["form"]["kind"] == "approval"
        reply = page.act("approve", id="apply", by="ana", note="go")
        assert reply["phase"] == "done"
        await run
        page.view._handlers["main"].follower.poll()  # type: ignore[attr-defined]
        assert page.main["state"] == "completed"
        (decision,) = page.main["decisions"]
        assert (decision["text"], decision["by"]) == ("approved", "ana")
        assert run.result == {"approved": True, "note": "go"}
        assert [row["id"] for row in page.rows()] == ["plan", "apply", "applied", "result"]

    in_kernel(scenario)


def test_a_click_from_another_thread_is_recorded_at_once_and_the_run_waits_for_the_loop(
    storage: MemoryStorage,
) -> None:
    threads: list[str] = []

    async def where() -> None:
        threads.append(threading.current_thread().name)

    @kassette(storage=storage, name="elsewhere")
    async def elsewhere(ctx: kb.Context) -> None:
        await ctx.suspend("apply")
        await ctx.step("where", where)

    async def scenario() -> None:
        await elsewhere.start(run_id="r")
        run = kb.open(storage)["r"]
        page = Page(run.panel())
        recorded: list[str] = []

        def click() -> None:
            asyncio.run(beside())  # a subshell has a loop of its own

        async def beside() -> None:
            assert page.act("approve", id="apply", by="ana", note="")["phase"] == "done"
            found = storage.read("r")
            assert found is not None
            recorded.append(found[0].splitlines()[-1].decode())

        thread = threading.Thread(target=click, name="subshell")
        thread.start()
        thread.join()  # the loop is blocked meanwhile, as by a cell
        assert '"type":"resume"' in recorded[0], "recorded, and not gone on with"
        await run
        assert run.state == "completed"

    in_kernel(scenario)
    assert threads == [threading.main_thread().name]


def test_a_second_click_is_told_who_was_first(storage: MemoryStorage) -> None:
    async def scenario() -> None:
        await patcher(storage).start(run_id="r")
        run = kb.open(storage)["r"]
        one, two = Page(run.panel()), Page(run.panel())
        assert one.act("approve", id="apply", by="ana", note="")["phase"] == "done"
        before = storage.read("r")
        late = two.act("reject", id="apply", by="bob", note="")
        assert late["phase"] == "refused"
        assert "answered first by ana" in late["text"]
        assert storage.read("r") == before
        await run

    in_kernel(scenario)


def test_where_the_code_is_not_loaded_the_answer_is_recorded_alone(tmp_path: Path) -> None:
    path = tmp_path / "INC-4900-suspended.jsonl"
    path.write_bytes((GOLDEN / "good" / path.name).read_bytes())
    page = Page(kb.open(tmp_path)[path.stem].panel())
    assert page.main["code"]["state"] == "none"
    assert page.act("approve", id="human-approval", by="ana", note="")["phase"] == "done"
    assert page.main["state"] == "ready"
    assert path.read_bytes().count(b"\n") == 4


def test_code_that_no_longer_fits_does_not_spend_the_answer(storage: MemoryStorage) -> None:
    async def scenario() -> None:
        await patcher(storage).start(run_id="r")

        @kassette(storage=storage, name="patcher")
        async def changed(ctx: kb.Context) -> None:
            await ctx.step("another plan", lambda: 1)

        before = storage.read("r")
        page = Page(kb.open(storage)["r"].panel())
        reply = page.act("approve", id="apply", by="ana", note="")
        assert reply["phase"] == "refused"
        assert "asks for step 'another plan'" in reply["text"]
        assert storage.read("r") == before
        assert storage.holder("r") is None

    in_kernel(scenario)


FORM = {
    "type": "object",
    "properties": {
        "score": {"type": "integer"},
        "share": {"type": "number"},
        "sure": {"type": "boolean"},
        "desk": {"enum": ["retail", 7]},
        "why": {"type": "string"},
    },
    "required": ["score"],
}


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        (
            {"score": "9007199254740993", "share": "0.5", "sure": "true", "desk": "7", "why": ""},
            {"score": 9007199254740993, "share": 0.5, "sure": True, "desk": 7},
        ),
        ({"score": "x"}, "field 'score': 'x' is not an integer"),
        ({"score": ""}, "'score' is a required property"),
        ({"score": "1", "share": "true"}, "field 'share'"),
        ({"score": "1", "desk": "other"}, "not one of retail, 7"),
        ({"score": "1", "more": "x"}, "field 'more': is not a field"),
    ],
)
def test_a_form_becomes_its_value_or_names_the_field(
    storage: MemoryStorage, fields: dict[str, str], answer: Any
) -> None:
    async def scenario() -> None:
        await patcher(storage, schema=FORM).start(run_id="r")
        run = kb.open(storage)["r"]
        page = Page(run.panel())
        assert page.main["questions"][0]["form"]["kind"] == "fields"
        reply = page.act("respond", id="apply", by="", note="", fields=fields)
        if isinstance(answer, str):
            assert reply["phase"] == "refused"
            assert answer in reply["text"]
            assert run.state == "suspended"
        else:
            assert reply["phase"] == "done"
            await run
            assert run.result == answer

    in_kernel(scenario)


def test_any_other_schema_is_a_json_editor_that_is_checked(storage: MemoryStorage) -> None:
    async def scenario() -> None:
        await patcher(storage, schema={"type": "array", "items": {"type": "integer"}}).start(
            run_id="r"
        )
        run = kb.open(storage)["r"]
        page = Page(run.panel())
        assert page.main["questions"][0]["form"]["kind"] == "json"
        for text, reason in (("[1", "not valid JSON"), ('["a"]', "is not of type 'integer'")):
            reply = page.act("respond", id="apply", by="", note="", value_text=text)
            assert (reply["phase"], reason in reply["text"]) == ("refused", True)
        assert page.act("respond", id="apply", value_text="[1]")["phase"] == "done"
        await run
        assert run.result == [1]

    in_kernel(scenario)


def test_forking_and_changing_a_result_from_the_panel(storage: MemoryStorage) -> None:
    async def scenario() -> None:
        await patcher(storage).start(run_id="r")
        page = Page(kb.open(storage)["r"].panel())
        value = page.ask("value", offset=1, part="result")[0]
        assert value["text"] == "-old\n+new\n"
        line = f"kb.open({storage.url!r})['r'].fork(at='plan', start=True)"
        assert value["lines"]["fork"] == line
        reply = page.act("fork", offset=1, override_text="-old\n+other\n", start=True, label="b")
        assert (reply["phase"], reply["open"]) == ("done", "r.2")
        fork = kb.open(storage)["r.2"]
        await fork
        assert fork["plan"].value == "-old\n+other\n"
        assert fork.waiting_on == ("apply",)
        only = page.act("fork", offset=2, override_text=None, start=False, label=None)
        assert kb.open(storage)[only["open"]].state == "ready"
        page.ask("open", run_id="r.2")
        assert page.view.detail["run_id"] == "r.2"
        page.ask("close")
        assert page.view.detail is None

    in_kernel(scenario)


def test_an_interrupted_run_continues_from_the_panel(storage: MemoryStorage) -> None:
    async def scenario() -> None:
        workflow = patcher(storage)
        await workflow.start(run_id="r")
        made = await workflow.fork("r", at="apply")
        run = kb.open(storage)[made]
        page = Page(run.panel())
        assert page.main["can"]["go_on"] is True
        assert page.act("go_on")["phase"] == "done"
        await run
        assert run.state == "suspended"
        assert page.act("go_on")["phase"] == "refused"
        assert page.act("cancel", reason="not needed")["phase"] == "done"
        assert page.main["state"] == "cancelled"
        assert page.act("approve", id="apply", by="", note="")["phase"] == "refused"

    in_kernel(scenario)


def follows(panel: Panel) -> bool:
    """A call, since a type checker takes a property that was true to stay true."""
    return panel.follower.following


def test_the_panel_follows_another_writer_while_somebody_looks(
    storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "INTERVAL", 0.01)
    monkeypatch.setattr(follow, "PROBE", 0.0)
    monkeypatch.setattr(follow, "SILENCE", 0.3)

    async def scenario() -> None:
        workflow = patcher(storage)
        await workflow.start(run_id="r")
        view = kb.open(storage)["r"].panel()
        page = Page(view)
        panel = view._handlers["main"]
        assert isinstance(panel, Panel)
        assert follows(panel)
        await asyncio.sleep(0.4)
        assert not follows(panel), "nobody has looked for a while"
        page.ask("here", view="a")
        page.ask("here", view="b")
        page.ask("gone", view="a")
        assert follows(panel), "the other view is still there"
        await workflow.resume("r", "apply", {"approved": True})
        for _ in range(50):
            await asyncio.sleep(0.01)
            if page.main["state"] == "completed":
                break
        assert page.main["state"] == "completed"
        assert page.rows()[-1]["kind"] == "complete"
        await asyncio.sleep(0.03)
        assert not follows(panel), "nothing can be added to a run that has ended"
        view.close()

    in_kernel(scenario)


def test_an_exception_in_a_callback_is_shown_and_kept(storage: MemoryStorage) -> None:
    view = kb.open(GOLDEN / "good")["INC-4821"].panel()
    sent: list[dict[str, Any]] = []
    view.send = lambda message, buffers=None: sent.append(message)
    view.handle({"ch": "main", "type": "open", "run_id": "no-such-run"})
    assert view.last_error is not None
    assert sent[-1]["type"] == "failed"
    assert "no run 'no-such-run'" in sent[-1]["text"]


def test_an_exception_in_a_click_is_kept_too(
    storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    @kassette(storage=storage)
    async def asks(ctx: kb.Context) -> None:
        await ctx.suspend("go")

    async def scenario() -> None:
        await asks.start(run_id="r")
        view = kb.open(storage)["r"].panel()
        sent: list[dict[str, Any]] = []
        view.send = lambda message, buffers=None: sent.append(message)

        def broken(*_: Any, **__: Any) -> None:
            raise LookupError("a bug")

        monkeypatch.setattr(kb.run.Run, "cancel", broken)
        view.handle({"ch": "main", "type": "act", "n": "1", "verb": "cancel"})
        assert isinstance(view.last_error, LookupError)
        assert sent[-1]["text"] == "LookupError: a bug"
        assert "problem" not in sent[-1]
        view.close()

    in_kernel(scenario)


@pytest.mark.parametrize("folder", ["good", "damaged", "hostile"])
def test_every_journal_can_be_shown_and_every_value_asked_for(folder: str) -> None:
    runs = kb.open(GOLDEN / folder)
    Page(runs.panel())
    for run in runs.listed():
        page = Page(run.panel())
        for row in page.rows():
            for part in ("result", "args", "usage", "entry"):
                for kind in ("value", "more"):
                    (value,) = page.ask(kind, offset=row["o"], part=part)
                    assert isinstance(value["text"], str)
        page.ask("value", offset=999, part="result")
        page.ask("search", text="restart")
        assert page.act("no such verb")["phase"] == "refused"


def test_code_lines_run_as_they_stand_whatever_the_journal_says() -> None:
    seen = 0
    for folder in ("good", "hostile"):
        for run in kb.open(GOLDEN / folder).listed():
            page = Page(run.panel())
            lines = [page.main["code_line"], *page.main["lines"].values()]
            for question in page.main["questions"]:
                lines += question["lines"].values()
            for doubt in page.main["doubts"]:
                lines += doubt["lines"].values()
            for row in page.rows():
                (value,) = page.ask("value", offset=row["o"], part="result")
                lines += value.get("lines", {}).values()
            for line in lines:
                assert line.isascii()
                tree = ast.parse(line, mode="eval")
                calls = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)]
                names = {c.attr if isinstance(c, ast.Attribute) else "?" for c in calls}
                assert names <= {
                    "open", "approve", "reject", "respond", "fork", "settle", "retry", "resume",
                    "verify", "cancel",
                }  # fmt: skip
                seen += 1
    assert seen > 40


def test_a_comparison_answers_for_its_cells() -> None:
    runs = kb.open(GOLDEN / "good")
    page = Page(kb.compare([runs["attempt-a"], runs["attempt-b"]]).panel())
    assert page.main["title"] == "2 attempts"
    assert page.main["sub"] == "3 equal steps first, then a difference at edit"
    rows = page.rows()
    names = ["llm", "run python", "llm", "edit", "run pytest", "llm"]
    assert [row["k"] for row in rows] == names
    assert [row["eq"] for row in rows] == [True, True, True, False, False, False]
    (cell,) = page.ask("cell", row=3, run=1, base=0)
    assert cell["format"] == "diff"
    assert "math.ceil" in cell["text"]
    (cell,) = page.ask("cell", row=5, run=1, base=0)
    assert "Give up" in cell["text"]
    (cell,) = page.ask("cell", row=99, run=0)
    assert cell["format"] == "none"
    assert page.main["total"]["cost"] == pytest.approx(0.0378)


def test_the_browser_groups_what_waits_first() -> None:
    page = Page(kb.open(GOLDEN / "good").panel())
    groups = [row["group"] for row in page.rows()]
    assert groups == sorted(groups, key=["waits", "running", "trouble", "stopped", "rest"].index)
    assert groups.count("waits") == 2
    page.ask("open", run_id="attempt-a")
    page.ask("hello", ch="detail")
    assert [fork["run_id"] for fork in page.view.detail["forks"]] == ["attempt-b"]
    in_doubt = next(row for row in page.rows() if row["id"] == "in-doubt")
    assert in_doubt["text"] == "send_email: not known whether it happened"


def test_a_run_that_can_go_on_is_neither_failed_nor_in_doubt(tmp_path: Path) -> None:
    storage = kb.LocalStorage(tmp_path)

    @kassette(storage=storage, name="stops")
    async def stops(ctx: kb.Context) -> None:
        await ctx.step("look", lambda: 1)
        await ctx.step("act", act)

    def act() -> None:
        raise failure

    failure: BaseException = ValueError("no")
    asyncio.run(stops.start(run_id="failed"))
    asyncio.run(stops.fork("failed", at="act"))
    failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(stops.start(run_id="interrupted"))
    rows = {row["id"]: row for row in Page(kb.open(storage).panel()).rows()}
    assert rows["failed.2"]["state"] == "ready"
    groups = {run_id: made["group"] for run_id, made in rows.items()}
    assert groups == {"failed": "trouble", "interrupted": "stopped", "failed.2": "rest"}


def test_an_empty_storage_says_where_it_looked(tmp_path: Path) -> None:
    page = Page(kb.open(tmp_path / "nothing").panel())
    assert page.main["empty"]["place"].startswith(str(tmp_path / "nothing"))
    assert "no such folder" in page.main["empty"]["place"]
    assert len(page.main["empty"]["lines"]) == 3
    ast.parse("\n".join(page.main["empty"]["lines"][:2]))
