"""Side effects: the intent is durable before the act, and doubt is decided, never guessed."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import MemoryStorage, kassette
from kassette_nb.errors import (
    EventAlreadyAnsweredError,
    EventMismatchError,
    FencedError,
    InDoubtError,
    JournalValueError,
    ReplayMismatchError,
    StepFailedError,
)
from kassette_nb.journal import read
from tests.waiting import outlived

Lines = list[dict[str, Any]]


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage("tools")


def lines(storage: MemoryStorage, run_id: str = "r") -> Lines:
    import msgspec

    journal = read(storage, run_id)
    return [msgspec.json.decode(journal.line(n)) for n in range(len(journal.entries))]


def kinds(storage: MemoryStorage, run_id: str = "r") -> list[str]:
    return [line["type"] for line in lines(storage, run_id)]


class Sink:
    """Acts once per key, as a mail service does, and counts what really happened."""

    def __init__(self, deaths: int = 0) -> None:
        self.sent: list[str | None] = []
        self.calls: list[str | None] = []
        self.deaths = deaths

    def send(self, to: str, *, idempotency_key: str) -> str:
        self.calls.append(idempotency_key)
        if idempotency_key not in self.sent:
            self.sent.append(idempotency_key)
        self._die()
        return f"sent to {to}"

    def shout(self, to: str) -> str:
        self.calls.append(None)
        self.sent.append(None)
        self._die()
        return f"told {to}"

    def _die(self) -> None:
        if self.deaths:
            self.deaths -= 1
            raise KeyboardInterrupt


def mailer(
    storage: MemoryStorage, fn: Callable[..., Any], name: str = "mailer", **options: Any
) -> kb.Workflow:
    @kassette(storage=storage, name=name)
    async def flow(ctx: kb.Context, to: str = "ana") -> Any:
        return await ctx.with_options(**options).tool("mail", fn, to=to)

    return flow


def crash(flow: kb.Workflow, run_id: str = "r") -> None:
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(flow.start(run_id=run_id))


# ------------------------------------------------------------------------------ the straight way


def test_the_intent_is_durable_before_the_function_runs(storage: MemoryStorage) -> None:
    seen: list[list[str]] = []

    def look(to: str) -> str:
        seen.append(kinds(storage))
        return "ok"

    done = asyncio.run(mailer(storage, look).start(run_id="r"))
    assert (done.status, done.result) == ("success", "ok")
    assert seen == [["start", "intent"]]
    assert kinds(storage) == ["start", "intent", "step", "complete"]
    intent, step = lines(storage)[1:3]
    assert intent["args"] == {"to": "ana"}
    assert intent["attempt"] == 1
    assert intent["idempotencyKey"].startswith("k1:")
    assert (step["kind"], step["stepId"]) == ("tool", "mail")
    tool = kb.open(storage)["r"]["mail"]
    assert (tool.value, tool.args) == ("ok", {"to": "ana"})
    assert tool.idempotency_key == intent["idempotencyKey"]


def test_replay_calls_nothing_and_writes_nothing(storage: MemoryStorage) -> None:
    sink = Sink()
    flow = mailer(storage, sink.send)
    first = asyncio.run(flow.start(run_id="r"))
    before = read(storage, "r").data
    assert asyncio.run(flow.verify("r")).fits
    assert asyncio.run(flow.start(run_id="r")) == first
    assert read(storage, "r").data == before
    assert len(sink.calls) == 1


def test_the_function_gets_the_key_only_if_it_takes_it(storage: MemoryStorage) -> None:
    sink = Sink()
    asyncio.run(mailer(storage, sink.send).start(run_id="a"))
    asyncio.run(mailer(storage, sink.shout).start(run_id="b"))
    asyncio.run(mailer(storage, lambda **given: sorted(given)).start(run_id="c"))
    assert kb.open(storage)["c"]["mail"].value == ["to"]
    assert sink.calls == [lines(storage, "a")[1]["idempotencyKey"], None]
    assert lines(storage, "b")[1]["idempotencyKey"]


def test_a_result_that_cannot_be_recorded_is_the_tools_error(storage: MemoryStorage) -> None:
    done = asyncio.run(mailer(storage, lambda to: {1, 2}).start(run_id="r"))
    assert done.status == "failed"
    assert done.error is not None
    assert done.error.name == "JournalValueError"
    assert kinds(storage) == ["start", "intent", "step", "error"]


def test_an_error_of_the_tool_is_recorded_and_raised_again(storage: MemoryStorage) -> None:
    def refuse(to: str) -> None:
        raise ConnectionError("no route")

    caught: list[StepFailedError] = []

    @kassette(storage=storage, name="caught")
    async def flow(ctx: kb.Context) -> str:
        try:
            await ctx.tool("mail", refuse, to="ana")
        except StepFailedError as problem:
            caught.append(problem)
        return "went on"

    assert asyncio.run(flow.start(run_id="r")).result == "went on"
    assert asyncio.run(flow.verify("r")).fits
    assert [problem.name for problem in caught] == ["ConnectionError"] * 2
    assert str(caught[0]) == str(caught[1])


def test_name_and_fn_can_be_arguments_of_the_tools_function(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="named")
    async def flow(ctx: kb.Context) -> Any:
        return await ctx.tool("mail", dict, name="n", fn="f")

    assert asyncio.run(flow.start(run_id="r")).result == {"name": "n", "fn": "f"}


def test_tools_of_one_turn_have_their_intents_in_the_order_of_the_calls(
    storage: MemoryStorage,
) -> None:
    running: list[str] = []
    together = threading.Barrier(4, timeout=10)

    def act(n: int) -> int:
        together.wait()  # only passes when all four run at once
        running.append(str(n))
        return n

    @kassette(storage=storage, name="turn")
    async def flow(ctx: kb.Context) -> dict[str, int]:
        def call(n: int) -> Callable[[kb.Context], Any]:
            return lambda ctx: ctx.tool("act", act, n=n)

        return await ctx.parallel({f"call_{n}": call(n) for n in range(4)})

    done = asyncio.run(flow.start(run_id="r"))
    assert list(done.result.items()) == [(f"call_{n}", n) for n in range(4)]
    intents = [line["stepId"] for line in lines(storage) if line["type"] == "intent"]
    assert intents == [f"call_{n}/act" for n in range(4)]
    assert sorted(running) == list("0123")


def test_an_async_tool_may_have_a_time_limit_and_a_plain_one_may_not(
    storage: MemoryStorage,
) -> None:
    async def hang(to: str) -> None:
        await asyncio.sleep(60)

    done = asyncio.run(mailer(storage, hang, timeout=0.01).start(run_id="a"))
    assert done.error is not None
    assert done.error.name == "TimeoutError"
    with pytest.raises(JournalValueError, match="timeout="):
        asyncio.run(mailer(storage, Sink().send, timeout=1).start(run_id="b"))


# ------------------------------------------------------------------------------------- in doubt


def test_a_tool_that_takes_the_key_runs_again_with_the_same_key(storage: MemoryStorage) -> None:
    sink = Sink(deaths=2)
    flow = mailer(storage, sink.send)
    crash(flow)
    assert kb.open(storage)["r"].fold().doubts[0].step_id == "mail"
    crash(flow)
    assert asyncio.run(flow.start(run_id="r")).result == "sent to ana"
    assert len(sink.calls) == 3
    assert len(sink.sent) == 1
    assert [line["attempt"] for line in lines(storage) if line["type"] == "intent"] == [1, 2, 3]
    assert not kb.open(storage)["r"].fold().doubts


def test_a_tool_without_a_key_asks_a_person(storage: MemoryStorage) -> None:
    sink = Sink(deaths=1)
    flow = mailer(storage, sink.shout)
    crash(flow)
    asked = asyncio.run(flow.start(run_id="r"))
    assert (asked.status, asked.event) == ("suspended", "mail")
    (question,) = kb.open(storage)["r"].questions
    key = lines(storage)[1]["idempotencyKey"]
    assert question.event == "in-doubt"
    assert question.context == {"tool": "mail", "args": {"to": "ana"}, "key": key, "attempt": 1}
    assert "may have acted" in (question.prompt or "")
    assert len(sink.calls) == 1


@pytest.mark.parametrize(
    ("answer", "calls", "status", "result"),
    [
        ({"action": "record", "result": "I saw it"}, 1, "success", "I saw it"),
        ({"action": "record"}, 1, "success", None),
        ({"action": "retry"}, 2, "success", "told ana"),
        ({"action": "fail", "error": "it bounced"}, 1, "failed", None),
    ],
)
def test_a_persons_answer_decides(
    storage: MemoryStorage, answer: Any, calls: int, status: str, result: Any
) -> None:
    sink = Sink(deaths=1)
    flow = mailer(storage, sink.shout)
    crash(flow)
    asyncio.run(flow.start(run_id="r"))
    done = asyncio.run(flow.resume("r", "in-doubt", answer, by="ana"))
    assert (done.status, done.value, len(sink.calls)) == (status, result, calls)
    assert asyncio.run(flow.verify("r")).fits
    if status == "failed":
        assert done.error is not None
        assert (done.error.name, done.error.message) == ("InDoubtError", "it bounced")


def test_each_later_attempt_is_asked_about_anew(storage: MemoryStorage) -> None:
    sink = Sink(deaths=2)
    flow = mailer(storage, sink.shout)
    crash(flow)
    asyncio.run(flow.start(run_id="r"))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(flow.resume("r", "in-doubt", {"action": "retry"}))
    again = asyncio.run(flow.start(run_id="r"))
    assert (again.status, again.event) == ("suspended", "mail")
    run = kb.open(storage)["r"]
    assert run.questions[0].context["attempt"] == 2
    assert [doubt.attempt for doubt in run.fold().doubts] == [2]
    done = asyncio.run(flow.resume("r", "mail", {"action": "record", "result": 7}))
    assert done.result == 7
    assert len(sink.calls) == 2


def test_the_first_decision_wins(storage: MemoryStorage) -> None:
    sink = Sink(deaths=1)
    flow = mailer(storage, sink.shout)
    crash(flow)
    asyncio.run(flow.start(run_id="r"))
    asyncio.run(flow.resume("r", "mail", {"action": "record", "result": 1}, by="ana"))
    with pytest.raises(EventAlreadyAnsweredError, match="ana"):
        asyncio.run(flow.resume("r", "mail", {"action": "retry"}, by="bob"))


def test_an_answer_of_another_shape_is_refused(storage: MemoryStorage) -> None:
    sink = Sink(deaths=1)
    flow = mailer(storage, sink.shout)
    crash(flow)
    asyncio.run(flow.start(run_id="r"))
    before = read(storage, "r").data
    for answer in (True, {"action": "forget"}, {"action": "fail", "error": 3}, {}):
        with pytest.raises(JournalValueError):
            asyncio.run(flow.resume("r", "mail", answer))
    assert read(storage, "r").data == before


def test_a_workflow_may_say_that_doubt_is_a_failure(storage: MemoryStorage) -> None:
    sink = Sink(deaths=1)
    caught: list[InDoubtError] = []

    @kassette(storage=storage, name="strict")
    async def flow(ctx: kb.Context) -> str:
        try:
            await ctx.with_options(on_doubt="fail").tool("mail", sink.shout, to="ana")
        except InDoubtError as problem:
            caught.append(problem)
        return "went on"

    crash(flow)
    assert asyncio.run(flow.start(run_id="r")).result == "went on"
    assert asyncio.run(flow.verify("r")).fits
    assert len(sink.calls) == 1
    assert str(caught[0]) == str(caught[1])
    assert caught[0].step_id == "mail"


def test_a_recorded_result_of_another_type_is_asked_about_again(storage: MemoryStorage) -> None:
    sink = Sink(deaths=1)
    flow = mailer(storage, sink.shout, returns=int)
    crash(flow)
    asyncio.run(flow.start(run_id="r"))
    again = asyncio.run(flow.resume("r", "mail", {"action": "record", "result": "seven"}))
    assert again.status == "suspended"
    run = kb.open(storage)["r"]
    assert "could not be used" in (run.questions[0].prompt or "")
    assert [doubt.step_id for doubt in run.fold().doubts] == ["mail"]
    assert asyncio.run(flow.resume("r", "mail", {"action": "record", "result": 7})).result == 7


def test_other_arguments_than_the_intents_are_a_mismatch(storage: MemoryStorage) -> None:
    sink = Sink(deaths=1)
    to = ["ana"]

    def make(name: str) -> kb.Workflow:
        @kassette(storage=storage, name=name)
        async def flow(ctx: kb.Context) -> Any:
            return await ctx.tool("mail", sink.send, to=to[0])

        return flow

    flow = make("drifting")
    crash(flow)
    to[0] = "bob"
    before = read(storage, "r").data
    with pytest.raises(ReplayMismatchError, match="other arguments"):
        asyncio.run(flow.start(run_id="r"))
    assert read(storage, "r").data == before
    assert len(sink.calls) == 1


def test_a_step_is_not_taken_for_a_tool_in_doubt(storage: MemoryStorage) -> None:
    sink = Sink(deaths=1)
    crash(mailer(storage, sink.shout, name="swapped"))

    @kassette(storage=storage, name="swapped")
    async def flow(ctx: kb.Context, to: str = "ana") -> Any:
        return await ctx.step("mail", sink.shout, to)

    with pytest.raises(ReplayMismatchError, match="tool"):
        asyncio.run(flow.start(run_id="r"))
    assert len(sink.calls) == 1


def test_a_branch_in_doubt_does_not_stop_its_siblings(storage: MemoryStorage) -> None:
    sink = Sink(deaths=1)

    def work() -> str:
        return "worked"

    @kassette(storage=storage, name="branches")
    async def flow(ctx: kb.Context) -> Any:
        return await ctx.parallel(
            {"mail": lambda ctx: ctx.tool("mail", sink.shout, to="ana"), "work": work}
        )

    crash(flow)
    asked = asyncio.run(flow.start(run_id="r"))
    assert asked.events == ("mail/mail",)
    assert kb.open(storage)["r"]["work"].value == "worked"
    done = asyncio.run(flow.resume("r", "in-doubt", {"action": "record", "result": "seen"}))
    assert done.result == {"mail": "seen", "work": "worked"}
    assert len(sink.calls) == 1


# -------------------------------------------------------------------- from outside: Run.settle


def test_a_doubt_can_be_settled_where_the_code_is_not_loaded(storage: MemoryStorage) -> None:
    from kassette_nb.workflow import registry

    sink = Sink(deaths=1)
    flow = mailer(storage, sink.shout, name="elsewhere")
    crash(flow)
    del registry["elsewhere"]
    run = kb.open(storage)["r"]
    assert run.state == "interrupted"
    run.settle("record", "I saw it", by="ana", note="the outbox")  # nobody had asked yet
    assert kinds(storage)[-1] == "resume"
    assert run.state == "ready"
    assert not run.fold().doubts
    assert asyncio.run(flow.start(run_id="r")).result == "I saw it"
    assert len(sink.calls) == 1


def test_settling_goes_on_in_the_background(storage: MemoryStorage) -> None:
    sink = Sink(deaths=1)
    flow = mailer(storage, sink.shout, name="here")
    crash(flow)

    async def scenario() -> None:
        await flow.start(run_id="r")
        run = kb.open(storage)["r"]
        assert run.waiting_on == ("mail",)
        await run.settle("retry")
        assert (run.state, run.result) == ("completed", "told ana")

    asyncio.run(scenario())


def test_wrong_words_to_settle_are_refused_and_nothing_is_written(storage: MemoryStorage) -> None:
    sink = Sink(deaths=1)
    flow = mailer(storage, sink.shout, name="worded")
    crash(flow)
    asyncio.run(flow.start(run_id="r"))
    run = kb.open(storage)["r"]
    before = read(storage, "r").data
    with pytest.raises(JournalValueError, match="record"):
        run.settle("forget")
    with pytest.raises(JournalValueError, match="takes no value"):
        run.settle("retry", 3)
    with pytest.raises(EventMismatchError, match="settle"):
        run.approve()
    with pytest.raises(EventMismatchError, match="settle"):
        run.reject()
    assert read(storage, "r").data == before
    run.cancel()
    with pytest.raises(kb.KassetteError, match="cancelled"):
        run.settle("retry")


def test_nothing_to_settle_is_told(storage: MemoryStorage) -> None:
    asyncio.run(mailer(storage, Sink().send).start(run_id="r"))
    with pytest.raises(kb.KassetteError, match="completed"):
        kb.open(storage)["r"].settle("retry")


# ------------------------------------------------------------------------- forks and retries


def test_a_plain_fork_is_never_in_doubt_and_has_keys_of_its_own(storage: MemoryStorage) -> None:
    sink = Sink(deaths=1)
    flow = mailer(storage, sink.send)
    crash(flow)
    fork = asyncio.run(flow.fork("r", at=2))
    assert not kb.open(storage)[fork].fold().doubts
    assert asyncio.run(flow.start(run_id=fork)).status == "success"
    assert len(set(sink.calls)) == 2


def test_a_fork_with_the_same_effects_keeps_the_keys_and_the_doubt(storage: MemoryStorage) -> None:
    sink = Sink(deaths=1)
    flow = mailer(storage, sink.send)
    crash(flow)
    fork = asyncio.run(flow.fork("r", at=2, same_effects=True))
    assert asyncio.run(flow.start(run_id=fork)).status == "success"
    assert len(sink.calls) == 2
    assert len(sink.sent) == 1


def test_a_retry_of_a_failed_run_asks_about_the_failed_call(storage: MemoryStorage) -> None:
    replies: list[Any] = [ConnectionError("reset"), "sent"]

    def flaky(to: str) -> Any:
        reply = replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    flow = mailer(storage, flaky)
    assert asyncio.run(flow.start(run_id="r")).status == "failed"
    again = asyncio.run(flow.retry("r"))
    assert [doubt.step_id for doubt in kb.open(storage)[again].fold().doubts] == ["mail"]
    assert asyncio.run(flow.start(run_id=again)).event == "mail"
    assert asyncio.run(flow.resume(again, "mail", {"action": "retry"})).result == "sent"
    first, second = (line for line in lines(storage, again) if line["type"] == "intent")
    assert first["idempotencyKey"] == second["idempotencyKey"]
    assert (first["attempt"], second["attempt"]) == (1, 2)


def test_a_retry_after_a_person_said_fail_asks_the_person_again(storage: MemoryStorage) -> None:
    sink = Sink(deaths=1)
    flow = mailer(storage, sink.shout)
    crash(flow)
    asyncio.run(flow.start(run_id="r"))
    assert asyncio.run(flow.resume("r", "mail", {"action": "fail"})).status == "failed"
    again = asyncio.run(flow.retry("r"))
    asked = asyncio.run(flow.start(run_id=again))
    assert (asked.status, asked.event) == ("suspended", "mail")
    done = asyncio.run(flow.resume(again, "mail", {"action": "record", "result": "seen"}))
    assert done.result == "seen"


# -------------------------------------------------------------------------------------- fencing


def test_a_session_that_lost_the_run_does_not_call_the_tool(storage: MemoryStorage) -> None:
    sink = Sink()

    @kassette(storage=storage, name="fenced")
    async def flow(ctx: kb.Context) -> None:
        await ctx.step("before", lambda: 1)
        found = storage.read("r")
        assert found is not None
        data, token = found
        assert data
        storage.append("r", b'{"type":"note","session":2}\n', token)  # somebody else's
        await ctx.tool("mail", sink.send, to="ana")

    with pytest.raises(FencedError):
        asyncio.run(flow.start(run_id="r"))
    assert sink.calls == []


# ----------------------------------------------------------------------------------------- keys


def key_of(storage: MemoryStorage, run_id: str = "r", **args: Any) -> str:
    @kassette(storage=storage, name="keys")
    async def flow(ctx: kb.Context) -> None:
        await ctx.tool("act", lambda **_: None, **args)

    assert asyncio.run(flow.start(run_id=run_id)).status == "success"
    return str(lines(storage, run_id)[1]["idempotencyKey"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": "é"}, {"a": "e\u0301"}),
        ({"a": {"é": 1}}, {"a": {"e\u0301": 1}}),
        ({"a": (1, 2)}, {"a": [1, 2]}),
        ({"a": {3, 1, 2}}, {"a": {2, 3, 1}}),
        ({"a": -0.0}, {"a": 0}),
    ],
)
def test_equal_arguments_have_one_key(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert key_of(MemoryStorage("1"), **one) == key_of(MemoryStorage("2"), **other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": "1"}),
        ({"a": 1}, {"a": True}),
        ({"a": None}, {}),
        ({"a": 2**53}, {"a": 2**53 + 1}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": float("inf")}, {"a": "inf"}),
        ({"a": b"x"}, {"a": "x"}),
        ({"a": Decimal("1.0")}, {"a": 1}),
        ({"a": datetime(2026, 1, 1, tzinfo=UTC)}, {"a": "2026-01-01T00:00:00+00:00"}),
        ({"a": {"$int": "9007199254740993"}}, {"a": 2**53 + 1}),
    ],
)
def test_other_arguments_have_another_key(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert key_of(MemoryStorage("1"), **one) != key_of(MemoryStorage("2"), **other)


def test_another_run_or_step_or_tool_has_another_key(storage: MemoryStorage) -> None:
    assert key_of(storage, "a", x=1) != key_of(storage, "b", x=1)

    @kassette(storage=storage, name="twice")
    async def flow(ctx: kb.Context) -> None:
        for name in ("act", "act", "other"):
            await ctx.tool(name, lambda x: x, x=1)

    asyncio.run(flow.start(run_id="r"))
    made = [line["idempotencyKey"] for line in lines(storage) if line["type"] == "intent"]
    assert len(set(made)) == 3


class Strange:
    pass


@pytest.mark.parametrize(
    ("args", "path"),
    [
        ({"a": {"b": [1, Strange()]}}, "$.a.b[1]"),
        ({"a": {1: 2}}, "$.a"),
        ({"a": {"é": 1, "e\u0301": 2}}, "$.a"),
        ({"a": "\ud800"}, "$.a"),
    ],
)
def test_arguments_without_a_canonical_form_are_refused_before_the_intent(
    storage: MemoryStorage, args: dict[str, Any], path: str
) -> None:
    ran: list[int] = []

    @kassette(storage=storage, name="refused")
    async def flow(ctx: kb.Context) -> None:
        await ctx.step("before", lambda: 1)
        await ctx.tool("act", lambda **_: ran.append(1), **args)

    with pytest.raises(JournalValueError) as caught:
        asyncio.run(flow.start(run_id="r"))
    assert caught.value.path == path
    assert kinds(storage) == ["start", "step"]
    assert not ran


def test_an_empty_key_is_refused_and_none_means_unprotected(storage: MemoryStorage) -> None:
    sink = Sink(deaths=1)
    with pytest.raises(JournalValueError, match="not a text"):
        asyncio.run(mailer(storage, sink.send, idempotency_key=7).start(run_id="e"))
    with pytest.raises(JournalValueError, match="needs idempotency_key="):
        asyncio.run(mailer(storage, sink.send, idempotency_key=None).start(run_id="e"))
    for empty in ("", "  "):
        with pytest.raises(JournalValueError, match="protects nothing"):
            asyncio.run(mailer(storage, sink.send, idempotency_key=empty).start(run_id="e"))
    flow = mailer(storage, sink.shout, idempotency_key=None)
    crash(flow)
    assert lines(storage)[1]["idempotencyKey"] is None
    assert asyncio.run(flow.start(run_id="r")).event == "mail"


def test_a_key_of_ones_own_is_used_as_it_is_and_for_one_call_only(storage: MemoryStorage) -> None:
    sink = Sink()

    @kassette(storage=storage, name="own")
    async def flow(ctx: kb.Context, other: str) -> None:
        mine = ctx.with_options(idempotency_key="order-17")
        await mine.tool("mail", sink.send, to="ana")
        await mine.tool("mail", sink.send, to=other)

    assert asyncio.run(flow.start("ana", run_id="same")).status == "success"
    assert sink.calls == ["order-17", "order-17"]
    with pytest.raises(JournalValueError, match="stands for 'mail' with other arguments"):
        asyncio.run(flow.start("bob", run_id="r"))
    assert len(sink.calls) == 3


def test_retry_is_refused_for_a_tool_without_a_key(storage: MemoryStorage) -> None:
    with pytest.raises(JournalValueError, match="idempotency_key"):
        asyncio.run(mailer(storage, Sink().shout, retry=3).start(run_id="r"))
    replies: list[Any] = [ConnectionError("reset"), "sent"]
    keys = []

    def flaky(to: str, idempotency_key: str) -> Any:
        keys.append(idempotency_key)
        reply = replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    again = kb.Retry(attempts=2, wait=0, jitter=0)
    assert asyncio.run(mailer(storage, flaky, retry=again).start(run_id="k")).result == "sent"
    assert len(set(keys)) == 1
    assert kinds(storage, "k") == ["start", "intent", "note", "step", "complete"]


def test_secrets_are_hidden_in_the_intent_but_count_in_the_key() -> None:
    def intent(secret: str) -> dict[str, Any]:
        storage = MemoryStorage("secret")
        key_of(storage, to="ana", api_key=secret)
        return lines(storage)[1]

    one, other = intent("sk-1"), intent("sk-2")
    assert one["args"] == {"to": "ana", "api_key": "[redacted]"}
    assert one["idempotencyKey"] != other["idempotencyKey"]


def test_an_unknown_policy_is_refused(storage: MemoryStorage) -> None:
    with pytest.raises(JournalValueError, match="on_doubt="):
        asyncio.run(mailer(storage, Sink().send, on_doubt="guess").start(run_id="r"))


def test_a_cancelled_tool_is_in_doubt(storage: MemoryStorage) -> None:
    started = asyncio.Event()

    async def slow(to: str) -> None:
        started.set()
        await asyncio.sleep(60)

    flow = mailer(storage, slow)

    async def scenario() -> None:
        task = asyncio.create_task(flow.start(run_id="r"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await flow.start(run_id="r")).event == "mail"

    asyncio.run(scenario())
    assert kinds(storage) == ["start", "intent", "start", "suspend"]


def test_a_thread_that_outlives_its_caller_records_what_the_tool_did(
    storage: MemoryStorage,
) -> None:
    started, go = threading.Event(), threading.Event()

    def slow(to: str) -> str:
        started.set()
        go.wait(10)
        return "done"

    flow = mailer(storage, slow)

    async def scenario() -> None:
        await outlived(flow.start(run_id="r"), storage, started, go)
        assert (await flow.start(run_id="r")).result == "done"

    asyncio.run(scenario())
    assert kinds(storage).count("intent") == 1


def test_interruption_inside_the_workflow_leaves_the_run_open(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="weather", transient=(ConnectionError,))
    async def flow(ctx: kb.Context) -> Any:
        def reset() -> None:
            raise ConnectionError("reset")

        return await ctx.tool("mail", reset)

    with pytest.raises(ConnectionError):
        asyncio.run(flow.start(run_id="r"))
    assert kb.open(storage)["r"].state == "interrupted"
    with pytest.raises(ConnectionError):
        asyncio.run(mailer_answered(flow))


async def mailer_answered(flow: kb.Workflow) -> Any:
    assert (await flow.start(run_id="r")).event == "mail"
    return await flow.resume("r", "mail", {"action": "retry"})


def test_a_ctx_call_inside_a_tool_is_refused(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="nested")
    async def flow(ctx: kb.Context) -> Any:
        async def inner() -> Any:
            return await ctx.step("inside", lambda: 1)

        return await ctx.tool("outer", inner)

    with pytest.raises(kb.KassetteError, match="still in flight"):
        asyncio.run(flow.start(run_id="r"))


def test_the_first_answer_does_not_wait_for_a_grammar_that_nobody_needs() -> None:
    program = (
        "import sys; from kassette_nb.schema import check_answer, DOUBT_SCHEMA; import msgspec; "
        "schema = msgspec.Raw(msgspec.json.encode(DOUBT_SCHEMA)); "
        "check_answer({'action': 'retry'}, schema, 'mail'); "
        "assert 'jsonschema' in sys.modules; assert 'lark' not in sys.modules; "
        "assert 'rfc3987_syntax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_tools_arguments_have_names(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="unnamed")
    async def flow(ctx: kb.Context) -> Any:
        return await ctx.tool("mail", lambda to: to, "ana")

    with pytest.raises(JournalValueError, match="by name"):
        asyncio.run(flow.start(run_id="r"))
    assert "r" not in kb.open(storage)


def test_a_result_has_to_be_given_to_say_that_it_happened(storage: MemoryStorage) -> None:
    flow = mailer(storage, Sink(deaths=1).shout)
    crash(flow)
    run = kb.open(storage)["r"]
    with pytest.raises(JournalValueError, match="needs the tool's result"):
        run.settle("record")
    with pytest.raises(JournalValueError, match="not the number of an attempt"):
        run.settle("record", None, attempt="1")  # type: ignore[arg-type]
    assert run.fold().doubts
