"""What an SDK tries again is one step with attempts; what it gives up is recorded as a failure."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import openai
import pytest

import kassette_nb as kb
from kassette_nb import kassette
from tests.llm.loopback import MODEL, Loopback, kinds, lines

SOON = {"retry-after": "0.01", "retry-after-ms": "10"}
BUSY = {"status": 429, "headers": SOON}
BROKEN = {"status": 500, "headers": SOON}


def said(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("waits", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("named", ["openai", "anthropic"])
def test_refusals_before_an_answer_are_attempts_of_one_step(
    waits: bool, named: str, provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = getattr(provider, f"async_{named}" if waits else named)(max_retries=3)

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> str:
        create = client.messages if named == "anthropic" else client.chat.completions
        answer = create.create(model=MODEL, max_tokens=9, messages=said("hello"))
        answer = await answer if waits else answer
        return str(answer.model_dump_json())

    provider.expect(BUSY, BROKEN, {})
    first = asyncio.run(talk.start(run_id="r"))
    assert len(provider.seen) == 3
    assert kinds(storage, "r") == ["start", "note attempt", "note attempt", "llm", "complete"]
    notes = [line["data"] for line in lines(storage, "r") if line["type"] == "note"]
    assert [(n["attempt"], n["error"], n["message"]) for n in notes] == [
        (1, "HTTP 429", "not now"),
        (2, "HTTP 500", "not now"),
    ]
    provider.expect()
    assert asyncio.run(talk.verify("r")).fits
    again = asyncio.run(talk.fork("r", at=4))
    assert asyncio.run(talk.start(run_id=again)).result == first.result
    assert provider.seen == []


def test_a_connection_that_breaks_before_the_answer_is_an_attempt_too(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai(max_retries=2)

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        answer = await client.chat.completions.create(model=MODEL, messages=said("hello"))
        return answer.choices[0].message.content

    provider.expect({"drop": True}, {"cut": 0.5}, {})
    asyncio.run(talk.start(run_id="r"))
    assert kinds(storage, "r") == ["start", "note attempt", "note attempt", "llm", "complete"]


def test_a_refusal_that_the_workflow_handles_is_handed_back_on_replay(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.openai(max_retries=1)
    handled: list[str] = []

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> list[str | None]:
        answers = []
        for text in ("too long", "short"):
            try:
                answer = client.chat.completions.create(model=MODEL, messages=said(text))
            except openai.RateLimitError as refusal:
                handled.append(f"{refusal.status_code} {refusal.body}")
                continue
            answers.append(answer.choices[0].message.content)
        return answers

    provider.expect(BUSY, BUSY, {})
    first = asyncio.run(talk.start(run_id="r"))
    assert kinds(storage, "r") == [
        "start",
        "note attempt",
        "note attempt",
        "llm",
        "llm#2",
        "complete",
    ]
    failed = lines(storage, "r")[3]
    assert failed["error"]["name"] == "HTTP 429"
    assert "result" not in failed
    provider.expect()
    assert asyncio.run(talk.verify("r")).fits
    assert provider.seen == []
    assert len(handled) == 2
    assert handled[0] == handled[1]
    assert first.result == asyncio.run(talk.start(run_id="r")).result


def test_a_refusal_that_ends_the_run_is_its_failing_step_and_a_retry_asks_again(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_anthropic()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> str:
        for text in ("first", "second"):
            await client.messages.create(model=MODEL, max_tokens=9, messages=said(text))
        return "done"

    provider.expect({}, BUSY)
    failed = asyncio.run(talk.start(run_id="r"))
    assert failed.status == "failed"
    assert failed.error is not None
    assert failed.error.name == "RateLimitError"
    assert lines(storage, "r")[-1]["stepId"] == "llm#2"
    assert asyncio.run(talk.verify("r")).fits
    provider.expect()
    again = asyncio.run(talk.retry("r"))
    assert asyncio.run(talk.start(run_id=again)).result == "done"
    assert [seen["body"]["messages"][0]["content"] for seen in provider.seen] == ["second"]


def test_a_refusal_that_is_only_weather_leaves_the_run_open(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai()

    @kassette(storage=storage, transient=(openai.RateLimitError,))
    async def talk(ctx: kb.Context) -> Any:
        answer = await client.chat.completions.create(model=MODEL, messages=said("hello"))
        return answer.choices[0].message.content

    provider.expect(BUSY)
    with pytest.raises(openai.RateLimitError):
        asyncio.run(talk.start(run_id="r"))
    assert kinds(storage, "r") == ["start", "note attempt"]
    assert asyncio.run(talk.start(run_id="r")).status == "success"
    assert len(provider.seen) == 2


def test_a_server_that_cannot_be_reached_is_recorded_and_replayed(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    gone = Loopback()
    gone.stop()
    client = gone.anthropic()
    seen: list[str] = []

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> str:
        try:
            client.messages.create(model=MODEL, max_tokens=9, messages=said("hello"))
        except anthropic.APIConnectionError as error:
            seen.append(f"{type(error.__cause__).__name__} {error.__cause__}")
        return str(await ctx.step("then", lambda: "went on"))

    assert asyncio.run(talk.start(run_id="r")).result == "went on"
    assert kinds(storage, "r") == ["start", "note attempt", "llm", "then", "complete"]
    assert asyncio.run(talk.verify("r")).fits
    assert seen[0] == seen[1]
    assert seen[0].startswith("ConnectError")


def test_a_redirect_belongs_to_its_call(provider: Loopback, storage: kb.LocalStorage) -> None:
    client = provider.async_openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        answer = await client.chat.completions.create(model=MODEL, messages=said("hello"))
        return answer.choices[0].message.content

    provider.expect(
        {"status": 307, "headers": {"location": "../moved/v1/chat/completions"}},
        {"status": 308, "headers": {"location": "completions?again=1"}},
        {},
    )
    first = asyncio.run(talk.start(run_id="r"))
    assert [seen["path"] for seen in provider.seen] == [
        "/v1/chat/completions",
        "/v1/moved/v1/chat/completions",
        "/v1/moved/v1/chat/completions?again=1",
    ]
    assert kinds(storage, "r") == ["start", "llm", "complete"]
    provider.expect()
    again = asyncio.run(talk.fork("r", at=2))
    assert asyncio.run(talk.start(run_id=again)).result == first.result
    assert provider.seen == []


def test_a_refusal_in_a_branch_is_settled_when_the_block_is_over(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        async def one(ctx: kb.Context) -> str | None:
            answer = await client.chat.completions.create(model=MODEL, messages=said("hello"))
            return answer.choices[0].message.content

        try:
            await ctx.parallel({"left": one})
        except openai.InternalServerError:
            return await ctx.step("instead", lambda: "something else")

    provider.expect(BROKEN)
    assert asyncio.run(talk.start(run_id="r")).result == "something else"
    assert kinds(storage, "r") == ["start", "note attempt", "left/llm", "instead", "complete"]
    assert asyncio.run(talk.verify("r")).fits
