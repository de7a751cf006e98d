"""Who asked what: branches, tasks, threads and workflows get their own answers back."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import kassette
from kassette_nb.llm import turn
from kassette_nb.testing import always_replay
from tests.llm.loopback import MODEL, Loopback, kinds, lines


def said(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def ask(client: Any, text: str) -> str:
    answer = await client.chat.completions.create(model=MODEL, messages=said(text))
    return str(answer.choices[0].message.content)


ORDERS = list(itertools.permutations([0.0, 0.06, 0.12]))


@pytest.mark.parametrize("delays", ORDERS, ids=lambda d: "-".join(map(str, d)))
def test_branches_that_ask_the_same_model_never_swap_answers(
    delays: tuple[float, ...], provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> dict[str, Any]:
        def branch(name: str, delay: float) -> Any:
            async def work(ctx: kb.Context) -> list[str]:
                first = await ask(client, f"{name} delay:{delay} ")
                return [first, await ask(client, f"again {name}")]

            return work

        return await ctx.parallel({n: branch(n, d) for n, d in zip("abc", delays, strict=True)})

    first = asyncio.run(talk.start(run_id="r")).result
    assert {name: name in texts[0] and name in texts[1] for name, texts in first.items()} == {
        "a": True,
        "b": True,
        "c": True,
    }
    done = [i for i in kinds(storage, "r") if i.endswith("/llm")]
    assert done == [f"{n}/llm" for _, n in sorted(zip(delays, "abc", strict=True))]
    provider.expect()
    assert asyncio.run(talk.verify("r")).replayed == 6
    cut = asyncio.run(talk.fork("r", at=len(kinds(storage, "r")) - 1))
    assert asyncio.run(talk.start(run_id=cut)).result == first
    assert provider.seen == []


def test_calls_that_a_framework_gathers_are_matched_by_what_they_ask(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai()
    texts = ["slow delay:0.1 ", "quick", "quick", "other"]

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> list[str]:
        await ctx.step("before", lambda: 1)
        return list(await asyncio.gather(*[ask(client, text) for text in texts]))

    first = asyncio.run(talk.start(run_id="r"))
    steps = [line for line in lines(storage, "r") if line["type"] == "step"][1:]
    assert [s["stepId"].startswith("llm@") for s in steps] == [True] * 4
    assert len({s["stepId"].partition("#")[0] for s in steps}) == 3
    assert sum("#2" in s["stepId"] for s in steps) == 1
    assert all(s["stepId"][4:20] == s["request"][:16] for s in steps)
    texts.reverse()
    provider.expect()
    found = asyncio.run(talk.verify("r"))
    assert not found.fits
    assert "another result" in str(found.divergence)
    texts.reverse()
    assert asyncio.run(talk.verify("r")).fits
    again = asyncio.run(talk.fork("r", at=len(kinds(storage, "r")) - 1))
    assert asyncio.run(talk.start(run_id=again)).result == first.result
    assert provider.seen == []


def test_after_a_crash_only_the_missing_ones_of_gathered_calls_are_made(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> list[str]:
        return list(await asyncio.gather(*[ask(client, f"number {n % 3}") for n in range(5)]))

    first = asyncio.run(talk.start(run_id="r"))
    provider.expect()
    cut = asyncio.run(talk.fork("r", at=4))
    reached = asyncio.run(talk.start(run_id=cut))
    assert reached.result == first.result
    assert len(provider.seen) == 2


def test_a_call_whose_caller_was_cancelled_is_recorded_before_the_ending(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> str:
        task = asyncio.create_task(ask(client, "slow delay:0.3 "))
        await asyncio.sleep(0.15)
        task.cancel()
        return "did not wait"

    asyncio.run(talk.start(run_id="r"))
    written = kinds(storage, "r")
    assert [written[0], written[-1]] == ["start", "complete"]
    assert written[1].startswith("llm@"), "what is paid for is recorded"


def test_a_recorded_call_that_the_code_no_longer_asks_for_is_reported_and_stops_nothing(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai()
    texts = ["one", "two"]

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> str:
        await asyncio.gather(*[ask(client, text) for text in texts])
        return "done"

    asyncio.run(talk.start(run_id="r"))
    texts.pop()
    found = asyncio.run(talk.verify("r"))
    assert found.fits
    assert len(found.unasked) == 1
    assert "1 model call is recorded that the code does not ask for" in repr(found)
    again = asyncio.run(talk.fork("r", at=3))
    assert asyncio.run(talk.start(run_id=again)).status == "success"
    (note,) = [line for line in lines(storage, again) if line["type"] == "note"]
    assert note["kind"] == "unasked"
    assert note["data"] == list(found.unasked)


@pytest.mark.parametrize("then", [False, True], ids=["at the end", "before a step"])
def test_a_changed_one_of_gathered_calls_is_compared_with_the_recorded_one_most_like_it(
    then: bool,
    provider: Loopback,
    storage: kb.LocalStorage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turn, "QUIET", 0.2)
    client = provider.async_openai()
    texts = ["read the log of the shop", "count the users", "sum the bill"]

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> str:
        await asyncio.gather(*[ask(client, text) for text in texts])
        if then:
            await ctx.step("then", lambda: 1)
        return "done"

    asyncio.run(talk.start(run_id="r"))
    before = {
        line["args"]["body"]["messages"][0]["content"]: line
        for line in lines(storage, "r")
        if line.get("request")
    }
    texts[1] = "count the customers"
    provider.expect()
    told = str(asyncio.run(talk.verify("r")).divergence)
    recorded = before["count the users"]
    assert f"not asked for so far is {recorded['stepId']!r} (entry {recorded['offset']})" in told
    changes = ["".join(line.split()) for line in told.split("\n")]
    assert '-"content":"counttheusers"' in changes
    assert '+"content":"countthecustomers"' in changes
    assert provider.seen == []


def test_a_blocking_client_in_a_thread_is_matched_by_what_it_asks(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.openai()

    def blocking(text: str) -> str | None:
        answer = client.chat.completions.create(model=MODEL, messages=said(text))
        return answer.choices[0].message.content

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        texts = ["delay:0.1 slow", "quick"]
        return await asyncio.gather(*[asyncio.to_thread(blocking, text) for text in texts])

    first = asyncio.run(talk.start(run_id="r"))
    assert sum(i.startswith("llm@") for i in kinds(storage, "r")) == 2
    provider.expect()
    assert asyncio.run(talk.verify("r")).fits
    cut = asyncio.run(talk.fork("r", at=2))
    assert asyncio.run(talk.start(run_id=cut)).result == first.result
    assert len(provider.seen) == 1


def test_a_thread_whose_caller_was_cancelled_is_waited_for(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.openai()

    def blocking() -> None:
        client.chat.completions.create(model=MODEL, messages=said("delay:0.3 slow"))

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> str:
        task = asyncio.create_task(asyncio.to_thread(blocking))
        await asyncio.sleep(0.15)
        task.cancel()
        return "did not wait"

    asyncio.run(talk.start(run_id="r"))
    assert kinds(storage, "r")[1].startswith("llm@")
    assert kinds(storage, "r")[-1] == "complete"


def test_a_call_beside_the_branch_waits_until_all_that_is_recorded_fits(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> list[Any]:
        beside = asyncio.create_task(ask(client, "delay:0.2 slow"))
        await asyncio.sleep(0)
        steps = [await ctx.step(f"step-{n}", lambda: 1) for n in range(3)]
        return [*steps, await beside]

    first = asyncio.run(talk.start(run_id="r"))
    assert kinds(storage, "r")[:4] == ["start", "step-0", "step-1", "step-2"]
    provider.expect()
    cut = asyncio.run(talk.fork("r", at=4))
    assert asyncio.run(talk.verify(cut)).next == f"model call {kinds(storage, 'r')[4]!r}"
    assert provider.seen == []
    assert asyncio.run(talk.start(run_id=cut)).result == first.result
    assert len(provider.seen) == 1


def test_two_workflows_in_one_loop_share_a_client_and_keep_their_calls_apart(
    provider: Loopback, tmp_path: Any
) -> None:
    client = provider.async_openai()  # made before any workflow started
    stores = {name: kb.LocalStorage(tmp_path / name) for name in ("left", "right")}

    def workflow(name: str) -> kb.Workflow:
        @kassette(storage=stores[name], name=name)
        async def talk(ctx: kb.Context) -> list[str]:
            return [await ask(client, f"{name} {n}") for n in range(3)]

        return talk

    flows = {name: workflow(name) for name in stores}

    async def both() -> None:
        started = [flow.start(run_id=name) for name, flow in flows.items()]
        for reached, name in zip(await asyncio.gather(*started), flows, strict=True):
            assert [name in text for text in reached.result] == [True] * 3

    asyncio.run(both())
    for name, flow in flows.items():
        assert kinds(stores[name], name) == ["start", "llm", "llm#2", "llm#3", "complete"]
        assert asyncio.run(flow.verify(name)).fits


def test_a_call_of_code_that_outlives_its_run_is_outside_of_it(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai()
    left: list[asyncio.Task[str]] = []

    async def late() -> str:
        await asyncio.sleep(0.2)
        return await ask(client, "late")

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> None:
        left.append(asyncio.create_task(late()))

    async def main() -> str:
        await talk.start(run_id="r")
        return await left[0]

    assert "late" in asyncio.run(main())
    assert kinds(storage, "r") == ["start", "complete"]


def test_a_step_that_bears_the_name_of_a_model_call_does_not_take_its_place(
    provider: Loopback, storage: kb.LocalStorage
) -> None:
    client = provider.async_openai()
    calls = True

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        return await ask(client, "hello") if calls else await ctx.step("llm", lambda: "hello")

    asyncio.run(talk.start(run_id="r"))
    calls = False
    found = asyncio.run(talk.verify("r"))
    assert "entry 1 recorded the model call 'llm' there" in str(found.divergence)
    asyncio.run(talk.start(run_id="s"))
    calls = True
    found = asyncio.run(talk.verify("s"))
    assert "entry 1 recorded the step 'llm' there" in str(found.divergence)


def test_a_crash_behind_every_entry_changes_nothing(provider: Loopback) -> None:
    client, blocking = provider.async_openai(), provider.openai()

    @kassette(storage=kb.MemoryStorage())
    async def talk(ctx: kb.Context) -> list[Any]:
        texts = [await ask(client, "first")]
        stream: Any = blocking.chat.completions.create(
            model=MODEL, messages=said("second"), stream=True
        )
        texts.append("".join(c.choices[0].delta.content or "" for c in stream))
        texts += await asyncio.gather(ask(client, "third"), ask(client, "fourth"))

        async def branch(ctx: kb.Context) -> str:
            await ctx.step("look", lambda: 1)
            return await ask(client, "in a branch")

        return [*texts, await ctx.parallel({"left": branch, "right": branch})]

    reached = asyncio.run(always_replay(talk))
    assert reached.status == "success"
    assert len(reached.result) == 5
    asked = [seen["body"]["messages"][0]["content"] for seen in provider.seen]
    print(f"{len(asked)} calls for 6 answers")
    assert sorted(set(asked)) == ["first", "fourth", "in a branch", "second", "third"]
    assert asked.count("first") == asked.count("second") == 1, "what is recorded is not paid again"
