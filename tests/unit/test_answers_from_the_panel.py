"""What a panel offers beside yes and no: forms, doubts, budgets, other answers, retries."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import Budget, MemoryStorage, kassette, with_usage
from kassette_nb.entries import Usage
from kassette_nb.errors import JournalValueError
from kassette_nb.notebook import forms
from kassette_nb.notebook.panel import Panel
from tests.browser import scenes


class Page:
    """Plays the page of one run's panel."""

    def __init__(self, run: Any, runs: Any = None) -> None:
        self.sent: list[dict[str, Any]] = []
        self.main: dict[str, Any] = {}
        self.panel = Panel(run, self.sent.append, self._publish, runs)
        self.ask("hello")

    def _publish(self, summary: dict[str, Any]) -> None:
        self.main = summary

    def ask(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        before = len(self.sent)
        self.panel.handle({"type": kind, **fields})
        return self.sent[before:]

    def act(self, verb: str, **fields: Any) -> dict[str, Any]:
        return [m for m in self.ask("act", n="1", verb=verb, **fields) if m["type"] == "acted"][-1]

    def line(self, verb: str, **fields: Any) -> Any:
        return self.ask("line", n="1", verb=verb, **fields)[-1]["text"]

    def value(self, offset: int, part: str = "result") -> dict[str, Any]:
        return self.ask("value", offset=offset, part=part)[-1]


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage("answers")


def in_kernel(scenario: Callable[[], Any]) -> None:
    asyncio.run(scenario())


SCHEMA = {
    "type": "object",
    "properties": {
        "score": {"type": ["integer", "null"], "minimum": 1, "title": "Score"},
        "until": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "days": {"type": "array", "items": {"enum": ["mon", "tue", 3]}},
        "who": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name"],
        },
        "extra": {"type": "array", "items": {"type": "number"}},
    },
    "required": ["score"],
}


def test_a_form_has_a_field_of_the_right_kind_for_each_property() -> None:
    made = forms.form(SCHEMA)
    assert made["kind"] == "fields"
    assert [(f["name"], f["type"]) for f in made["fields"]] == [
        ("score", "integer"), ("until", "date"), ("tags", "list"), ("days", "choices"),
        ("who", "object"), ("extra", "json"),
    ]  # fmt: skip
    assert made["fields"][0]["description"] == "at least 1"
    assert [f["name"] for f in made["fields"][4]["fields"]] == ["name", "age"]
    bare = forms.bare(made)
    assert json.dumps(bare)
    assert all("values" not in field for field in bare["fields"])


@pytest.mark.parametrize(
    ("filled", "answer"),
    [
        (
            {"score": "7", "until": "2026-11-30", "tags": ["a", " ", "b c"], "days": ["3", "mon"],
             "who": {"name": "ana", "age": "40"}, "extra": "[1.5]"},
            {"score": 7, "until": "2026-11-30", "tags": ["a", "b c"], "days": [3, "mon"],
             "who": {"name": "ana", "age": 40}, "extra": [1.5]},
        ),
        ({"score": "7", "until": "", "tags": [], "who": {}, "extra": ""}, {"score": 7}),
        ({"score": "x"}, "field 'score': 'x' is not an integer"),
        ({"score": "7", "until": "30.11."}, "field 'until'"),
        ({"score": "7", "days": ["sun"]}, "field 'days': 'sun' is not one of"),
        ({"score": "7", "who": {"age": "x"}}, "field 'who.age'"),
        ({"score": "7", "who": "ana"}, "field 'who': is not an object"),
        ({"score": "7", "extra": "[1"}, "field 'extra'"),
        ({"score": "7", "more": "x"}, "field 'more': is not a field"),
    ],
)  # fmt: skip
def test_a_filled_in_form_is_a_value_or_names_the_field(filled: Any, answer: Any) -> None:
    if isinstance(answer, str):
        with pytest.raises(JournalValueError, match=answer.replace("(", r"\(")):
            forms.answer(SCHEMA, filled)
    else:
        assert forms.answer(SCHEMA, filled) == answer


@pytest.mark.parametrize(
    ("schema", "typed", "answer"),
    [
        ({"type": "string"}, "yes", "yes"),
        ({"enum": ["a", 2]}, "2", 2),
        ({"type": "integer"}, "9007199254740993", 9007199254740993),
        ({"type": "array", "items": {"type": "string"}}, ["x", "y"], ["x", "y"]),
    ],
)
def test_an_answer_that_is_one_value_has_one_field(schema: Any, typed: Any, answer: Any) -> None:
    assert forms.form(schema)["kind"] == "value"
    assert forms.answer(schema, {"": typed}) == answer


@pytest.mark.parametrize(
    ("action", "text", "result"),
    [
        ("record", '{"live": "yes"}', {"live": "yes"}),
        ("retry", None, {"live": "2.14"}),
        ("fail", "the registry is down", "InDoubtError"),
    ],
)
def test_a_tool_in_doubt_is_settled_by_one_of_three_answers(
    storage: MemoryStorage, action: str, text: str | None, result: Any
) -> None:
    @kassette(storage=MemoryStorage("before the crash"))
    async def deploy(ctx: kb.Context) -> Any:
        return await ctx.tool("publish", lambda version: {"live": version}, version="2.14")

    async def scenario() -> None:
        await deploy.start(run_id="r")
        whole = deploy.storage.read("r")
        assert whole is not None
        storage.create("r", b"".join(whole[0].splitlines(keepends=True)[:2]))  # killed in the tool
        run = kb.open(storage)["r"]
        page = Page(run)
        (doubt,) = page.main["doubts"]
        assert (doubt["name"], doubt["id"]) == ("publish", "publish")
        assert '"2.14"' in doubt["args"]["text"]
        click = {"id": "publish", "action": action, "value_text": text, "attempt": 1}
        said = page.line("settle", **click, by="ana", note="I looked")
        assert said.startswith(f"kb.open('memory:answers')['r'].settle('{action}'")
        assert said.endswith(", by='ana', note='I looked', event='publish', attempt=1)")
        assert all(line.endswith("event='publish', attempt=1)") for line in doubt["lines"].values())
        other = page.act("settle", **{**click, "attempt": 2})
        assert "attempt 1 of 'publish' is in doubt, not attempt 2" in other["text"]
        refused = page.act("settle", id="publish", action="record", value_text="{")
        assert "not valid JSON" in refused["text"]
        reply = page.act("settle", **click, by="ana")
        assert reply["phase"] == "done", reply
        late = page.act("settle", id="publish", action="retry", by="bob")
        assert (late["phase"], "ana" in late["text"]) == ("refused", True)
        await run
        assert (run.error.name if run.error else run.result) == result
        page.panel.refresh()
        decision = page.main["decisions"][-1]
        words = {"record": "it happened", "retry": "to be tried again", "fail": "failed"}
        assert (decision["text"], decision["by"]) == (words[action], "ana")
        assert page.main["doubts"] == []

    in_kernel(scenario)


def test_a_form_that_comes_second_says_who_was_first(storage: MemoryStorage) -> None:
    schema = {"type": "object", "properties": {"amount": {"type": "integer"}}}

    @kassette(storage=storage)
    async def asks(ctx: kb.Context) -> Any:
        return await ctx.suspend("pay", schema=schema)

    async def scenario() -> None:
        await asks.start(run_id="r")
        run = kb.open(storage)["r"]
        ours, theirs = Page(run), Page(run)
        click = {"id": "pay", "fields": {"amount": "3"}}
        assert theirs.act("respond", **click, by="ana")["phase"] == "done"
        late = ours.act("respond", **click, by="bob")
        assert late["phase"] == "refused"
        assert "ana" in late["text"]
        assert "field" not in late["text"]
        await run

    in_kernel(scenario)


def test_a_spent_budget_asks_for_limits_in_a_form(storage: MemoryStorage) -> None:
    @kassette(storage=storage, budget=Budget(max_cost_usd=0.5))
    async def crawl(ctx: kb.Context) -> str:
        for number in range(3):
            await ctx.step(f"page-{number}", lambda: with_usage(1, Usage(cost_usd=0.4)))
        return "all of it"

    async def scenario() -> None:
        await crawl.start(run_id="r")
        run = kb.open(storage)["r"]
        page = Page(run)
        assert page.main["facts"]["limits"]["max_cost_usd"] == 0.5
        (question,) = page.main["questions"]
        assert question["budget"]
        field = question["form"]["fields"][-1]
        assert field["label"] == "dollars, at most"
        assert field["description"] == "$0.50 now, $0.80 spent"
        fields = {"max_cost_usd": "2.5"}
        said = page.line("respond", id=question["id"], fields=fields, by="ana")
        assert said == (
            "kb.open('memory:answers')['r'].respond({'max_cost_usd': 2.5}, by='ana', "
            "event='budget')"
        )
        assert page.act("respond", id=question["id"], fields=fields)["phase"] == "done"
        await run
        assert run.result == "all of it"
        assert kb.open(storage)["r"].fold().own.cost_usd == pytest.approx(1.2)

    in_kernel(scenario)


def test_the_other_answer_is_a_fork_that_keeps_what_came_before(storage: MemoryStorage) -> None:
    @kassette(storage=storage)
    async def patcher(ctx: kb.Context) -> Any:
        plan = await ctx.step("plan", lambda: with_usage("the plan", Usage(cost_usd=0.05)))
        answer = await ctx.suspend("apply", prompt="Apply?", context=plan)
        return await ctx.step("applied", lambda: with_usage(answer, Usage(cost_usd=0.02)))

    async def scenario() -> None:
        await patcher.start(run_id="r")
        runs = kb.open(storage)
        run = runs["r"]
        page = Page(run, runs)
        assert page.act("approve", id="apply", by="ana", note="")["phase"] == "done"
        await run
        page.panel.refresh()
        value = page.value(2)
        assert json.loads(value["text"])["approved"] is True
        assert "approved by ana, entry 3" in value["note"]
        assert value["other_text"] == (
            "keeps 1 step ($0.05, not paid again), `apply` has the other answer and what follows "
            "runs live; the original spent $0.02 after this point"
        )
        before = storage.read("r")
        made = page.act("other", offset=2, override_text='{"approved": false}', start=True)
        assert made["phase"] == "done", made
        fork = runs[made["open"]]
        await fork
        assert fork.result == {"approved": False}
        (decision,) = fork.fold().decisions
        assert decision.offset == 3
        assert fork.source is not None
        assert fork.source.from_offset == 3
        assert storage.read("r") == before, "the source is never touched"
        assert page.act("other", offset=2, override_text="{")["phase"] == "refused"
        assert page.act("other", offset=1, override_text="1")["phase"] == "refused"

    in_kernel(scenario)


def test_another_answer_has_to_fit_the_question(storage: MemoryStorage) -> None:
    @kassette(storage=storage)
    async def asks(ctx: kb.Context) -> Any:
        return await ctx.suspend("n", schema={"type": "integer"})

    async def scenario() -> None:
        await asks.start(run_id="r")
        run = kb.open(storage)["r"]
        with pytest.raises(JournalValueError):
            run.fork(at="n", answer="three")
        made = run.fork(at="n", answer=3, start=True)  # open still: answered in the fork alone
        await made
        assert (made.result, run.state) == (3, "suspended")
        with pytest.raises(kb.errors.ReplayMismatchError):
            run.fork(at="m", answer=3)
        assert sorted(storage.list()) == ["r", "r.2"]

    in_kernel(scenario)


def test_retry_is_offered_where_a_step_failed_and_says_what_it_keeps(
    storage: MemoryStorage,
) -> None:
    attempts: list[int] = []

    def flaky() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionError("reset by peer")
        return "through"

    @kassette(storage=storage)
    async def sends(ctx: kb.Context) -> str:
        await ctx.step("plan", lambda: 1)
        return str(await ctx.step("send", flaky))

    async def scenario() -> None:
        await sends.start(run_id="r")
        runs = kb.open(storage)
        page = Page(runs["r"], runs)
        retry = page.main["can"]["retry"]
        assert retry["text"].startswith("a new run that keeps 1 step and runs `send` again with")
        value = page.value(2)
        assert (value["format"], value["name"]) == ("error", "ConnectionError")
        assert "flaky" in value["traceback"]
        made = page.act("retry")
        assert made["phase"] == "done", made
        fork = runs[made["open"]]
        await fork
        assert fork.result == "through"
        assert page.main["forks"] == [{"run_id": "r.2", "label": None}]

    in_kernel(scenario)


def test_a_fork_of_a_tool_begins_before_its_intent(storage: MemoryStorage) -> None:
    @kassette(storage=storage, budget=Budget(max_cost_usd=1))
    async def deploy(ctx: kb.Context) -> None:
        await ctx.step("plan", lambda: with_usage(1, Usage(cost_usd=0.38)))
        await ctx.tool("publish", lambda: "live")

    async def scenario() -> None:
        await deploy.start(run_id="r")
        runs = kb.open(storage)
        page = Page(runs["r"], runs)
        offset = next(
            e.offset for e in runs["r"].journal.entries if getattr(e, "kind", "") == "tool"
        )
        assert page.value(offset)["fork_text"] == (
            "keeps 1 step ($0.38, not paid again), `publish` runs again live; "
            "budget left $0.62; 1 tool call may act again"
        )
        made = page.act("fork", offset=offset, start=False)
        assert len(runs[made["open"]].journal.entries) == 2

    in_kernel(scenario)


def test_a_model_call_shows_what_is_new_since_the_one_before(tmp_path: Path) -> None:
    scenes.deploy(tmp_path, datetime.now(UTC))
    page = Page(kb.open(tmp_path)["deploy-2.14"])
    value = page.value(3)
    assert value["format"] == "conversation"
    assert [(t["who"], t["new"], t["answer"]) for t in value["turns"]] == [
        ("system", False, False), ("user", False, False), ("assistant", False, False),
        ("tool diff", True, False), ("assistant", True, True),
    ]  # fmt: skip
    assert value["old"] == 3
    assert "diff(" in value["turns"][2]["text"]
    assert "Publish it to stable." in value["text"]
    first = page.value(1)
    assert [t["new"] for t in first["turns"]] == [True, True, True]
    assert page.value(2)["format"] == "code"


@pytest.mark.parametrize(
    ("args", "result", "said"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
         {"content": [{"type": "text", "text": "hello"}]}, ["hi", "hello"]),
        ({"body": {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}},
         {"candidates": [{"content": {"role": "model", "parts": [{"text": "hello"}]}}]},
         ["hi", "hello"]),
        ({"input": "hi", "instructions": "be brief"},
         {"output": [{"type": "message", "role": "assistant",
                      "content": [{"type": "output_text", "text": "hello"}]}]},
         ["be brief", "hi", "hello"]),
        (None, "hello", ["hello"]),
    ],
)  # fmt: skip
def test_the_forms_of_the_providers_are_read(
    tmp_path: Path, args: Any, result: Any, said: list[str]
) -> None:
    scribe = scenes.Scribe(datetime.now(UTC))
    scribe.start()
    scribe.step("ask", result, 1.0, kind="llm", args=args)
    scribe.save(tmp_path, "r")
    page = Page(kb.open(tmp_path)["r"])
    assert [turn["text"] for turn in page.value(1)["turns"]] == said
    rows = [m for m in page.sent if m["type"] == "rows"][-1]["rows"]
    assert rows[0]["p"] == "hello"


def test_images_are_shown_by_what_they_are_and_named_inside_other_values(tmp_path: Path) -> None:
    png = "iVBORw0KGgo" + "A" * 1_021
    svg = "data:image/svg+xml;base64,PHN2Zz4=" + "A" * 400
    scribe = scenes.Scribe(datetime.now(UTC))
    scribe.start()
    scribe.step("plot", {"image/png": png}, 1.0)
    scribe.step("mixed", {"n": 12345678901234567890, "plot": f"data:image/png;base64,{png}"}, 1.0)
    scribe.step("svg", svg, 1.0)
    scribe.save(tmp_path, "r")
    page = Page(kb.open(tmp_path)["r"])
    image = page.value(1)
    assert (image["format"], image["mime"], image["base64"]) == ("image", "image/png", png)
    assert image["text"] == f"<png, {image['bytes']} B>"
    mixed = page.value(2)
    assert '"plot": "<png, 774 B>"' in mixed["text"]
    assert "12345678901234567890" in mixed["text"]
    assert page.value(3)["format"] == "text", "no SVG is ever drawn"


def first(x: int) -> int:
    return x + 1


def second(x: int) -> int:
    return x + 2


def test_the_head_says_whether_the_code_is_the_one_that_recorded(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="counts")
    async def counts(ctx: kb.Context) -> None:
        await ctx.step("one", first, 1)
        await ctx.step("two", lambda: 2)
        await ctx.parallel({"side": lambda: 3})

    async def scenario() -> None:
        await counts.start(run_id="r")
        page = Page(kb.open(storage)["r"])
        assert page.main["code"] == {"state": "same", "text": "code loaded, same"}

        @kassette(storage=storage, name="counts")
        async def again(ctx: kb.Context) -> None:
            await ctx.step("one", first, 1)
            await ctx.step("two", lambda: 3)

        page.panel.refresh()
        assert page.main["code"]["text"] == "code loaded, differs at `two`"
        assert page.main["code"]["offset"] == 2

        @kassette(storage=storage, name="counts")
        async def unknown(ctx: kb.Context) -> None:
            functions = {"one": second}
            await ctx.step("one", functions["one"], 1)
            for first in (second,):  # not the function of that name
                await ctx.step("one", first, 1)

        page.panel.refresh()
        assert page.main["code"] == {"state": "loaded", "text": "code loaded"}, "no claim"

    in_kernel(scenario)


def test_a_finished_tool_shows_the_arguments_of_its_intent(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="publishes")
    async def publish(ctx: kb.Context) -> Any:
        return await ctx.tool("publish", lambda version: "live", version="2.14")

    asyncio.run(publish.start(run_id="r"))
    page = Page(kb.open(storage)["r"])
    assert '"2.14"' in page.value(2, "args")["text"]


def test_a_click_on_a_question_that_was_answered_answers_no_later_one(
    storage: MemoryStorage,
) -> None:
    @kassette(storage=storage)
    async def twice(ctx: kb.Context) -> Any:
        await ctx.suspend("approval", prompt="The test database?")
        return await ctx.suspend("approval", prompt="The production database?")

    async def scenario() -> None:
        await twice.start(run_id="r")
        run = kb.open(storage)["r"]
        ours, theirs = Page(run), Page(run)
        assert theirs.act("approve", id="approval", by="ana")["phase"] == "done"
        await run
        assert run.waiting_on == ("approval#2",)
        for verb, more in (("approve", {}), ("reject", {}), ("respond", {"value_text": "1"})):
            late = ours.act(verb, id="approval", by="bob", **more)
            assert (late["phase"], "ana" in late["text"]) == ("refused", True), late
        assert run.waiting_on == ("approval#2",)
        assert ours.act("approve", id="approval#2", by="bob")["phase"] == "done"
        await run

    in_kernel(scenario)
