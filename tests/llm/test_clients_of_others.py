"""Clients that somebody else makes are recorded while asked for, and only then."""

from __future__ import annotations

import asyncio
import warnings
from contextlib import nullcontext
from typing import Any

import httpx2
import openai
import pytest

import kassette_nb as kb
from kassette_nb import kassette
from tests.llm.loopback import MODEL, SECRET, Loopback, kinds


def call(text: str) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}]}


def made_elsewhere(provider: Loopback) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=SECRET, base_url=provider.url, max_retries=0)


def test_a_client_made_elsewhere_is_recorded_inside_the_with(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    found = httpx2.AsyncClient._transport_for_url, httpx2.Client._transport_for_url

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        client = made_elsewhere(provider)
        with kb.llm.recording():
            first = await client.chat.completions.create(**call("recorded"))
        await client.chat.completions.create(**call("not recorded"))
        return first.choices[0].message.content

    first = asyncio.run(talk.start(run_id="r"))
    assert kinds(storage, "r") == ["start", "llm", "complete"]
    assert (httpx2.AsyncClient._transport_for_url, httpx2.Client._transport_for_url) == found
    provider.expect()
    cut = asyncio.run(talk.fork("r", at=2))
    assert asyncio.run(talk.start(run_id=cut)).result == first.result
    assert [seen["body"]["messages"][0]["content"] for seen in provider.seen] == ["not recorded"]


def test_workflows_started_inside_the_with_are_recorded_and_others_are_not(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    @kassette(storage=storage)
    async def talk(ctx: kb.Context, text: str) -> Any:
        client = made_elsewhere(provider)
        answer = await client.chat.completions.create(**call(f"{text} delay:0.1 "))
        return answer.choices[0].message.content

    async def main() -> None:
        outside = asyncio.create_task(talk.start("outside", run_id="outside"))
        await asyncio.sleep(0)
        with kb.llm.recording(), kb.llm.recording(["127.0.0.1"]):
            await talk.start("inside", run_id="inside")
        await outside

    asyncio.run(main())
    assert kinds(storage, "inside") == ["start", "llm", "complete"]
    assert kinds(storage, "outside") == ["start", "complete"]


def test_only_what_looks_like_a_model_is_recorded_unless_hosts_are_named(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    hosts: list[str] | None = None

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        with kb.llm.recording(hosts):
            models = await made_elsewhere(provider).models.list()
            return [model.id for model in models.data]

    assert asyncio.run(talk.start(run_id="by-its-look")).result == [MODEL]
    assert kinds(storage, "by-its-look") == ["start", "complete"]
    hosts = ["localhost", "127.0.0.1"]
    assert asyncio.run(talk.start(run_id="by-its-host")).result == [MODEL]
    assert kinds(storage, "by-its-host") == ["start", "llm", "complete"]


def test_a_client_that_is_recorded_anyway_is_recorded_once(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        with kb.llm.recording():
            return client.chat.completions.create(**call("hello")).model

    asyncio.run(talk.start(run_id="r"))
    assert kinds(storage, "r") == ["start", "llm", "complete"]


def test_a_patch_that_somebody_put_around_ours_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = httpx2.Client._transport_for_url
    with kb.llm.recording():
        ours = httpx2.Client._transport_for_url
        assert ours is not original

        def around(self: Any, url: Any) -> Any:
            return ours(self, url)

        httpx2.Client._transport_for_url = around  # type: ignore[method-assign]
    try:
        assert httpx2.Client._transport_for_url is around
    finally:
        httpx2.Client._transport_for_url = original  # type: ignore[method-assign]


def test_one_text_is_not_a_list_of_hosts() -> None:
    with pytest.raises(TypeError, match=r"recording\(\['api.example'\]\)"):
        kb.llm.recording("api.example")


def test_recording_without_with_says_that_it_does_nothing() -> None:
    with pytest.warns(RuntimeWarning, match="without `with`, so nothing was recorded"):
        kb.llm.recording()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with kb.llm.recording():
            pass


@pytest.mark.parametrize("waits", [False, True], ids=["sync", "async"])
def test_a_verification_sends_nothing_where_recording_was_forgotten(
    waits: bool, provider: Loopback, storage: kb.LocalStorage
) -> None:
    recorded = True

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        with kb.llm.recording() if recorded else nullcontext():
            for n in range(2):
                if waits:
                    await made_elsewhere(provider).chat.completions.create(**call(f"{n}"))
                else:
                    client = openai.OpenAI(api_key=SECRET, base_url=provider.url, max_retries=3)
                    client.chat.completions.create(**call(f"{n}"))
        await ctx.step("then", lambda: 1)
        await ctx.suspend("go on")

    asyncio.run(talk.start(run_id="r"))
    assert len(provider.seen) == 2
    provider.expect()
    assert asyncio.run(talk.verify("r")).fits
    recorded = False
    found = asyncio.run(talk.verify("r"))
    assert provider.seen == [], "live work is forbidden"
    told = str(found.divergence)
    asked = f"POST {provider.url}/chat/completions"
    assert f"asks for {asked}, but entry 1 recorded the model call 'llm' there" in told
    assert "is its client made with kb.llm.http_client, or kb.llm.recording() on?" in told
    with pytest.raises(kb.errors.ReplayMismatchError, match=r"or kb.llm.recording\(\) on"):
        asyncio.run(talk.resume("r", "go on", True))
    found_again = httpx2.Client._transport_for_url.__qualname__
    assert found_again == "Client._transport_for_url", "as it was"


def test_what_a_workflow_asks_by_itself_is_live_work_to_a_verification(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    looked: list[int] = []

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> int:
        await ctx.step("before", lambda: 1)
        async with httpx2.AsyncClient() as client:
            looked.append((await client.get(f"{provider.url}/models?key={SECRET}")).status_code)
        return looked[-1]

    assert asyncio.run(talk.start(run_id="r")).result == 200
    found = asyncio.run(talk.verify("r"))
    assert looked == [200]
    assert f"comes to GET {provider.url}/models" in str(found.divergence)
    assert "Put anything else into a step" in str(found.divergence)
    assert SECRET not in str(found.divergence)


def test_a_mock_transport_reaches_nobody_and_may_be_asked_by_a_verification(
    storage: kb.LocalStorage,
) -> None:
    mock = httpx2.MockTransport(lambda request: httpx2.Response(200, json={"n": 1}))

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        async with httpx2.AsyncClient(transport=mock) as client:
            asked = (await client.get("http://127.0.0.1/n")).json()["n"]
        return await ctx.step("then", lambda: asked)

    asyncio.run(talk.start(run_id="r"))
    assert asyncio.run(talk.verify("r")).fits


def test_code_beside_a_verification_reaches_the_network(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> None:
        await asyncio.sleep(0.1)

    async def main() -> int:
        await talk.start(run_id="r")
        verifying = asyncio.create_task(talk.verify("r"))
        await asyncio.sleep(0.05)
        async with httpx2.AsyncClient() as client:
            status = (await client.get(f"{provider.url}/models")).status_code
        assert (await verifying).fits
        return status

    assert asyncio.run(main()) == 200
