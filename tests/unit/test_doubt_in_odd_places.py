"""Doubt and budgets where they are easily lost: second attempts, forks, retries, changed code."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import Budget, MemoryStorage, kassette
from kassette_nb.errors import (
    EventAlreadyAnsweredError,
    EventMismatchError,
    RunBusyError,
    StepFailedError,
)
from tests.properties import journals
from tests.waiting import outlived


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage("odd")


class Sink:
    """Notes what happened, and dies behind the first acts."""

    def __init__(self, deaths: int = 0) -> None:
        self.acts: list[str | None] = []
        self.deaths = deaths

    def shout(self, to: str = "ana") -> str:
        return self._act(None)

    def send(self, to: str = "ana", *, idempotency_key: str) -> str:
        return self._act(idempotency_key)

    def _act(self, key: str | None) -> str:
        self.acts.append(key)
        if self.deaths:
            self.deaths -= 1
            raise KeyboardInterrupt
        return "acted"


def mailer(
    storage: MemoryStorage,
    fn: Callable[..., Any],
    workflow: str = "odd",
    tool: str = "mail",
    budget: Budget | None = None,
    **options: Any,
) -> kb.Workflow:
    @kassette(storage=storage, name=workflow, budget=budget)
    async def flow(ctx: kb.Context) -> Any:
        return await ctx.with_options(**options).tool(tool, fn)

    return flow


def crash(call: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(call)


def lines(storage: MemoryStorage, run_id: str = "r") -> list[journals.Entry]:
    found = storage.read(run_id)
    assert found is not None
    return journals.check(found[0])


def settle_unseen(flow: kb.Workflow, storage: MemoryStorage, run_id: str, *how: Any) -> None:
    """Settle a doubt where the workflow's code is not loaded: one line and nothing else."""
    from kassette_nb.workflow import registry

    registry.pop(flow.name, None)
    kb.open(storage)[run_id].settle(*how)


# ---------------------------------------------------------------- decided before anybody asked


def test_a_second_attempt_can_be_settled_before_anybody_asked(storage: MemoryStorage) -> None:
    sink = Sink(deaths=2)
    flow = mailer(storage, sink.shout)
    crash(flow.start(run_id="r"))
    asyncio.run(flow.start(run_id="r"))
    crash(flow.resume("r", "mail", {"action": "retry"}))
    settle_unseen(flow, storage, "r", "record", "I saw the second")
    done = asyncio.run(flow.start(run_id="r"))
    assert (done.status, done.result) == ("success", "I saw the second")
    assert len(sink.acts) == 2


def test_an_attempt_after_an_unasked_answer_is_asked_about(storage: MemoryStorage) -> None:
    sink = Sink(deaths=2)
    flow = mailer(storage, sink.shout)
    crash(flow.start(run_id="r"))
    settle_unseen(flow, storage, "r", "retry")
    crash(flow.start(run_id="r"))
    assert asyncio.run(flow.start(run_id="r")).event == "mail"
    assert kb.open(storage)["r"].waiting_on == ("mail",)
    done = asyncio.run(flow.resume("r", "mail", {"action": "record", "result": 2}))
    assert done.result == 2
    assert len(sink.acts) == 2


def test_an_unasked_answer_of_another_type_is_asked_about(storage: MemoryStorage) -> None:
    sink = Sink(deaths=1)
    flow = mailer(storage, sink.shout, returns=int)
    crash(flow.start(run_id="r"))
    settle_unseen(flow, storage, "r", "record", "seven")
    assert asyncio.run(flow.start(run_id="r")).event == "mail"
    assert kb.open(storage)["r"].fold().doubts
    assert asyncio.run(flow.resume("r", "mail", {"action": "record", "result": 7})).result == 7


def test_an_answer_about_an_earlier_attempt_is_not_taken_for_a_later_one(
    storage: MemoryStorage,
) -> None:
    sink = Sink(deaths=2)
    flow = mailer(storage, sink.shout)
    crash(flow.start(run_id="r"))
    asyncio.run(flow.start(run_id="r"))
    with pytest.raises(EventMismatchError, match="attempt 1"):
        asyncio.run(flow.resume("r", "mail", {"action": "retry", "attempt": 7}))
    # Two people look at attempt 1; one is first, and a crash makes attempt 2.
    crash(flow.resume("r", "mail", {"action": "retry", "attempt": 1}, by="ana"))
    asyncio.run(flow.start(run_id="r"))
    before = lines(storage)
    with pytest.raises(EventAlreadyAnsweredError, match="ana"):
        asyncio.run(flow.resume("r", "mail", {"action": "retry", "attempt": 1}, by="bob"))
    with pytest.raises(EventAlreadyAnsweredError, match="ana"):
        kb.open(storage)["r"].respond({"action": "retry", "attempt": 1}, event="mail")
    assert lines(storage) == before
    answer = {"action": "record", "result": "seen", "attempt": 2}
    assert asyncio.run(flow.resume("r", "mail", answer)).result == "seen"
    assert len(sink.acts) == 2


@pytest.mark.parametrize("settle", [True, False])
def test_a_call_that_is_still_running_cannot_be_decided(
    storage: MemoryStorage, settle: bool
) -> None:
    acts: list[int] = []
    looked, dies = threading.Event(), threading.Event()

    def slow() -> None:
        looked.set()
        dies.wait(10)
        acts.append(1)
        raise ConnectionError("reset")

    @kassette(storage=storage, name="odd", transient=(ConnectionError,))
    async def flow(ctx: kb.Context) -> Any:
        return await ctx.tool("mail", slow)

    async def decide() -> None:
        if settle:
            await asyncio.to_thread(kb.open(storage)["r"].settle, "retry")
        else:
            await flow.resume("r", "mail", {"action": "retry", "attempt": 1})

    async def scenario() -> None:
        task = asyncio.create_task(flow.start(run_id="r"))
        await asyncio.to_thread(looked.wait)
        # A person has seen that nothing happened, and says so just before it does.
        threading.Timer(0.2, dies.set).start()
        with pytest.raises(RunBusyError):
            await decide()
        with pytest.raises(ConnectionError):
            await task
        assert (await flow.start(run_id="r")).event == "mail"

    asyncio.run(scenario())
    assert acts == [1]
    assert [line["type"] for line in lines(storage)] == ["start", "intent", "start", "suspend"]


# ------------------------------------------------------------------------------------- forks


def test_doubt_in_a_fork_of_a_fork_with_the_same_effects_is_seen(storage: MemoryStorage) -> None:
    sink = Sink()

    @kassette(storage=storage, name="forked")
    async def flow(ctx: kb.Context) -> Any:
        for _ in range(4):
            await ctx.step("work", lambda: 1)
        return await ctx.tool("mail", sink.shout)

    @kassette(storage=storage, name="forked")
    async def other(ctx: kb.Context) -> Any:
        return await ctx.tool("mail", sink.shout)

    asyncio.run(flow.start(run_id="r"))
    plain = asyncio.run(flow.fork("r", at=5))
    asyncio.run(flow.start(run_id=plain))
    # Cut where the source is itself a copy: what this fork does next stands before its `scopeFrom`.
    again = asyncio.run(flow.fork(plain, at="work", same_effects=True))
    sink.deaths = 1
    crash(other.start(run_id=again))
    acts = len(sink.acts)
    assert [doubt.step_id for doubt in kb.open(storage)[again].fold().doubts] == ["mail"]
    assert asyncio.run(other.start(run_id=again)).event == "mail"
    assert len(sink.acts) == acts


def test_a_copied_question_of_doubt_is_none_of_a_plain_fork(storage: MemoryStorage) -> None:
    sink = Sink(deaths=1)
    flow = mailer(storage, sink.shout)
    crash(flow.start(run_id="r"))
    asyncio.run(flow.start(run_id="r"))
    fork = asyncio.run(flow.fork("r", at=len(lines(storage))))
    run = kb.open(storage)[fork]
    assert (run.state, run.waiting_on, run.fold().doubts) == ("ready", (), [])
    # Taken, it would be ignored: the tool of a plain fork runs, whatever the answer.
    with pytest.raises(EventMismatchError):
        asyncio.run(flow.resume(fork, "mail", {"action": "record", "result": "seen"}))
    with pytest.raises(EventMismatchError):
        run.settle("record", "seen")
    assert asyncio.run(flow.start(run_id=fork)).result == "acted"
    assert len(sink.acts) == 2
    same = asyncio.run(flow.fork("r", at=len(lines(storage)), same_effects=True))
    assert kb.open(storage)[same].waiting_on == ("mail",)
    done = asyncio.run(flow.resume(same, "mail", {"action": "record", "result": "seen"}))
    assert done.result == "seen"
    assert len(sink.acts) == 2


def test_a_fork_of_a_retry_has_keys_of_its_own_and_a_retry_of_a_retry_has_not(
    storage: MemoryStorage,
) -> None:
    keys: list[str] = []
    broken = True

    def send(*, idempotency_key: str) -> str:
        keys.append(idempotency_key)
        if broken:
            raise ConnectionError("reset")
        return "sent"

    flow = mailer(storage, send)
    asyncio.run(flow.start(run_id="r"))
    second = asyncio.run(flow.retry("r"))
    assert asyncio.run(flow.start(run_id=second)).status == "failed"
    third = asyncio.run(flow.retry(second))
    assert asyncio.run(flow.start(run_id=third)).status == "failed"
    assert len(set(keys)) == 1
    assert [e["attempt"] for e in lines(storage, third) if e["type"] == "intent"] == [1, 2, 3]
    broken = False
    fork = asyncio.run(flow.fork(third, at="mail"))
    assert asyncio.run(flow.start(run_id=fork)).result == "sent"
    assert len(keys) == 4
    assert len(set(keys)) == 2


# ----------------------------------------------------------------------------------- budgets


def test_a_fork_opened_by_a_budgets_answer_keeps_the_other_limits_of_its_code(
    storage: MemoryStorage,
) -> None:
    @kassette(storage=storage, name="limited", budget=Budget(max_steps=2, max_tokens=1000))
    async def flow(ctx: kb.Context) -> None:
        for _ in range(9):
            await ctx.step("work", lambda: kb.with_usage(1, kb.Usage(input_tokens=400)))

    asyncio.run(flow.start(run_id="r"))
    fork = asyncio.run(flow.fork("r", at=len(lines(storage))))
    stopped = asyncio.run(flow.resume(fork, "budget", {"max_steps": 9}))
    assert (stopped.status, stopped.event) == ("suspended", "budget#2")
    (question,) = kb.open(storage)[fork].questions
    assert question.context["exceeded"] == "max_tokens"


def test_a_retry_keeps_what_was_answered_about_the_budget(storage: MemoryStorage) -> None:
    broken = True

    @kassette(storage=storage, name="raised", budget=Budget(max_steps=2))
    async def flow(ctx: kb.Context) -> Any:
        def flaky() -> str:
            if broken:
                raise ValueError("no")
            return "yes"

        try:
            await ctx.step("flaky", flaky)
        except StepFailedError as failed:
            for _ in range(3):
                await ctx.step("work", lambda: 1)
            raise failed from None
        return "done"

    assert asyncio.run(flow.start(run_id="r")).event == "budget"
    assert asyncio.run(flow.resume("r", "budget", {"max_steps": 4})).status == "failed"
    again = asyncio.run(flow.retry("r"))
    assert asyncio.run(flow.start(run_id=again)).status == "failed"  # four steps, and no question
    broken = False
    third = asyncio.run(flow.retry(again))
    assert asyncio.run(flow.start(run_id=third)).result == "done"


def test_a_tool_may_be_called_budget(storage: MemoryStorage) -> None:
    sink = Sink(deaths=1)
    flow = mailer(storage, sink.send, tool="budget", budget=Budget(max_steps=0))
    assert asyncio.run(flow.start(run_id="r")).event == "budget"
    crash(flow.resume("r", "budget", {"max_steps": 1}))
    assert [doubt.step_id for doubt in kb.open(storage)["r"].fold().doubts] == ["budget"]
    done = asyncio.run(flow.start(run_id="r"))
    assert (done.status, done.value) == ("success", "acted")
    assert len(set(sink.acts)) == 1


def test_a_tool_called_budget_may_be_in_doubt_when_the_budget_is_spent(
    storage: MemoryStorage,
) -> None:
    sink = Sink(deaths=1)
    flow = mailer(storage, sink.send, tool="budget", budget=Budget(max_steps=1))
    crash(flow.start(run_id="r"))
    smaller = flow.with_options(budget=Budget(max_steps=0))
    assert asyncio.run(smaller.start(run_id="r")).event == "budget"
    assert asyncio.run(smaller.resume("r", "budget", {"max_steps": 1})).value == "acted"
    assert len(set(sink.acts)) == 1


# ------------------------------------------------------------------------------- changed code


def test_a_doubt_that_newer_code_decides_by_itself_is_not_asked_about_any_more(
    storage: MemoryStorage,
) -> None:
    sink = Sink(deaths=1)

    def both(on_doubt: str) -> kb.Workflow:
        @kassette(storage=storage, name="both")
        async def flow(ctx: kb.Context) -> Any:
            async def mail(ctx: kb.Context) -> Any:
                done = await ctx.with_options(on_doubt=on_doubt).tool("mail", sink.shout)
                if sink.deaths:
                    sink.deaths -= 1
                    raise KeyboardInterrupt
                return done

            return await ctx.parallel({"mail": mail, "ask": lambda ctx: ctx.suspend("ok")})

        return flow

    old, new = both("ask"), both("retry")
    crash(old.start(run_id="r"))
    assert set(asyncio.run(old.start(run_id="r")).events) == {"mail/mail", "ask/ok"}
    sink.deaths = 1  # behind the intent of the second attempt
    crash(new.resume("r", "ok", True))
    run = kb.open(storage)["r"]
    assert run.fold().pending == []
    assert [doubt.attempt for doubt in run.fold().doubts] == [2]
    sink.deaths = 0
    assert asyncio.run(new.start(run_id="r")).result == {"mail": "acted", "ask": True}
    with pytest.raises(kb.KassetteError, match="completed"):
        run.settle("retry")


def test_arguments_that_are_recorded_from_now_on_are_no_other_arguments(
    storage: MemoryStorage,
) -> None:
    sink = Sink(deaths=1)
    crash(mailer(storage, sink.send, record_args=False).start(run_id="r"))
    assert asyncio.run(mailer(storage, sink.send).start(run_id="r")).result == "acted"
    assert len(set(sink.acts)) == 1


def test_a_function_that_takes_the_key_from_now_on_runs_again_with_it(
    storage: MemoryStorage,
) -> None:
    sink = Sink(deaths=1)
    crash(mailer(storage, sink.shout).start(run_id="r"))
    key = lines(storage)[1]["idempotencyKey"]
    assert asyncio.run(mailer(storage, sink.send).start(run_id="r")).result == "acted"
    assert sink.acts == [None, key]


# -------------------------------------------------------------------------------- interrupted


def test_a_coroutine_that_nobody_awaited_any_more_has_not_acted(storage: MemoryStorage) -> None:
    acts: list[int] = []
    called, go = threading.Event(), threading.Event()

    async def act() -> str:
        acts.append(1)
        return "acted"

    def late() -> Any:
        called.set()
        go.wait(10)
        return act()

    flow = mailer(storage, late)

    async def scenario() -> None:
        await outlived(flow.start(run_id="r"), storage, called, go)
        assert (await flow.start(run_id="r")).event == "mail"
        assert (await flow.resume("r", "mail", {"action": "retry"})).result == "acted"

    asyncio.run(scenario())
    assert acts == [1]
