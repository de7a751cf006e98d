"""The pieces of a stream add up to the answer without streaming, and to when it is over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kassette_nb.llm.assemble import assembled
from kassette_nb.llm.wire import Answer, Ending, events, recorded_answer
from tests.llm import provider

TOOLS = [{"name": "north", "function": {"name": "north"}}]
BODIES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hello «»"}]},
    {"messages": [{"role": "user", "content": "left right"}], "tools": TOOLS},
]


def without(value: Any, *names: str) -> Any:
    if isinstance(value, dict):
        return {k: without(v, *names) for k, v in value.items() if k not in names}
    return [without(v, *names) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("body", BODIES, ids=["text", "tools"])
@pytest.mark.parametrize("path", list(provider.APIS))
def test_a_stream_adds_up_to_the_whole_answer(path: str, body: dict[str, Any]) -> None:
    whole, pieces = provider.APIS[path]
    asked = {"model": "m", "input": body["messages"], "stream_options": {"include_usage": True}}
    asked.update(body)
    text = "".join(pieces(asked, 1)).encode()
    found = assembled(events(text))
    expected = whole(asked, 1)
    if "chat" in path:  # a stream numbers its tool calls
        found = without(found, "index")
        expected = without(expected, "index")
    assert found == expected


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
@pytest.mark.parametrize("path", list(provider.APIS))
def test_a_stream_is_over_with_its_last_event_and_no_earlier(path: str, size: int) -> None:
    data = "".join(provider.APIS[path][1]({"model": "m", **BODIES[0]}, 1)).encode()
    ending = Ending(path)
    starts = range(0, len(data), size)
    over = [ending.feed(data[n : n + size]) for n in starts]
    assert over == [False] * (len(starts) - 1) + [True]


@pytest.mark.parametrize("path", list(provider.APIS))
def test_a_stream_that_just_ends_early_was_cut(path: str) -> None:
    data = "".join(provider.APIS[path][1]({"model": "m", **BODIES[0]}, 1)).encode()
    reason = max(data.rfind(b'"stop"'), data.rfind(b'"end_turn"'))
    limit = reason if reason > 0 else len(data) - 3
    for cut in range(0, limit, 11):
        ending = Ending(path)
        ending.feed(data[:cut])
        assert not ending.ended(cleanly=True), f"cut at {cut} of {len(data)}"


def test_a_model_that_talks_of_last_events_does_not_end_its_stream() -> None:
    talk = 'event: message_stop\ndata: [DONE]\n\n {"type": "message_stop"} "stop_reason": "x"'
    piece = {"choices": [{"index": 0, "delta": {"content": talk}, "finish_reason": None}]}
    ending = Ending("/v1/chat/completions")
    assert not ending.feed(f"data: {json.dumps(piece)}\n\n".encode())
    assert not ending.ended(cleanly=True)


def test_a_stream_of_an_unknown_kind_is_over_when_it_ends() -> None:
    ending = Ending("/v1beta/models/g:streamGenerateContent")
    assert not ending.feed(
        b'data: {"candidates": [{"content": {"parts": [{"text": "a"}]}}]}\r\n\r\n'
    )
    assert not ending.ended(cleanly=False)
    assert ending.ended(cleanly=True)


def test_pieces_of_google_and_lines_of_ollama_add_up() -> None:
    parts: list[dict[str, Any]] = [
        {"candidates": [{"content": {"role": "model", "parts": [{"text": t}]}}]} for t in ("a", "b")
    ]
    parts[1]["candidates"][0]["finishReason"] = "STOP"
    parts.append({"usageMetadata": {"promptTokenCount": 1}})
    text = "".join(f"data: {json.dumps(part)}\r\n\r\n" for part in parts).encode()
    found = assembled(events(text))
    assert found is not None
    assert found["candidates"][0]["content"]["parts"] == [{"text": "a"}, {"text": "b"}]
    assert found["usageMetadata"] == {"promptTokenCount": 1}
    lines = [
        {"model": "o", "message": {"role": "assistant", "content": "a"}, "done": False},
        {"model": "o", "message": {"role": "assistant", "content": "b"}, "done": False},
        {"model": "o", "message": {"content": ""}, "done": True, "eval_count": 2},
    ]
    found = assembled(events("\n".join(map(json.dumps, lines)).encode()))
    assert found is not None
    assert (found["message"]["content"], found["eval_count"]) == ("ab", 2)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, {"a": "b"}, [b'{"n": 1.0, "big": 123456789012345678901234567890}\n']),
        Answer(200, {}, [b"not json"]),
        Answer(200, {}, [b"\xff\xfe\x00"]),
        Answer(200, {}, [b'"\\ud800"']),
        Answer(200, {}, [b""]),
        Answer(200, {}, ["é".encode()[:1], "é".encode()[1:], b"\n"], [1, 2, 3]),
        Answer(200, {}, [b"\xff", b"\xfe"], [1, 2]),
        Answer(200, {}, [], []),
    ],
    ids=["json", "text", "bytes", "surrogate", "empty", "split", "binary stream", "no pieces"],
)
def test_an_answer_comes_back_from_a_journal_as_it_was(answer: Answer) -> None:
    import msgspec

    line = msgspec.json.encode(answer.recorded())
    assert b"\n" not in line
    found = recorded_answer(msgspec.Raw(line), "llm")
    assert (found.status, found.headers, found.times) == (
        answer.status,
        answer.headers,
        answer.times,
    )
    if answer.times is not None:
        assert found.chunks == answer.chunks
    elif answer.content.startswith(b"{"):
        assert found.content == b'{"n":1.0,"big":123456789012345678901234567890}'
    else:
        assert found.content == answer.content
