"""Whatever rides on httpx or httpx2 is recorded: one more client of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import kassette
from tests.llm.loopback import MODEL, SECRET, Loopback, kinds, lines

SAID: Any = [{"role": "user", "content": "Grüße"}]
Ask = Callable[[Any, bool], Any]


async def groq(client: Any, streamed: bool) -> list[str]:
    answer = client.chat.completions.create(model=MODEL, messages=SAID, stream=streamed)
    if asyncio.iscoroutine(answer):
        answer = await answer
        if streamed:
            return [chunk.model_dump_json() async for chunk in answer]
    elif streamed:
        return [chunk.model_dump_json() for chunk in answer]
    return [answer.model_dump_json()]


async def mistral(client: Any, streamed: bool) -> list[str]:
    if streamed:
        stream = await client.chat.stream_async(model=MODEL, messages=SAID)
        return [event.data.model_dump_json() async for event in stream]
    answer = await client.chat.complete_async(model=MODEL, messages=SAID)
    return [answer.model_dump_json()]


def made(named: str, provider: Loopback) -> tuple[Any, Ask]:
    url = provider.url.removesuffix("/v1")
    if named == "mistralai on httpx2":
        import httpx2
        from mistralai.client import Mistral

        http = kb.llm.async_http_client(httpx2)
        return Mistral(api_key=SECRET, server_url=url, async_client=http), mistral
    import groq as sdk

    options: dict[str, Any] = {"api_key": SECRET, "base_url": url, "max_retries": 0}
    if named.startswith("async"):
        http = kb.llm.async_http_client(sdk)
        return sdk.AsyncGroq(http_client=http, **options), groq
    return sdk.Groq(http_client=kb.llm.http_client(sdk), **options), groq


@pytest.mark.slow
@pytest.mark.parametrize("named", ["groq on httpx", "async groq on httpx", "mistralai on httpx2"])
def test_one_more_client_is_recorded_and_replayed(named: str, storage: kb.LocalStorage) -> None:
    provider = Loopback()
    try:
        client, ask = made(named, provider)

        @kassette(storage=storage)
        async def talk(ctx: kb.Context) -> list[list[str]]:
            return [await ask(client, streamed) for streamed in (False, True)]

        first = asyncio.run(talk.start(run_id="r")).result
        assert len(provider.seen) == 2
    finally:
        provider.stop()
    assert kinds(storage, "r") == ["start", "llm", "llm#2", "complete"]
    assert len(first[1]) > 4
    again = asyncio.run(talk.fork("r", at=3))
    assert asyncio.run(talk.start(run_id=again)).result == first
    usage = lines(storage, "r")[1]["usage"]
    assert (usage["model"], usage["outputTokens"] > 0) == (MODEL, True)
    assert SECRET not in str(lines(storage, "r"))


@pytest.mark.slow
@pytest.mark.parametrize("named", ["groq on httpx", "mistralai on httpx2"])
def test_one_more_client_is_recorded_when_somebody_else_made_it(
    named: str, provider: Loopback, storage: kb.LocalStorage
) -> None:
    url = provider.url.removesuffix("/v1")

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> list[str]:
        with kb.llm.recording():
            if named.startswith("mistralai"):
                from mistralai.client import Mistral

                return await mistral(Mistral(api_key=SECRET, server_url=url), True)
            import groq as sdk

            return await groq(sdk.Groq(api_key=SECRET, base_url=url), True)

    first = asyncio.run(talk.start(run_id="r"))
    assert kinds(storage, "r") == ["start", "llm", "complete"]
    provider.expect()
    again = asyncio.run(talk.fork("r", at=2))
    assert asyncio.run(talk.start(run_id=again)).result == first.result
    assert provider.seen == []
