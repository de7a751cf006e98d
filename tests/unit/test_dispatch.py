"""What a worker tells its queue: acknowledge what another delivery could not change."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import MemoryStorage, kassette
from kassette_nb.dispatch import (
    Verdict,
    handle,
    handle_answer,
    handle_answer_sync,
    handle_sync,
)
from kassette_nb.errors import (
    ArgumentError,
    EventAlreadyAnsweredError,
    EventMismatchError,
    FencedError,
    InvalidRunIdError,
    JournalCorruptionError,
    JournalValueError,
    MetadataMismatchError,
    ReplayMismatchError,
    RunBusyError,
    RunCancelledError,
    StepFailedError,
    StorageError,
    TerminalRunError,
    UnknownRunError,
    VersionMismatchError,
)
from kassette_nb.testing import FaultyStorage, ManualClock


async def nothing() -> None: ...


def asking(storage: Any, **options: Any) -> kb.Workflow:
    @kassette(storage=storage, name="asking", **options)
    async def asking(ctx: kb.Context, ticket: str = "pod") -> Any:
        await ctx.step("look", nothing)
        return await ctx.suspend("approval")

    return asking


def told(verdict: Verdict) -> tuple[bool, str]:
    status = verdict.result.status if verdict.result else type(verdict.error).__name__
    return verdict.ack, status


def test_what_has_come_to_rest_is_acknowledged_and_comes_out_the_same_again() -> None:
    storage = MemoryStorage()

    @kassette(storage=storage, name="fails")
    async def fails(ctx: kb.Context) -> None:
        raise ValueError("no")

    @kassette(storage=storage, name="works")
    async def works(ctx: kb.Context) -> int:
        return 1

    for _ in range(2):
        assert told(handle_sync(works, "w")) == (True, "success")
        assert told(handle_sync(fails, "f")) == (True, "failed")
        assert told(handle_sync(asking(storage), "a")) == (True, "suspended")
    asyncio.run(asking(storage).cancel("a"))
    assert told(handle_sync(asking(storage), "a")) == (True, "cancelled")
    assert told(handle_answer_sync(asking(storage), "a", "approval", 1)) == (
        True,
        "RunCancelledError",
    )


def test_an_answer_is_a_message_of_its_own_and_may_come_twice() -> None:
    workflow = asking(MemoryStorage())
    early = handle_answer_sync(workflow, "r", "approval", "yes")
    assert told(early) == (False, "UnknownRunError")
    handle_sync(workflow, "r")
    assert told(handle_answer_sync(workflow, "r", "other", "yes")) == (False, "EventMismatchError")
    assert told(handle_answer_sync(workflow, "r", "approval", "yes", by="ana")) == (True, "success")
    again = handle_answer_sync(workflow, "r", "approval", "yes", by="ana")
    assert again.ack
    assert kb.open(workflow.storage)["r"].result == "yes"


def two_questions(storage: Any, first: str, second: str) -> kb.Workflow:
    @kassette(storage=storage, name="two")
    async def two(ctx: kb.Context) -> Any:
        return [await ctx.suspend(first), await ctx.suspend(second)]

    return two


@pytest.mark.parametrize("second", ["review", "approval"])
def test_an_answer_that_comes_too_late_says_so(second: str) -> None:
    workflow = two_questions(MemoryStorage(), "approval", second)
    handle_sync(workflow, "r")
    answer = handle_answer_sync
    assert told(answer(workflow, "r", "approval", "yes", by="ana")) == (True, "suspended")
    for value, by in (("no", "ana"), ("yes", "bob"), ("yes", None)):
        late = answer(workflow, "r", "approval", value, by=by)
        assert told(late) == (True, "EventAlreadyAnsweredError")
        assert "answered first by ana" in str(late.error)
    # Only the same answer, delivered again, is no loser; and it answers nothing else.
    assert told(answer(workflow, "r", "approval", "yes", by="ana")) == (True, "suspended")
    step_id = "approval#2" if second == "approval" else second
    assert kb.open(workflow.storage)["r"].fold().waits[0].step_id == step_id
    assert told(answer(workflow, "r", step_id, "and yes")) == (True, "success")
    assert told(answer(workflow, "r", "approval", "no")) == (True, "EventAlreadyAnsweredError")
    assert told(answer(workflow, "r", "approval", "yes", by="ana")) == (True, "success")


def test_an_answer_to_an_attempt_in_doubt_is_known_again() -> None:
    storage = MemoryStorage()

    def fails(who: int) -> None:
        raise KeyboardInterrupt

    @kassette(storage=storage, name="doubtful")
    async def doubtful(ctx: kb.Context) -> Any:
        return await ctx.tool("act", fails, who=1)

    with pytest.raises(KeyboardInterrupt):
        handle_sync(doubtful, "r")
    said: Any = {"action": "record", "result": 1, "attempt": 1}
    for _ in range(2):
        assert told(handle_answer_sync(doubtful, "r", "act", said)) == (True, "success")
    other: Any = {"action": "record", "result": 2, "attempt": 1}
    late = handle_answer_sync(doubtful, "r", "act", other)
    assert told(late) == (True, "EventAlreadyAnsweredError")


def test_an_answer_that_the_question_does_not_take_is_done_with() -> None:
    @kassette(storage=MemoryStorage(), name="schemed")
    async def schemed(ctx: kb.Context) -> Any:
        return await ctx.suspend("amount", schema={"type": "number"})

    handle_sync(schemed, "r")
    assert told(handle_answer_sync(schemed, "r", "amount", "much")) == (True, "JournalValueError")
    assert told(handle_answer_sync(schemed, "r", "amount", 2)) == (True, "success")


def test_an_answer_whose_worker_died_is_gone_on_with_by_its_next_delivery() -> None:
    storage = FaultyStorage(MemoryStorage())
    workflow = asking(storage)
    handle_sync(workflow, "r")
    storage.fail_at, storage.how = storage.writes + 2, "failed sync"  # behind the answer's line
    assert told(handle_answer_sync(workflow, "r", "approval", "yes")) == (False, "StorageError")
    storage.fail_at = None
    assert told(handle_answer_sync(workflow, "r", "approval", "yes")) == (True, "success")


def test_a_run_that_somebody_holds_is_asked_for_again() -> None:
    workflow = asking(MemoryStorage())
    hold = workflow.storage.hold("r", "process 1 on elsewhere")
    verdict = handle_sync(workflow, "r")
    assert told(verdict) == (False, "RunBusyError")
    assert verdict.wait > 0
    with pytest.raises(RunBusyError):
        verdict.raise_for_retry()
    hold.release()
    handle_sync(workflow, "r").raise_for_retry()


def test_code_that_does_not_fit_leaves_the_message_to_another_worker() -> None:
    storage = MemoryStorage()
    handle_sync(asking(storage, version="2"), "r")
    asyncio.run(_begin_answer(asking(storage, version="2")))
    verdict = handle_sync(asking(storage, version="1"), "r")
    assert told(verdict) == (False, "VersionMismatchError")
    assert verdict.wait >= 60


async def _begin_answer(workflow: kb.Workflow) -> None:
    """Leave the run answered and interrupted."""
    kb.open(workflow.storage)["r"]
    from kassette_nb.clock import SystemClock
    from kassette_nb.entries import Resume
    from kassette_nb.journal import Writer, read

    journal = read(workflow.storage, "r")
    Writer(workflow.storage, "r", journal, SystemClock()).append(
        Resume(session=0, event_name="approval")
    )


def test_a_message_that_no_delivery_makes_good_is_acknowledged_with_its_error() -> None:
    workflow = asking(MemoryStorage())
    handle_sync(workflow, "r", "pod")
    assert told(handle_sync(workflow, "r", "node")) == (True, "MetadataMismatchError")
    assert told(handle_sync(workflow, "../r")) == (True, "InvalidRunIdError")


def test_a_message_with_other_arguments_than_the_workflows_is_done_with() -> None:
    @kassette(storage=MemoryStorage(), name="needs", transient=(TypeError,))
    async def needs(ctx: kb.Context, ticket: str, fails: bool = False) -> str:
        if fails:
            raise TypeError("of the user's code")
        return ticket

    for body in ({"run_id": "r"}, {"run_id": "r", "ticket": "pod", "colour": "red"}):
        verdict = handle_sync(needs, **body)
        assert told(verdict) == (True, "ArgumentError")
        assert isinstance(verdict.error, TypeError)
        assert "its arguments are: ticket, fails." in str(verdict.error)
    assert told(handle_sync(needs, ticket="pod")) == (True, "InvalidRunIdError")
    assert told(handle_sync(needs, "s", {"a", "set"})) == (True, "JournalValueError")
    assert told(handle_sync(needs, "f", "pod", fails=True)) == (False, "TypeError")
    message = {"run_id": "r", "ticket": "pod"}
    assert told(handle_sync(needs, **message)) == (True, "success")
    assert told(handle_sync(needs, run_id="r")) == (True, "success")


def test_a_message_that_is_no_whole_answer_is_done_with() -> None:
    workflow = asking(MemoryStorage())
    handle_sync(workflow, "r")
    whole = {"run_id": "r", "event": "approval", "value": None}
    for body, told_of in (
        ({"run_id": "r", "event": "approval"}, "lacks 'value'"),
        ({"run_id": "r", "value": True}, "lacks 'event'"),
        ({**whole, "colour": "red"}, "has 'colour'"),
        ({**whole, "by": 4711}, "has another 'by' than a text"),
        ({**whole, "event": ["approval"]}, "has another 'event' than a text"),
    ):
        verdict = handle_answer_sync(workflow, **body)
        assert told(verdict) == (True, "ArgumentError")
        assert told_of in str(verdict.error)
    assert told(handle_answer_sync(workflow, event="approval", value=1))[1] == "InvalidRunIdError"
    assert told(handle_answer_sync(workflow, **whole)) == (True, "success")


def test_what_is_no_workflow_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"the workflow itself, not 'triage'"):
        handle_sync("triage", "x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"the workflow itself"):
        handle_answer_sync("triage", "x", "approval", 1)  # type: ignore[arg-type]


def test_weather_and_faults_of_the_store_are_tried_again() -> None:
    storage = FaultyStorage(MemoryStorage())
    storage.fail_at, storage.how = 1, "full disk"
    assert told(handle_sync(asking(storage), "r")) == (False, "StorageError")

    @kassette(storage=MemoryStorage(), name="weather", transient=(ConnectionError,))
    async def weather(ctx: kb.Context) -> None:
        raise ConnectionResetError("by peer")

    assert told(handle_sync(weather, "r")) == (False, "ConnectionResetError")


def test_a_run_that_sleeps_says_when_to_send_its_message_again() -> None:
    clock = ManualClock()

    @kassette(storage=MemoryStorage(), name="sleeps", clock=clock)
    async def sleeps(ctx: kb.Context) -> str:
        await ctx.sleep(3600)
        return "awake"

    verdict = handle_sync(sleeps, "r")
    assert told(verdict) == (True, "suspended")
    assert verdict.due == pytest.approx(3600)
    clock.advance(3600)
    assert told(handle_sync(sleeps, "r")) == (True, "success")
    assert handle_sync(asking(MemoryStorage()), "r").due is None


def test_a_worker_that_is_told_to_stop_is_not_answered_for() -> None:
    @kassette(storage=MemoryStorage(), name="stopped")
    async def stopped(ctx: kb.Context) -> None:
        await ctx.step("slow", asyncio.sleep, 60)

    async def scenario() -> None:
        task = asyncio.create_task(handle(stopped, "r"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert kb.open(stopped.storage)["r"].state == "interrupted"


@pytest.mark.parametrize(
    ("error", "ack"),
    [
        (EventAlreadyAnsweredError, True),
        (TerminalRunError, True),
        (RunCancelledError, True),
        (ArgumentError, True),
        (MetadataMismatchError, True),
        (InvalidRunIdError, True),
        (JournalCorruptionError, True),
        (RunBusyError, False),
        (FencedError, False),
        (kb.errors.InterruptedRunError, False),
        (StorageError, False),
        (VersionMismatchError, False),
        (ReplayMismatchError, False),
        (JournalValueError, False),
        (UnknownRunError, False),
        (EventMismatchError, False),
        (StepFailedError, False),
        (OSError, False),
    ],
)
def test_the_table(error: type[Exception], ack: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    workflow = asking(MemoryStorage())

    async def raises(*_: Any, **__: Any) -> None:
        raise error("so it is")

    monkeypatch.setattr(workflow, "start", raises)
    assert asyncio.run(handle(workflow, "r")).ack is ack
    table = (files("kassette_nb") / "DISPATCH.md").read_text()
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| ")]
    said = [row[2].strip() for row in rows if f"`{error.__name__}`" in row[1]]
    assert said or error in (StepFailedError, OSError)
    assert all(text.startswith("acknowledge" if ack else "redeliver") for text in said)


def test_the_door_knows_dispatch() -> None:
    assert kb.dispatch.handle is handle
    assert "handle_answer" in dir(kb.dispatch)
    assert handle_answer.__doc__
