"""A stream that is not read to its end hides no failure, and what came of it can be seen."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import kassette
from tests.llm.loopback import MODEL, Loopback, kinds, lines

CALL: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "tell me"}],
    "stream": True,
}
WAYS = ["async", "async with", "sync", "in a branch"]


def typo() -> None:
    {}["my key typo"]  # type: ignore[index]  # the user's error


@pytest.mark.parametrize("way", WAYS)
def test_an_error_in_the_loop_over_a_stream_is_told_with_its_place(
    way: str, provider: Loopback, storage: kb.LocalStorage
) -> None:
    client, blocking = provider.async_openai(), provider.openai()

    async def reads(ctx: kb.Context) -> None:
        async for _ in await client.chat.completions.create(**CALL):
            typo()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> None:
        if way == "async":
            await reads(ctx)
        elif way == "in a branch":
            await ctx.parallel({"left": reads})
        elif way == "sync":
            for _ in blocking.chat.completions.create(**CALL):
                typo()
        else:
            async with await client.chat.completions.create(**CALL) as stream:
                async for _ in stream:
                    typo()

    provider.expect({"pause": 0.01})
    with pytest.raises(kb.errors.InterruptedRunError) as caught:
        asyncio.run(talk.start(run_id="r"))
    told = str(caught.value)
    assert "the workflow failed with KeyError: 'my key typo' while the stream of" in told
    assert "read streams to their end" in told.lower()
    assert "call the model inside a step" in told
    assert type(caught.value.__cause__) is KeyError
    shown = "".join(traceback.format_exception(caught.value))
    assert '{}["my key typo"]' in shown, "the line that failed"
    written = lines(storage, "r")
    assert [line["type"] for line in written] == ["start", "note"], "and no ending"
    assert written[1]["kind"] == "incomplete"
    assert "chat.completion.chunk" in written[1]["data"]["result"]["text"]
    assert kb.open(storage)["r"].fold().status == "interrupted"


def test_an_error_where_the_code_no_longer_fits_is_told_too(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    fails = False

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> None:
        if fails:
            typo()
        await ctx.step("then", lambda: 1)
        await ctx.suspend("go on")

    asyncio.run(talk.start(run_id="r"))
    fails = True
    with pytest.raises(kb.errors.ReplayMismatchError) as caught:
        asyncio.run(talk.resume("r", "go on", True))
    assert type(caught.value.__cause__) is KeyError


@pytest.mark.parametrize("then", ["returns", "goes on"])
@pytest.mark.parametrize("waits", [False, True], ids=["sync", "async"])
def test_a_loop_that_is_left_by_break_leaves_a_note(
    waits: bool, then: str, provider: Loopback, storage: kb.LocalStorage
) -> None:
    client: Any = provider.async_openai() if waits else provider.openai()
    kept: list[Any] = []

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> str:
        made = client.chat.completions.create(**CALL)
        kept.append(await made if waits else made)
        if waits:
            async for _ in kept[0]:
                break
        else:
            for _ in kept[0]:
                break
        if then == "goes on":
            await ctx.step("then", lambda: 1)
        return "went on"

    provider.expect({"pause": 0.01})
    wanted: type[Exception] = kb.errors.InterruptedRunError
    if then == "goes on":
        wanted = kb.errors.ConcurrentUseError
    with pytest.raises(wanted, match="or call the model inside a step"):
        asyncio.run(talk.start(run_id="r"))
    assert kinds(storage, "r") == ["start", "note incomplete"]
    assert "tell me" in str(lines(storage, "r")[1]["data"]["request"])


@pytest.mark.parametrize("place", ["workflow", "step"])
def test_a_process_that_ends_with_a_stream_left_open_says_nothing_of_generators(
    place: str, provider: Loopback, tmp_path: Path
) -> None:
    script = tmp_path / "agent.py"
    script.write_text(f"""
import asyncio
from openai import AsyncOpenAI
import openai, kassette_nb as kb

client = AsyncOpenAI(api_key="k", base_url={provider.url!r},
                     http_client=kb.llm.async_http_client(openai))

async def reads():
    stream = await client.chat.completions.create(
        model="small-1", stream=True, messages=[{{"role": "user", "content": "tell me"}}]
    )
    async for _ in stream:
        break

@kb.kassette(storage={str(tmp_path / "runs")!r})
async def talk(ctx):
    await (reads() if {place!r} == "workflow" else ctx.step("reads", reads))

try:
    asyncio.run(talk.start(run_id="r"))
except kb.errors.InterruptedRunError:
    print("interrupted")
""")
    provider.expect({"pause": 0.02})
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout == ("interrupted\n" if place == "workflow" else "")


@pytest.mark.parametrize("way", ["break", "close", "cut"])
def test_a_stream_broken_off_inside_a_step_is_told_and_its_price_is_unknown(
    way: str, provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_anthropic()

    async def reads() -> str:
        await client.messages.create(**{**CALL, "stream": False}, max_tokens=9)
        stream: Any = await client.messages.create(**CALL, max_tokens=9)
        try:
            async for event in stream:
                if way != "cut" and event.type == "content_block_delta":
                    break
        except Exception as error:  # httpx2's, or the SDK's own
            return type(error).__name__
        if way == "close":
            await stream.close()
        return "read a little"

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        return await ctx.step("reads", reads)

    provider.expect({}, {"cut": 0.5} if way == "cut" else {"pause": 0.01})
    asyncio.run(talk.start(run_id="r"))
    step = lines(storage, "r")[1]
    whole, broken = step["calls"]
    assert "incomplete" not in whole
    reasons = {"break": "it was left", "close": "it was closed", "cut": "it broke"}
    assert broken["incomplete"].startswith(reasons[way])
    assert broken["request"]["body"]["messages"] == CALL["messages"]
    assert broken["answer"]["content"][0]["text"].startswith("«")
    assert broken["usage"]["model"] == MODEL
    assert "outputTokens" not in broken["usage"], "one was counted when it began"
    assert step["usage"]["unpriced"] == 2
    told = kb.open(storage)["r"]["reads"].conversations
    assert len(told) == 2
    assert told[1].finish_reason == f"incomplete: {broken['incomplete']}"
