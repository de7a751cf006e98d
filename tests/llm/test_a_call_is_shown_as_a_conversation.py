"""A recorded model call is shown as what was said, and two of them differ in what was said."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import kassette
from kassette_nb.notebook.matrix import ComparePanel
from kassette_nb.notebook.panel import Panel
from tests.llm.loopback import MODEL, Loopback

SYSTEM = "Be <b>brief</b>."


def tools(api: str) -> list[dict[str, Any]]:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    if api == "messages":
        return [{"name": "look", "input_schema": schema}]
    if api == "responses":
        return [{"type": "function", "name": "look", "parameters": schema}]
    return [{"type": "function", "function": {"name": "look", "parameters": schema}}]


async def call(provider: Loopback, api: str, text: str, streamed: bool, offer: bool) -> None:
    more: dict[str, Any] = {"model": MODEL, "stream": streamed}
    if offer:
        more["tools"] = tools(api)
    said: Any = [{"role": "user", "content": text}]
    if api == "messages":
        client = provider.async_anthropic()
        answer: Any = await client.messages.create(
            max_tokens=9, system=SYSTEM, messages=said, **more
        )
    elif api == "responses":
        answer = await provider.async_openai().responses.create(
            instructions=SYSTEM, input=said, **more
        )
    else:
        answer = await provider.async_openai().chat.completions.create(
            messages=[{"role": "system", "content": SYSTEM}, *said], **more
        )
    if streamed:
        _ = [piece async for piece in answer]


@pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_system_messages_tools_calls_and_answer_are_told_in_plain_form(
    api: str, streamed: bool, provider: Loopback, storage: kb.LocalStorage
) -> None:
    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> None:
        await call(provider, api, "left right", streamed, offer=True)
        await call(provider, api, "hello", streamed, offer=False)

    asyncio.run(talk.start(run_id="r"))
    run = kb.open(storage)["r"]
    (asked,) = run["llm"].conversations
    assert (asked.model, asked.tools) == (MODEL, ["look"])
    assert [(m.role, m.text) for m in asked.messages] == [
        ("system", SYSTEM),
        ("user", "left right"),
    ]
    assert asked.answer is not None
    assert asked.answer.calls == [("look", '{"word": "left"}'), ("look", '{"word": "right"}')]
    assert asked.finish_reason in ("tool_calls", "completed", "tool_use")
    (told,) = run["llm#2"].conversations
    assert told.answer is not None
    assert told.answer.text.startswith("« hello »")
    sent: list[dict[str, Any]] = []
    panel = Panel(run, sent.append, lambda summary: None)
    panel.handle({"type": "value", "offset": 1, "part": "args"})
    panel.close()
    text = sent[-1]["text"]
    assert text.startswith(f"model: {MODEL}\n\nsystem:\nBe <b>brief</b>.\n\nuser:\nleft right")
    assert "tools offered: look" in text
    assert '→ look({"word": "left"})' in text
    rows = list(run.steps()["result"])
    assert rows[0].startswith('look({"word": "left"})')
    assert rows[1].startswith("« hello »")
    assert "<b>brief</b>" not in run.html()


def test_two_attempts_are_compared_by_what_was_said(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    @kassette(storage=storage)
    async def talk(ctx: kb.Context, text: str) -> None:
        await call(provider, "chat", "the same", False, offer=False)
        await call(provider, "chat", text, False, offer=False)

    for text in ("one", "two"):
        asyncio.run(talk.start(text, run_id=text))
    runs = kb.open(storage)
    compared = kb.compare([runs["one"], runs["two"]])
    assert [row.equal for row in compared.rows] == [True, False], "ids and times aside"
    sent: list[dict[str, Any]] = []
    session = ComparePanel(compared, sent.append, lambda summary: None)
    session.handle({"type": "cell", "row": 1, "run": 1})
    lines = sent[-1]["text"].split("\n")
    assert sent[-1]["format"] == "diff"
    assert "-one" in lines
    assert "+two" in lines
    assert not any("chatcmpl" in line for line in lines)


def test_calls_inside_a_step_are_told_too(provider: Loopback, storage: kb.LocalStorage) -> None:
    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        async def think() -> str:
            for text in ("one", "two"):
                await call(provider, "messages", text, True, offer=False)
            return "thought"

        return await ctx.step("think", think)

    asyncio.run(talk.start(run_id="r"))
    said = kb.open(storage)["r"]["think"].conversations
    assert [c.messages[-1].text for c in said] == ["one", "two"]
    assert [c.line.startswith(f"« {n} »") for c, n in zip(said, ("one", "two"), strict=True)] == [
        True,
        True,
    ]
