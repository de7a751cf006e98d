"""What a model answered comes back without it: equal objects, chunk for chunk."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import kassette
from tests.llm.loopback import MODEL, Loopback, kinds, lines

TOOLS = ["north", "south"]
SAID = "Grüße 你好 🙂"


def chat_tools() -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": {"word": {"type": "string"}}}
    return [
        {"type": "function", "function": {"name": name, "parameters": schema}} for name in TOOLS
    ]


def asked(api: str, streamed: bool, tools: bool) -> dict[str, Any]:
    """The arguments of one call of an API."""
    said = "left right left" if tools else SAID
    call: dict[str, Any] = {"model": MODEL}
    call["input" if api == "responses" else "messages"] = [{"role": "user", "content": said}]
    if api == "messages":
        call["max_tokens"] = 100
    if streamed:
        call["stream"] = True
        if api == "chat":
            call["stream_options"] = {"include_usage": True}
    if tools:
        call["tools"] = chat_tools()
        if api == "messages":
            call["tools"] = [{"name": n, "input_schema": {"type": "object"}} for n in TOOLS]
        elif api == "responses":
            call["tools"] = [{"type": "function", "name": n, "parameters": {}} for n in TOOLS]
    return call


def method(client: Any, api: str) -> Callable[..., Any]:
    made = {"chat": lambda: client.chat.completions, "responses": lambda: client.responses}
    found: Callable[..., Any] = made.get(api, lambda: client.messages)().create
    return found


CASES = list(
    itertools.product(
        [False, True], ["chat", "responses", "messages"], [False, True], [False, True]
    )
)


def name_of(case: tuple[bool, str, bool, bool]) -> str:
    waits, api, streamed, gzip = case
    words = ["async" if waits else "sync", api, "stream" if streamed else "json"]
    return "-".join([*words, "gzip"] if gzip else words)


class Case:
    """One way to ask: twice, once with tools."""

    def __init__(self, provider: Loopback, storage: kb.Storage, case: Any) -> None:
        waits, api, streamed, _ = case
        named = "anthropic" if api == "messages" else "openai"
        client = getattr(provider, f"async_{named}" if waits else named)()
        self.run_id = name_of(case)
        self.came: list[str] = []

        async def talk(ctx: kb.Context) -> list[str]:
            came = self.came = []
            for tools in (False, True):
                answer = method(client, api)(**asked(api, streamed, tools))
                if waits:
                    answer = await answer
                if not streamed:
                    came.append(answer.model_dump_json())
                elif waits:
                    came.extend([chunk.model_dump_json() async for chunk in answer])
                else:
                    came.extend([chunk.model_dump_json() for chunk in answer])
            return came

        self.workflow = kassette(storage=storage)(talk)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Case, list[str]]]:
    """All cases, recorded from a server that is gone now, and what came then."""
    storage = kb.LocalStorage(tmp_path_factory.mktemp("recorded"))
    provider = Loopback()
    cases = {}
    try:
        for each in CASES:
            case = Case(provider, storage, each)
            provider.expect(*[{"gzip": each[-1]}] * 2)
            assert asyncio.run(case.workflow.start(run_id=case.run_id)).result == case.came
            assert len(provider.seen) == 2
            cases[case.run_id] = case, case.came
    finally:
        provider.stop()
    return cases


@pytest.mark.parametrize("name", [name_of(case) for case in CASES])
def test_a_recorded_call_comes_back_equal_when_its_server_is_gone(
    name: str, recorded: dict[str, tuple[Case, list[str]]]
) -> None:
    case, came = recorded[name]
    storage = case.workflow.storage
    assert len(came) >= (8 if "stream" in name else 2)
    assert any("call_0" in text or "toolu_0" in text for text in came), "tools were called"
    assert kinds(storage, name) == ["start", "llm", "llm#2", "complete"]
    found = asyncio.run(case.workflow.verify(name))
    assert (found.replayed, found.fits) == (2, True)
    assert case.came is not came
    assert case.came == came
    again = asyncio.run(case.workflow.fork(name, at=3))
    assert asyncio.run(case.workflow.start(run_id=again)).result == came


def test_the_pieces_of_a_stream_are_kept_as_they_came_even_through_a_character(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai()
    came: list[list[bytes]] = []

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> str:
        call = client.chat.completions.with_streaming_response
        async with call.create(**asked("chat", True, False)) as answer:
            came.append([chunk async for chunk in answer.iter_bytes()])
        return b"".join(came[-1]).decode()

    provider.expect({"split": 7})
    live = asyncio.run(talk.start(run_id="r"))
    assert "🙂" in live.result
    asyncio.run(talk.verify("r"))
    assert came[0] == came[1]
    assert max(map(len, came[0])) == 7
    with pytest.raises(UnicodeDecodeError):
        [chunk.decode() for chunk in came[0]]
    (step,) = [line for line in lines(storage, "r") if line["type"] == "step"]
    assert "🙂" in step["result"]["text"], "a person can read a stream in the file"


def test_an_answer_of_a_megabyte_is_recorded_and_replayed(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> list[int]:
        sizes = []
        for streamed in (False, True):
            call = {**asked("chat", streamed, False)}
            call["messages"] = [{"role": "user", "content": "size:1000000"}]
            answer = client.chat.completions.create(**call)
            texts = (
                [c.choices[0].delta.content or "" for c in answer if c.choices]
                if streamed
                else [answer.choices[0].message.content]
            )
            sizes.append(len("".join(texts)))
        return sizes

    assert asyncio.run(talk.start(run_id="r")).result == [1_000_000, 1_000_000]
    provider.expect()
    assert asyncio.run(talk.verify("r")).fits
    assert provider.seen == []


@pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("waits", [False, True], ids=["sync", "async"])
def test_an_answer_larger_than_the_limit_is_refused_and_the_run_stays_open(
    streamed: bool, waits: bool, provider: Loopback, storage: kb.LocalStorage
) -> None:
    client: Any = (provider.async_openai if waits else provider.openai)(max_retries=2)

    @kassette(storage=storage, max_payload=5_000)
    async def talk(ctx: kb.Context) -> None:
        call = {**asked("chat", streamed, False)}
        call["messages"] = [{"role": "user", "content": "size:10000"}]
        try:
            answer = client.chat.completions.create(**call)
            answer = await answer if waits else answer
            if streamed:
                _ = [chunk async for chunk in answer] if waits else list(answer)
        except Exception:  # what agents write
            await ctx.step("instead", lambda: 1)

    with pytest.raises(kb.errors.PayloadTooLargeError, match="answer of model call 'llm'"):
        asyncio.run(talk.start(run_id="r"))
    assert kinds(storage, "r") == ["start", "note incomplete"], "it is paid for"
    assert len(provider.seen) == 1, "an SDK must not take a refusal of ours for weather"


def test_outside_of_a_workflow_a_client_is_an_ordinary_one(provider: Loopback) -> None:
    answer = provider.openai().chat.completions.create(**asked("chat", False, False))
    assert SAID in answer.choices[0].message.content
    (seen,) = provider.seen
    assert "gzip" in seen["headers"]["accept-encoding"], "nothing about it is changed"


def test_a_recorded_call_is_one_append(provider: Loopback) -> None:
    counted: list[int] = []

    class Counting(kb.MemoryStorage):
        def append(self, run_id: str, data: bytes, *rest: Any) -> Any:
            counted.append(len(data.splitlines()))
            return super().append(run_id, data, *rest)

    storage = Counting()
    clients = provider.async_openai(), provider.openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> list[int]:
        appends = []
        for streamed in (False, True):
            call = asked("chat", streamed, False)
            counted.clear()
            answer = await clients[0].chat.completions.create(**call)
            _ = [c async for c in answer] if streamed else None
            answer = clients[1].chat.completions.create(**call)
            _ = list(answer) if streamed else None
            appends.append(len(counted))
        return appends

    assert asyncio.run(talk.start()).result == [2, 2], "two calls, two appends"


def test_a_replayed_stream_takes_its_recorded_time_if_asked(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    import openai

    paced = provider.async_openai(http_client=kb.llm.async_http_client(openai, paced=True))
    at_once = provider.async_openai()
    took: list[float] = []
    client = paced

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async for _ in await client.chat.completions.create(**asked("chat", True, False)):
            pass
        took.append(loop.time() - began)

    provider.expect({"pause": 0.02})
    asyncio.run(talk.start(run_id="r"))
    asyncio.run(talk.verify("r"))
    (step,) = [line for line in lines(storage, "r") if line["type"] == "step"]
    recorded = step["result"]["times"][-1] / 1000
    assert recorded > 0.2
    assert took[1] >= recorded * 0.9
    client = at_once
    asyncio.run(talk.verify("r"))
    assert took[2] < recorded / 2
