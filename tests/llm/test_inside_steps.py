"""A model call made inside a step passes through, and the step tells what it spent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import Usage, kassette
from tests.llm.loopback import MODEL, Loopback, kinds, lines


def call(text: str, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **more}


def step_of(storage: kb.LocalStorage, run_id: str = "r") -> dict[str, Any]:
    (step,) = [line for line in lines(storage, run_id) if line["type"] == "step"]
    return step


@pytest.mark.parametrize("plain", [True, False], ids=["in a thread", "on the loop"])
def test_its_usage_and_request_are_added_to_the_step(
    plain: bool, provider: Loopback, storage: kb.LocalStorage
) -> None:
    blocking, waiting = provider.openai(), provider.async_anthropic()

    def threaded() -> str:
        for text in ("one", "two"):
            answer = blocking.chat.completions.create(**call(text))
        stream = blocking.chat.completions.create(
            **call("three", stream=True, stream_options={"include_usage": True})
        )
        return f"{answer.choices[0].message.content} {len(list(stream))}"

    async def on_the_loop() -> str:
        for text in ("one", "two"):
            answer = await waiting.messages.create(**call(text, max_tokens=9))
        async with waiting.messages.stream(**call("three", max_tokens=9)) as stream:
            return f"{answer.content} {await stream.get_final_text()}"

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        return await ctx.step("think", threaded if plain else on_the_loop)

    asyncio.run(talk.start(run_id="r"))
    assert kinds(storage, "r") == ["start", "think", "complete"]
    step = step_of(storage)
    assert step["kind"] == "llm"
    asked = [made["request"]["body"]["messages"][0]["content"] for made in step["calls"]]
    assert asked == ["one", "two", "three"]
    assert all("three" in str(made["answer"]) for made in step["calls"][2:])
    summed = sum(made["usage"]["outputTokens"] for made in step["calls"])
    assert step["usage"]["outputTokens"] == summed > 0
    assert step["usage"]["cachedInputTokens"] == 12
    assert step["usage"]["model"] == MODEL
    assert kb.open(storage)["r"].fold().own.tokens == summed + step["usage"]["inputTokens"]
    provider.expect()
    assert asyncio.run(talk.verify("r")).fits
    assert provider.seen == []


def test_a_call_inside_a_step_that_fails_is_paid_for(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.openai()

    def fails() -> None:
        client.chat.completions.create(**call("hello"))
        raise ValueError("after it was paid")

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        await ctx.step("think", fails)

    asyncio.run(talk.start(run_id="r"))
    step = step_of(storage)
    assert step["error"]["name"] == "ValueError"
    assert step["usage"]["outputTokens"] > 0


def test_what_a_step_says_that_it_spent_wins(provider: Loopback, storage: kb.LocalStorage) -> None:
    client = provider.openai()

    def counted() -> Any:
        client.chat.completions.create(**call("hello"))
        return kb.with_usage("done", Usage(model="mine", input_tokens=1, output_tokens=2))

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        return await ctx.step("think", counted)

    asyncio.run(talk.start(run_id="r"))
    assert step_of(storage)["usage"] == {"model": "mine", "inputTokens": 1, "outputTokens": 2}


def test_a_child_workflow_in_a_step_records_its_own_calls(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai()

    @kassette(storage=storage)
    async def child(ctx: kb.Context) -> Any:
        answer = await client.chat.completions.create(**call("hello"))
        return answer.choices[0].message.content

    @kassette(storage=storage)
    async def parent(ctx: kb.Context) -> Any:
        async def run() -> Any:
            return (await child.start(run_id="r.child")).result

        return await ctx.step("child", run)

    asyncio.run(parent.start(run_id="r"))
    assert kinds(storage, "r.child") == ["start", "llm", "complete"]
    assert "usage" not in step_of(storage)


def test_a_large_conversation_is_not_kept_in_a_step(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        def think() -> int:
            client.chat.completions.create(**call("y" * 100_000))
            return 1

        return await ctx.step("think", think)

    asyncio.run(talk.start(run_id="r"))
    (made,) = step_of(storage)["calls"]
    assert sorted(made) == ["usage"]
