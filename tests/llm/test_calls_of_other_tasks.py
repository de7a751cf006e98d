"""What tasks and threads beside the branch get back: what they got when they asked."""

from __future__ import annotations

import asyncio
import contextvars
import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

import kassette_nb as kb
from kassette_nb import kassette
from kassette_nb.llm import turn
from tests.llm.loopback import kinds, lines

URL = "https://api.example/v1/chat/completions"
ANSWER = {"model": "m", "choices": []}
REFUSAL = {"error": {"message": "no"}}


def without(storage: kb.Storage, run_id: str, step_id: str) -> bytes:
    """The journal of a run as if it had been killed at its end, before a call was answered."""
    kept = [line for line in lines(storage, run_id)[:-1] if line.get("stepId") != step_id]
    return b"".join(json.dumps({**k, "offset": n}).encode() + b"\n" for n, k in enumerate(kept))


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


async def slow_first(request: httpx.Request) -> httpx.Response:
    """A provider that takes its time for what is slow."""
    if b"slow" in request.content:
        await asyncio.sleep(0.3)
    return httpx.Response(200, json=ANSWER)


def impatient(limit: dict[str, float], storage: kb.Storage) -> kb.Workflow:
    client = async_client(slow_first)

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> str:
        task = asyncio.create_task(ask(client, "slow"))
        await asyncio.wait([task], timeout=limit["seconds"])
        said = "in time" if task.done() else "too late"
        task.cancel()
        return str(await ctx.step("use", lambda said: said, said))

    return talk


def test_an_answer_that_came_when_nobody_waited_any_more_is_heard_by_nobody_on_a_replay() -> None:
    storage = kb.MemoryStorage()
    talk = impatient({"seconds": 0.1}, storage)
    assert asyncio.run(talk.start(run_id="r")).result == "too late"
    written = kinds(storage, "r")
    assert written[1:3] == ["note unheard", "use"]
    assert written[3].startswith("llm@"), "what is paid for is recorded"
    assert asyncio.run(talk.verify("r")).fits
    for at in (3, 4):  # without the answer, and with it
        again = asyncio.run(talk.fork("r", at=at))
        assert asyncio.run(talk.start(run_id=again)).result == "too late"
        assert kinds(storage, again).count("note unheard") == 1


def test_code_that_waits_for_an_answer_that_nobody_had_is_told_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turn, "GRACE", 0.2)
    limit = {"seconds": 0.1}
    talk = impatient(limit, kb.MemoryStorage())
    asyncio.run(talk.start(run_id="r"))
    limit["seconds"] = 60
    found = asyncio.run(talk.verify("r"))
    assert re.search(r"waits for the answer of model call 'llm@\w+', but", str(found.divergence))


def test_a_task_that_gives_up_and_asks_the_same_again_gets_its_second_answer() -> None:
    seen: list[httpx.Request] = []

    async def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if not seen[1:]:
            await asyncio.sleep(0.3)
            return httpx.Response(400, json=REFUSAL)
        return httpx.Response(200, json=ANSWER)

    client = async_client(handle)

    async def patiently() -> list[int]:
        try:
            async with asyncio.timeout(0.1):
                return [await ask(client, "same")]
        except TimeoutError:
            return [0, await ask(client, "same")]

    @kassette(storage=kb.MemoryStorage())
    async def talk(ctx: kb.Context) -> list[int]:
        found = await asyncio.create_task(patiently())
        await ctx.step("wait for the first", asyncio.sleep, 0.4)
        await ctx.step("then", lambda: 1)
        return found

    assert asyncio.run(talk.start(run_id="r")).result == [0, 200]
    assert asyncio.run(talk.verify("r")).fits


def test_a_call_beside_waits_its_turn_while_the_code_waits_to_give_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turn, "PATIENCE", 0.05)
    client = async_client(slow_first)
    storage = kb.MemoryStorage()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> int:
        beside = asyncio.create_task(ask(client, "quick"))
        hurried = asyncio.create_task(ask(client, "slow"))
        await asyncio.wait([hurried], timeout=0.2)
        hurried.cancel()
        await ctx.step("then", lambda: 1)
        return await beside

    asyncio.run(talk.start(run_id="r"))
    quick = next(i for i in kinds(storage, "r") if i.startswith("llm@"))
    storage.create("cut", without(storage, "r", quick))
    assert asyncio.run(talk.start(run_id="cut")).result == 200


def test_the_loser_of_a_race_loses_it_again() -> None:
    client = async_client(slow_first)

    @kassette(storage=kb.MemoryStorage())
    async def talk(ctx: kb.Context) -> list[str]:
        tasks = [asyncio.create_task(ask(client, text), name=text) for text in ("slow", "quick")]
        done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        await ctx.step("wait for the slow one", asyncio.sleep, 0.4)
        return [task.get_name() for task in done]

    assert asyncio.run(talk.start(run_id="r")).result == ["quick"]
    assert asyncio.run(talk.verify("r")).fits


def test_a_call_that_an_interruption_cancelled_is_in_time_when_the_run_goes_on() -> None:
    weather = [httpx.ConnectError("no network")]

    async def handle(request: httpx.Request) -> httpx.Response:
        if b"weather" in request.content and weather:
            await asyncio.sleep(0.05)
            raise weather.pop()
        return await slow_first(request)

    client = async_client(handle)
    storage = kb.MemoryStorage()

    @kassette(storage=storage, transient=(httpx.ConnectError,))
    async def talk(ctx: kb.Context) -> int:
        beside = asyncio.create_task(ask(client, "slow"))
        try:
            await ask(client, "weather")
        except httpx.ConnectError:
            beside.cancel()
            raise
        return await beside

    with pytest.raises(httpx.ConnectError):
        asyncio.run(talk.start(run_id="r"))
    assert asyncio.run(talk.start(run_id="r")).result == 200
    assert "note unheard" not in kinds(storage, "r")


def test_a_call_that_a_suspension_cancelled_is_in_time_when_the_answer_is_there() -> None:
    client = async_client(slow_first)

    @kassette(storage=kb.MemoryStorage())
    async def talk(ctx: kb.Context) -> int:
        beside = asyncio.create_task(ask(client, "slow"))
        await asyncio.sleep(0.1)
        try:
            await ctx.suspend("go")
        except BaseException:
            beside.cancel()
            raise
        return await beside

    asyncio.run(talk.start(run_id="r"))
    assert asyncio.run(talk.resume("r", "go", 1)).result == 200


def test_a_retry_waits_for_what_was_given_up_when_the_step_failed() -> None:
    client = async_client(slow_first)
    fails = [True]

    def work() -> None:
        if fails:
            raise ValueError("no")

    @kassette(storage=kb.MemoryStorage())
    async def talk(ctx: kb.Context) -> int:
        beside = asyncio.create_task(ask(client, "slow"))
        await asyncio.sleep(0.1)
        try:
            await ctx.step("work", work)
        except kb.StepFailedError:
            beside.cancel()
            raise
        return await beside

    assert asyncio.run(talk.start(run_id="r")).status == "failed"
    assert asyncio.run(talk.verify("r")).fits
    fails.clear()
    again = asyncio.run(talk.retry("r"))
    assert asyncio.run(talk.start(run_id=again)).result == 200


def test_a_verification_tells_of_a_changed_request_that_the_workflow_waits_for_at_once() -> None:
    client = async_client(slow_first)
    texts = ["one", "two"]

    @kassette(storage=kb.MemoryStorage())
    async def talk(ctx: kb.Context) -> None:
        await asyncio.gather(*[ask(client, text) for text in texts])
        await ctx.step("then", lambda: 1)

    asyncio.run(talk.start(run_id="r"))
    texts[0] = "another"
    began = time.monotonic()
    found = asyncio.run(talk.verify("r"))
    assert "most like it" in str(found.divergence)
    assert time.monotonic() - began < turn.PATIENCE / 3


def test_a_verification_waits_for_a_workflow_that_takes_its_time_and_gets_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turn, "QUIET", 0.1)
    client = async_client(slow_first)
    storage = kb.MemoryStorage()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> int:
        beside = asyncio.create_task(ask(client, "slow"))
        for number in range(4):
            await asyncio.sleep(0.05)
            time.sleep(0.2)  # noqa: ASYNC251  # it blocks the loop
            await ctx.step(f"step-{number}", lambda: 1)
        return await beside

    asyncio.run(talk.start(run_id="r"))
    asked = next(i for i in kinds(storage, "r") if i.startswith("llm@"))
    storage.create("cut", without(storage, "r", asked))
    assert asyncio.run(talk.verify("cut")).next == f"model call {asked!r}"
