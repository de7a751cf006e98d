"""A recorded answer is for the request it was given for; and what of a request is never written."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from pathlib import Path
from typing import Any

import openai
import pytest

import kassette_nb as kb
from kassette_nb import kassette
from kassette_nb.llm.request import request_of
from tests.llm.loopback import MODEL, SECRET, Loopback, kinds, lines


def said(text: str) -> Any:
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]


def of(body: Any, url: str = "https://api.example/v1/chat/completions") -> str:
    return request_of("POST", url, "application/json", json.dumps(body).encode()).digest


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"messages": said("other")}, ['- "content": "hello"', '+ "content": "other"']),
        ({"model": "large-1"}, ['- "model": "small-1"', '+ "model": "large-1"']),
        ({"temperature": 0.5}, ['+ "temperature": 0.5']),
    ],
    ids=["prompt", "model", "temperature"],
)
def test_another_request_in_the_place_of_a_recorded_one_is_a_mismatch_with_its_difference(
    changes: dict[str, Any], shown: list[str], provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai(max_retries=5)
    call: dict[str, Any] = {"messages": said("hello"), "model": MODEL}

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        answer = await client.chat.completions.create(**call)
        await ctx.suspend("go on")
        return answer.choices[0].message.content

    asyncio.run(talk.start(run_id="r"))
    before = lines(storage, "r")
    provider.expect()
    call.update(changes)
    with pytest.raises(kb.errors.ReplayMismatchError) as caught:
        asyncio.run(talk.resume("r", "go on", {"approved": True}))
    told = str(caught.value)
    lines_told = ["".join(line.split()).rstrip(",") for line in told.split("\n")]
    for line in shown:
        assert line.replace(" ", "") in lines_told
    assert "fork the run at 'llm'" in told
    assert (caught.value.offset, caught.value.recorded) == (1, "llm")
    assert lines(storage, "r") == before, "nothing was written"
    assert provider.seen == [], "and nobody was asked"
    fork = asyncio.run(talk.fork("r", at="llm"))
    assert asyncio.run(talk.start(run_id=fork)).status == "suspended"
    assert len(provider.seen) == 1


def test_the_spelling_of_a_request_does_not_matter() -> None:
    assert of({"a": 1, "b": [1.0, {"c": "d"}]}) == of({"b": [1, {"c": "d"}], "a": 1.0})
    assert of({"a": 1}) != of({"a": True})
    assert of({"a": [1, 2]}) != of({"a": [2, 1]})
    assert of({"a": 1}) != of({"a": 1}, "https://other.example/v1/chat/completions")


def test_the_boundary_that_is_drawn_for_a_form_does_not_matter() -> None:
    def form(boundary: str, text: str) -> str:
        body = f"--{boundary}\r\n\r\n{text}\r\n--{boundary}--".encode()
        kind = f'multipart/form-data; boundary="{boundary}"'
        return request_of("POST", "https://api.example/v1/files", kind, body).digest

    assert form("b0b0", "text") == form("c1c1", "text")
    assert form("b0b0", "text") != form("b0b0", "other")


def test_keys_in_a_url_or_a_body_are_neither_kept_nor_compared() -> None:
    def asked(key: str) -> Any:
        tool = {"type": "mcp", "authorization": key, "headers": {"X-Team": key}}
        schema = {"type": "object", "properties": {"password": {"type": "string"}}}
        body = {"model": MODEL, "api_key": key, "tools": [tool, {"parameters": schema}]}
        url = f"https://u:{key}@api.example/v1/m?key={key}&alt=sse&api-version=2"
        return request_of("POST", url, "application/json", json.dumps(body).encode())

    one, other = asked("KEY-ONE"), asked("KEY-TWO")
    assert one.digest == other.digest
    assert "KEY" not in json.dumps(one.recorded())
    assert one.url.startswith("https://api.example/v1/m?key=")
    assert one.url.endswith("&alt=sse&api-version=2")
    assert one.body["tools"][1]["parameters"]["properties"]["password"] == {"type": "string"}


def test_no_secret_reaches_a_journal_a_log_or_an_error(
    provider: Loopback, storage: kb.LocalStorage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = provider.openai(
        default_query={"key": SECRET, "api-version": "1"},
        default_headers={"x-api-key": SECRET, "cookie": f"session={SECRET}"},
        max_retries=1,
    )
    text = "hello"
    shown: list[str] = []

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        for streamed in (False, True):
            answer: Any = client.chat.completions.create(
                model=MODEL, messages=said(text), stream=streamed
            )
            if streamed:
                list(answer)

        def inside() -> str | None:
            answer = client.chat.completions.create(model=MODEL, messages=said("inside"))
            return answer.choices[0].message.content

        await ctx.step("inside", inside)
        try:
            client.chat.completions.create(model=MODEL, messages=said("refused"))
        except openai.APIStatusError as refusal:
            shown.append(str(refusal))

    echo = f"no: {SECRET}"  # as some providers do
    refused = {"status": 401, "message": echo, "headers": {"www-authenticate": SECRET}}
    provider.expect({}, {"cut": 0.5})
    with caplog.at_level(logging.DEBUG, logger="kassette_nb"):
        with pytest.raises(kb.errors.InterruptedRunError):
            asyncio.run(talk.start(run_id="r"))
        provider.expect({}, {}, refused)
        asyncio.run(talk.start(run_id="r"))
        assert provider.seen[0]["headers"]["authorization"] == f"Bearer {SECRET}"
        assert f"key={SECRET}" in provider.seen[0]["path"]
        text = "changed"
        asyncio.run(talk.fork("r", at=len(kinds(storage, "r")) - 1, new_run_id="s"))
        try:
            asyncio.run(talk.start(run_id="s"))
        except kb.errors.ReplayMismatchError as problem:
            shown.append("".join(traceback.format_exception(problem)))
    assert len(shown) == 2
    run = kb.open(storage)["r"]
    written = [path.read_text() for path in tmp_path.rglob("*.jsonl")]
    everything = "\n".join([*written, *shown, caplog.text, run.html(), repr(run)])
    assert "inside" in everything
    for secret in (SECRET, "COOKIE-SECRET", "www-authenticate", "set-cookie", "Bearer"):
        assert secret.lower() not in everything.lower()


@pytest.mark.parametrize("waits", [False, True], ids=["sync", "async"])
def test_a_proxy_of_the_environment_is_used(
    waits: bool, provider: Loopback, storage: kb.LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", provider.url.removesuffix("/v1"))
    make = provider.async_openai if waits else provider.openai
    client: Any = make(base_url="http://models.invalid/v1")

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        answer = client.chat.completions.create(model=MODEL, messages=said("through a proxy"))
        answer = await answer if waits else answer
        return answer.choices[0].message.content

    first = asyncio.run(talk.start(run_id="r"))
    (seen,) = provider.seen
    assert seen["path"] == "http://models.invalid/v1/chat/completions"
    assert "through a proxy" in first.result
    assert asyncio.run(talk.verify("r")).fits


def test_the_limits_and_timeouts_of_the_sdk_are_kept() -> None:
    ours: Any = kb.llm.http_client(openai)
    theirs: Any = openai.DefaultHttpxClient()
    assert ours.timeout == theirs.timeout
    assert ours.follow_redirects == theirs.follow_redirects
    pools = [client._transport._pool for client in (ours, theirs)]
    assert pools[0]._max_connections == pools[1]._max_connections
    ours.close()
    theirs.close()


def test_a_module_without_a_client_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"'json' has no HTTP client of its own. Give the library"):
        kb.llm.http_client(json)
    with pytest.raises(TypeError, match=r"takes the SDK's module, not 'OpenAI'"):
        kb.llm.http_client(openai.OpenAI(api_key="k"))  # type: ignore[arg-type]  # what is refused


def test_an_override_of_an_answer_that_is_none_is_refused_by_name(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        answer = client.chat.completions.create(model=MODEL, messages=said("hello"))
        return answer.choices[0].message.content

    asyncio.run(talk.start(run_id="r"))
    bad = asyncio.run(talk.fork("r", override={"llm": "another answer"}))
    with pytest.raises(kb.errors.JournalValueError, match="is not a provider's answer"):
        asyncio.run(talk.start(run_id=bad))
    result = kb.open(storage)["r"]["llm"].value
    result["body"]["choices"][0]["message"]["content"] = "another answer"
    good = asyncio.run(talk.fork("r", override={"llm": result}))
    assert asyncio.run(talk.start(run_id=good)).result == "another answer"
