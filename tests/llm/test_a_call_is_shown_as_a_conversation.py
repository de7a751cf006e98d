"""A recorded model call is shown as what was said, and two of them differ in what was said."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import kassette
from kassette_nb.llm.conversation import read
from kassette_nb.notebook.matrix import ComparePanel
from kassette_nb.notebook.panel import Panel
from kassette_nb.notebook.rows import Rows
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
    assert rows[0] == 'look({"word": "left"}) · look({"word": "right"})'
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


def shown(run: kb.Run, offset: int, name: str) -> dict[str, Any]:
    """Return one part of an entry as the panel's page gets it."""
    sent: list[dict[str, Any]] = []
    panel = Panel(run, sent.append, lambda summary: None)
    panel.handle({"type": "value", "offset": offset, "part": name})
    panel.close()
    return sent[-1]


def test_arguments_have_the_parameters_and_what_the_tools_take(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> None:
        schema: dict[str, Any] = {"type": "object", "properties": {"word": {"type": "string"}}}
        await provider.async_openai().chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "left"}],
            tools=[{"type": "function", "function": {"name": "look", "parameters": schema}}],
            temperature=0.25,
            max_tokens=9,
        )

    asyncio.run(talk.start(run_id="r"))
    run = kb.open(storage)["r"]
    told = run["llm"].conversations[0]
    assert told.parameters == {"temperature": 0.25, "max_tokens": 9}
    text = shown(run, 1, "args")["text"]
    for words in ("temperature 0.25", "max_tokens 9", '"word": {'):
        assert words in text


def test_what_is_asked_beside_conversations_is_named_by_its_path(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> None:
        await provider.async_openai().models.list()

    asyncio.run(talk.start(run_id="r"))
    run = kb.open(storage)["r"]
    assert list(run.steps()["result"]) == ["GET /v1/models · 200"]
    assert [row["p"] for row in rows(run) if row["kind"] == "llm"] == ["GET /v1/models · 200"]


def rows(run: kb.Run) -> list[dict[str, Any]]:
    made = Rows()
    made.follow(run.journal, run.fold())
    return made.shown()


def test_the_notes_of_a_call_are_told_in_words_and_half_an_answer_as_a_conversation(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai(max_retries=1)

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> None:
        async for _ in await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "tell me"}], stream=True
        ):
            pass

    busy = {"status": 429, "headers": {"retry-after-ms": "1"}}
    provider.expect(busy, {"cut": 0.5})
    with pytest.raises(kb.errors.InterruptedRunError):
        asyncio.run(talk.start(run_id="r"))
    run = kb.open(storage)["r"]
    attempt, broken = (row["p"] for row in rows(run) if row["kind"] == "note")
    assert attempt == "attempt 1 · HTTP 429 · not now"
    assert broken.startswith("incomplete attempt 2 · it broke: RemoteProtocolError")
    value = shown(run, 2, "result")
    assert value["format"] == "conversation"
    assert value["turns"][0]["text"] == "tell me"
    assert value["turns"][1]["text"].startswith("« tell")
    assert value["note"].startswith("incomplete: it broke")


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_an_answer_of_a_tool_says_which_call_it_answers(api: str) -> None:
    made: Any
    if api == "chat":
        calls = [
            {"id": i, "type": "function", "function": {"name": "look", "arguments": f'{{"n":{n}}}'}}
            for n, i in enumerate("ab")
        ]
        made = [{"role": "assistant", "tool_calls": calls}]
        made += [{"role": "tool", "tool_call_id": i, "content": "seen"} for i in "ba"]
        request = {"messages": made}
    elif api == "responses":
        made = [
            {"type": "function_call", "call_id": i, "id": f"x{i}", "name": "look", "arguments": a}
            for i, a in (("a", '{"n":0}'), ("b", '{"n":1}'))
        ]
        made += [{"type": "function_call_output", "call_id": i, "output": "seen"} for i in "ba"]
        request = {"input": made}
    else:
        uses = [
            {"type": "tool_use", "id": i, "name": "look", "input": {"n": n}}
            for n, i in enumerate("ab")
        ]
        made = [{"role": "assistant", "content": uses}]
        made += [
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": i, "content": "s"}]}
            for i in "ba"
        ]
        request = {"messages": made}
    said = read(request, None).messages
    assert [m.name.replace(" ", "") for m in said[-2:]] == ['look({"n":1})', 'look({"n":0})']


def test_the_answer_of_an_sdk_is_refused_as_a_value_with_the_way_out(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> None:
        said: Any = [{"role": "user", "content": "hello"}]
        await ctx.step("ask", client.chat.completions.create, model=MODEL, messages=said)

    with pytest.raises(kb.errors.JournalValueError, match=r"return its \.model_dump\(\)"):
        asyncio.run(talk.start(run_id="r"))
