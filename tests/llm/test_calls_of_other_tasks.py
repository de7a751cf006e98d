"""What tasks and threads beside the branch get back: what they got when they asked."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

import kassette_nb as kb
from kassette_nb import kassette
from tests.llm.loopback import kinds

URL = "https://api.example/v1/chat/completions"
ANSWER = {"model": "m", "choices": []}
REFUSAL = {"error": {"message": "no"}}


def refusing_first() -> Callable[[httpx.Request], httpx.Response]:
    """A provider that refuses the first request and answers the others."""
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=ANSWER) if seen[1:] else httpx.Response(400, json=REFUSAL)

    return handle


def said(text: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


async def ask(client: httpx.AsyncClient, text: str) -> int:
    return (await client.post(URL, json=said(text))).status_code


def async_client(handle: Any) -> Any:
    return kb.llm.async_http_client(httpx, transport=httpx.MockTransport(handle))


def test_tasks_that_ask_the_same_get_back_what_each_of_them_got() -> None:
    client = async_client(refusing_first())
    storage = kb.MemoryStorage()
    reported: list[int] = []

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> list[int]:
        first, second = [await asyncio.create_task(ask(client, "same")) for _ in range(2)]
        if first == 400:
            await ctx.step("report", reported.append, first)
        return [first, second]

    assert asyncio.run(talk.start(run_id="r")).result == [400, 200]
    assert asyncio.run(talk.verify("r")).fits
    again = asyncio.run(talk.fork("r", at=len(kinds(storage, "r")) - 1))
    assert asyncio.run(talk.start(run_id=again)).result == [400, 200]
    assert reported == [400]


def test_a_failure_of_a_task_that_is_done_stands_before_what_the_workflow_does_next() -> None:
    client = async_client(refusing_first())
    storage = kb.MemoryStorage()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> list[int]:
        first, second = [await asyncio.create_task(ask(client, "same")) for _ in range(2)]
        await ctx.step("report", lambda: 1)
        return [first, second]

    asyncio.run(talk.start(run_id="r"))
    written = [i for i in kinds(storage, "r") if i.startswith("llm@") or i == "report"]
    assert written[-1] == "report"
    cut = asyncio.run(talk.fork("r", at=kinds(storage, "r").index("report")))
    assert asyncio.run(talk.start(run_id=cut)).result == [400, 200], "nothing is asked anew"


def test_threads_that_ask_the_same_get_back_what_each_of_them_got() -> None:
    transport = httpx.MockTransport(refusing_first())
    client = kb.llm.http_client(httpx, transport=transport)

    def blocking() -> int:
        return int(client.post(URL, json=said("same")).status_code)

    @kassette(storage=kb.MemoryStorage())
    async def talk(ctx: kb.Context) -> list[int]:
        loop, found = asyncio.get_running_loop(), []
        for _ in range(2):
            with ThreadPoolExecutor(1) as pool:
                run = contextvars.copy_context().run
                found.append(await loop.run_in_executor(pool, run, blocking))
        return found

    assert asyncio.run(talk.start(run_id="r")).result == [400, 200]
    assert asyncio.run(talk.verify("r")).fits
