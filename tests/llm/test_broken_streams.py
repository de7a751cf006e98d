"""Half an answer is never taken for one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

import kassette_nb as kb
from kassette_nb import kassette
from tests.llm.loopback import MODEL, Loopback, kinds, lines

WEATHER = (openai.OpenAIError, anthropic.AnthropicError)


def said(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def read(client: Any, api: str) -> str:
    """The text of one streamed answer."""
    texts: list[str] = []
    if api == "messages":
        call = {"model": MODEL, "max_tokens": 99, "messages": said("tell me"), "stream": True}
        async for event in await client.messages.create(**call):
            if event.type == "content_block_delta":
                texts.append(event.delta.text)  # noqa: PERF401
    elif api == "chat":
        call = {"model": MODEL, "messages": said("tell me"), "stream": True}
        async for chunk in await client.chat.completions.create(**call):
            texts.append(chunk.choices[0].delta.content or "")  # noqa: PERF401
    else:
        async for event in await client.responses.create(model=MODEL, input="hm", stream=True):
            if event.type == "response.output_text.delta":
                texts.append(event.delta)  # noqa: PERF401
    return "".join(texts)


@pytest.mark.parametrize("unframed", [False, True], ids=["chunked", "until closed"])
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_a_stream_cut_anywhere_is_asked_for_again(
    api: str, unframed: bool, provider: Loopback, tmp_path: Path
) -> None:
    client = provider.async_anthropic() if api == "messages" else provider.async_openai()
    storage = kb.LocalStorage(tmp_path)

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> str:
        return await read(client, api)

    whole = asyncio.run(talk.start(run_id="whole")).result
    cuts = 0
    for tenth in range(10):
        run_id = f"cut-{tenth}"
        provider.expect({"cut": tenth / 10, "unframed": unframed}, {})
        try:
            reached = asyncio.run(talk.start(run_id=run_id))
        except (kb.errors.InterruptedRunError, *WEATHER):
            cuts += 1
            assert "llm" not in kinds(storage, run_id)
            assert "note incomplete" in kinds(storage, run_id) or tenth == 0
            reached = asyncio.run(talk.start(run_id=run_id))
            assert len(provider.seen) == 2, "one more call"
        assert reached.result == whole, "never half an answer"
        assert asyncio.run(talk.verify(run_id)).fits
    print(f"{api}: {cuts} of 10 cuts were seen")
    assert cuts >= 9


def test_what_came_of_a_broken_stream_is_kept_for_the_debugger(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> str:
        return await read(client, "chat")

    provider.expect({"cut": 0.5})
    with pytest.raises(kb.errors.InterruptedRunError, match="stream of model call 'llm' is not"):
        asyncio.run(talk.start(run_id="r"))
    (note,) = [line for line in lines(storage, "r") if line["type"] == "note"]
    assert note["stepId"] == "llm"
    assert note["data"]["reason"].startswith("it broke: RemoteProtocolError")
    assert "tell me" in json.dumps(note["data"]["request"])
    assert "chat.completion.chunk" in note["data"]["result"]["text"]


def test_a_workflow_that_catches_a_cut_may_ask_the_same_again(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> str:
        for _ in range(3):
            try:
                text = await read(client, "chat")
                break
            except Exception:  # httpx2's, or the SDK's own
                continue
        return text

    provider.expect({"cut": 0.3}, {"cut": 0.6}, {})
    assert asyncio.run(talk.start(run_id="r")).status == "success"
    assert kinds(storage, "r") == [
        "start",
        "note incomplete",
        "note incomplete",
        "llm",
        "complete",
    ]
    assert asyncio.run(talk.verify("r")).fits


@pytest.mark.parametrize("waits", [False, True], ids=["sync", "async"])
def test_a_stream_that_is_closed_early_cannot_be_built_upon(
    waits: bool, provider: Loopback, storage: kb.LocalStorage
) -> None:
    client: Any = provider.async_openai() if waits else provider.openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> str:
        call = {"model": MODEL, "messages": said("tell me"), "stream": True}
        if waits:
            stream = await client.chat.completions.create(**call)
            async for _ in stream:
                break
            await stream.close()
        else:
            with client.chat.completions.create(**call) as stream:
                next(stream)
        await ctx.step("then", lambda: 1)
        return "went on"

    provider.expect({"pause": 0.01})
    with pytest.raises(kb.errors.InterruptedRunError, match="closed before its end"):
        asyncio.run(talk.start(run_id="r"))
    assert kinds(storage, "r") == ["start", "note incomplete"]


def test_another_call_while_a_stream_is_open_is_refused_by_name(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> str:
        call: Any = {"model": MODEL, "messages": said("tell me"), "stream": True}
        async for _ in await client.chat.completions.create(**call):
            await ctx.step("too early", lambda: 1)
        return "went on"

    with pytest.raises(kb.errors.ConcurrentUseError, match="read it to its end first"):
        asyncio.run(talk.start(run_id="r"))
    assert "too early" not in kinds(storage, "r")


def test_a_process_killed_in_the_middle_of_a_stream_asks_once_more(
    provider: Loopback, tmp_path: Path
) -> None:
    script = tmp_path / "agent.py"
    script.write_text(f"""
import asyncio, sys
from openai import AsyncOpenAI
import openai, kassette_nb as kb

client = AsyncOpenAI(api_key="k", base_url={provider.url!r},
                     http_client=kb.llm.async_http_client(openai))

@kb.kassette(storage={str(tmp_path / "runs")!r})
async def talk(ctx):
    texts = []
    async for chunk in await client.chat.completions.create(
        model="small-1", stream=True, messages=[{{"role": "user", "content": "tell me"}}]
    ):
        texts.append(chunk.choices[0].delta.content or "")
        print(len(texts), flush=True)
    return "".join(texts)

print(asyncio.run(talk.start(run_id="r")).result, flush=True)
""")
    storage = kb.LocalStorage(tmp_path / "runs")
    run = [sys.executable, str(script)]
    provider.expect({"pause": 0.05}, {})
    with subprocess.Popen(run, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "5":
            pass
        os.kill(process.pid, signal.SIGKILL)
    assert kinds(storage, "r") == ["start"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].startswith("« tell me »")
    assert len(provider.seen) == 2, "one more call"
    assert kinds(storage, "r") == ["start", "start", "llm", "complete"]


OVERLOADED = (
    "event: error\n"
    'data: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (OVERLOADED, "overloaded_error: Overloaded"),
        ('data: {"error":{"message":"no capacity","code":503}}', "no capacity"),
        ('data: {"type":"error","code":"server_error","message":"hm"}', "server_error: hm"),
        ('{"error":"model runner has stopped"}', "model runner has stopped"),
    ],
    ids=["anthropic", "openai", "responses", "ollama"],
)
@pytest.mark.parametrize("inside", [False, True], ids=["workflow", "step"])
def test_a_provider_that_breaks_a_stream_off_is_heard_with_its_reason(
    event: str, reason: str, inside: bool
) -> None:
    text = f'data: {{"choices":[{{"delta":{{"content":"an \\"error\\""}}}}]}}\n\n{event}\n\n'
    headers = {"content-type": "text/event-stream"}

    def handle(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=iter([text.encode()]), headers=headers)

    client = kb.llm.http_client(httpx, transport=httpx.MockTransport(handle))
    storage = kb.MemoryStorage()

    def listen() -> str:
        body = {"model": MODEL, "messages": said("hello"), "stream": True}
        with client.stream("POST", "https://api.example/v1/messages", json=body) as stream:
            for line in stream.iter_lines():
                if line and line == event.splitlines()[-1]:
                    break  # where an SDK raises
        return "heard"

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> None:
        if not inside:
            listen()
        await ctx.step("then", listen if inside else lambda: "then")

    told = f"the provider broke it off: {reason}"
    if inside:
        asyncio.run(talk.start(run_id="r"))
        (step,) = [line for line in lines(storage, "r") if line["type"] == "step"]
        assert step["calls"][0]["incomplete"] == told
    else:
        with pytest.raises(kb.errors.InterruptedRunError, match=re.escape(told)):
            asyncio.run(talk.start(run_id="r"))
        (note,) = [line for line in lines(storage, "r") if line["type"] == "note"]
        assert note["data"]["reason"] == told
