"""`always_replay` with side effects: a crash behind every entry, none in the middle of an act."""

import asyncio
from collections import Counter
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import Budget, kassette
from kassette_nb.errors import ReplayMismatchError
from kassette_nb.testing import always_replay


def test_each_tool_acts_once_with_a_key_or_without_one() -> None:
    acts: Counter[str] = Counter()
    sessions: list[int] = []

    def send(to: str, *, idempotency_key: str) -> str:
        acts[f"send {to}"] += 1
        return idempotency_key[:3]

    async def shout(to: str) -> str:
        acts[f"shout {to}"] += 1
        for _ in range(5):  # its neighbours are recorded meanwhile
            await asyncio.sleep(0)
        return to

    def refuse() -> None:
        acts["refuse"] += 1
        raise ConnectionError("no route")

    async def branch(ctx: kb.Context) -> list[Any]:
        return [await ctx.tool("shout", shout, to="b"), await ctx.step("work", lambda: 1)]

    async def other(ctx: kb.Context) -> list[Any]:
        done = [await ctx.step("work", lambda: 2), await ctx.tool("shout", shout, to="c")]
        return [*done, await ctx.suspend("ok")]

    @kassette(name="acts")
    async def flow(ctx: kb.Context) -> list[Any]:
        sessions.append(ctx.session)
        found: list[Any] = [await ctx.tool("send", send, to="a")]
        found.append(await ctx.tool("shout", shout, to="a"))
        found.append(await ctx.with_options(on_doubt="fail").tool("shout", shout, to="d"))
        found.append(await ctx.parallel({"b": branch, "c": other}))
        try:
            await ctx.tool("refuse", refuse)
        except kb.StepFailedError as failed:
            found.append(failed.name)
        return found

    result = asyncio.run(always_replay(flow, answers={"ok": True}))
    block = {"b": ["b", 1], "c": [2, "c", True]}
    assert result.result == ["k1:", "a", "d", block, "ConnectionError"]
    assert set(acts.values()) == {1}
    assert len(acts) == 6
    # It crashed behind each tool, and behind the block as soon as none of its tools was acting.
    assert len(sessions) >= 7


def test_code_that_decides_differently_behind_a_tool_is_found() -> None:
    turns: list[str] = []

    @kassette(name="turns")
    async def flow(ctx: kb.Context) -> None:
        turns.append("next")
        await ctx.tool("mail", lambda: 1)
        await ctx.step(f"turn {len(turns)}", lambda: 1)
        await ctx.step("last", lambda: 1)

    with pytest.raises(ReplayMismatchError, match="turn"):
        asyncio.run(always_replay(flow))


@pytest.mark.parametrize(("steps", "status"), [(9, "success"), (2, "suspended")])
def test_a_budgets_answer_is_given_once(steps: int, status: str) -> None:
    @kassette(name="spends", budget=Budget(max_steps=1))
    async def flow(ctx: kb.Context) -> int:
        for number in range(4):
            await ctx.tool("spend", lambda number: number, number=number)
        return 4

    answers: dict[str, Any] = {"budget": {"max_steps": steps}}
    assert asyncio.run(always_replay(flow, answers=answers)).status == status
