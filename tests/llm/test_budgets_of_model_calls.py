"""A model call counts against the budget like a step, and is not made when it is spent."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import httpx2
import openai
import pytest

import kassette_nb as kb
from kassette_nb import Budget, kassette
from kassette_nb.entries import Note
from kassette_nb.journal import read
from kassette_nb.llm.conversation import broken_off
from tests.llm.loopback import MODEL, Loopback, kinds, lines


async def ask(client: Any, text: str) -> None:
    said: Any = [{"role": "user", "content": text}]
    await client.chat.completions.create(model=MODEL, messages=said)


@pytest.mark.parametrize("beside", [False, True], ids=["in order", "in tasks"])
def test_a_spent_budget_asks_before_the_next_call(
    beside: bool, provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai(max_retries=3)

    @kassette(storage=storage, budget=Budget(max_steps=2))
    async def talk(ctx: kb.Context) -> str:
        for number in range(3):
            if beside:
                await asyncio.create_task(ask(client, f"{number}"))
            else:
                await ask(client, f"{number}")
        return "done"

    assert asyncio.run(talk.start(run_id="r")).event == "budget"
    assert len(provider.seen) == 2
    assert kinds(storage, "r")[-1] == "budget"
    assert asyncio.run(talk.resume("r", "budget", {"max_steps": 9})).result == "done"
    assert len(provider.seen) == 3
    assert asyncio.run(talk.verify("r")).fits


def test_tokens_of_model_calls_count_and_a_run_may_fail_then(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai(max_retries=3)

    @kassette(storage=storage, budget=Budget(max_tokens=1, on_exceeded="fail"))
    async def talk(ctx: kb.Context) -> None:
        await ask(client, "one")
        await ask(client, "two")

    reached = asyncio.run(talk.start(run_id="r"))
    assert reached.status == "failed"
    assert reached.error is not None
    assert reached.error.name == "BudgetExceededError"
    assert len(provider.seen) == 1
    assert kinds(storage, "r") == ["start", "llm", "error"]


def test_a_suspended_run_waits_for_calls_in_tasks_and_records_them(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> str:
        task = asyncio.create_task(ask(client, "delay:0.3 slow"))
        await asyncio.sleep(0.1)
        await ctx.suspend("go on")
        await task
        return "done"

    assert asyncio.run(talk.start(run_id="r")).status == "suspended"
    written = kinds(storage, "r")
    assert written[1].startswith("llm@"), "paid for, so recorded"
    assert written[-1] == "go on"
    provider.expect()
    assert asyncio.run(talk.resume("r", "go on", True)).result == "done"
    assert provider.seen == []


def test_calls_in_a_task_group_stop_with_the_reason_not_with_a_group(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai()

    @kassette(storage=storage, max_payload=50)
    async def talk(ctx: kb.Context) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(2):
                group.create_task(ask(client, f"too much for fifty bytes {number}"))

    with pytest.raises(kb.errors.PayloadTooLargeError):
        asyncio.run(talk.start(run_id="r"))
    assert provider.seen == []


def test_a_budget_that_cannot_see_a_call_says_so_once(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.openai()

    @kassette(storage=storage, budget=Budget(max_cost_usd=0.0001, max_tokens=10))
    async def talk(ctx: kb.Context) -> str:
        said: Any = [{"role": "user", "content": "hello"}]
        for _ in range(2):
            list(client.chat.completions.create(model=MODEL, messages=said, stream=True))
        return "done"

    with pytest.warns(
        RuntimeWarning, match="its price and its number of tokens are not known"
    ) as w:
        assert asyncio.run(talk.start(run_id="r")).result == "done"
    assert len(w) == 1
    assert f"model: {MODEL}" in str(w[0].message)


@pytest.mark.parametrize("again", ["in the session", "in the next sessions"])
def test_a_stream_that_breaks_off_is_paid_for_and_counts(
    again: str, provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai(max_retries=0)
    provider.expect(*[{"cut": 0.5}] * 9)
    tries = 9 if again == "in the session" else 1

    @kassette(storage=storage, budget=Budget(max_steps=3, max_cost_usd=1))
    async def talk(ctx: kb.Context) -> None:
        for attempt in range(tries):
            try:
                said: Any = [{"role": "user", "content": "one"}]
                stream: Any = await client.chat.completions.create(
                    model=MODEL, messages=said, stream=True
                )
                async for _ in stream:
                    pass
            except (openai.APIError, httpx2.TransportError):
                if attempt == tries - 1:
                    raise

    def start_until_it_asks() -> None:
        for _ in range(9):
            with suppress(kb.KassetteError):
                if asyncio.run(talk.start(run_id="r")).status == "suspended":
                    break

    with pytest.warns(RuntimeWarning, match=r"is not counted in it.*it broke off"):
        start_until_it_asks()
    (question,) = kb.open(storage)["r"].questions
    assert "3 steps of 3 steps (max_steps), and 3 calls have no known price" in str(question.prompt)
    assert len(provider.seen) == 3
    assert kb.open(storage)["r"].fold().own.unpriced == 3


def test_what_is_read_of_an_answer_as_text_is_the_same_on_a_replay(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> str:
        said: Any = [{"role": "user", "content": "one"}]
        raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=said)
        await ask(client, f"summarize {raw.text}")
        return str(raw.text)

    live = asyncio.run(talk.start(run_id="r"))
    assert "chat.completion" in str(live.result)
    assert asyncio.run(talk.verify("r")).fits


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_answer_too_large_to_be_kept_is_paid_for_and_says_what_to_do(stream: bool) -> None:
    told: dict[str, Any] = {"choices": [{"message": {"content": "a\u00e4" * 5000}}]}
    content = json.dumps(told).encode()
    headers = {"content-type": "application/json"}
    if stream:
        content = b"data: " + content + b"\n\ndata: [DONE]\n\n"
        headers = {"content-type": "text/event-stream"}

    def handle(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers=headers, content=iter([content]))

    client = kb.llm.http_client(httpx2, transport=httpx2.MockTransport(handle))
    storage = kb.MemoryStorage()

    @kassette(storage=storage, max_payload=3000, budget=Budget(max_steps=2))
    async def talk(ctx: kb.Context) -> None:
        body = {"model": MODEL, "messages": [], "stream": stream}
        client.post("https://api.example/v1/chat/completions", json=body).read()

    for _ in range(2):
        cure = r"max_payload=3,000\. Raise it, .*inside a step that returns less"
        with pytest.raises(kb.errors.PayloadTooLargeError, match=cure):
            asyncio.run(talk.start(run_id="r"))
    assert asyncio.run(talk.start(run_id="r")).status == "suspended", "both are paid for"
    notes = [line for line in lines(storage, "r") if line["type"] == "note"]
    assert [note["kind"] for note in notes] == ["incomplete"] * 2
    assert "bytes are more than max_payload" in notes[0]["data"]["reason"]
    assert 400 < len(notes[0]["data"]["result"]["text"]) < 600
    shown = [broken_off(e) for e in read(storage, "r").entries if isinstance(e, Note)]
    assert str(shown[0].finish_reason if shown[0] else "").startswith("incomplete: its ")
