"""Tokens as the provider counts them, dollars by a price that is known, or none."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import Usage, kassette
from kassette_nb.llm import Price, pricing
from kassette_nb.llm.pricing import Prices
from kassette_nb.llm.request import Request
from kassette_nb.llm.spending import usage_of
from kassette_nb.usage import total
from tests.llm.loopback import MODEL, Loopback, lines

OPENAI = "https://api.openai.com/v1/chat/completions"


def said(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.fixture
def prices() -> Iterator[Prices]:
    """The user's own table, empty, and as it was afterwards."""
    kept = dict(kb.llm.prices)
    kb.llm.prices.clear()
    yield kb.llm.prices
    kb.llm.prices.clear()
    kb.llm.prices.update(kept)


def test_usage_model_and_times_of_every_api_are_in_the_journal_and_the_frame(
    provider: Loopback, storage: kb.LocalStorage, prices: Prices
) -> None:
    prices[MODEL] = Price(input=1.0, output=10.0, cached_input=0.1)
    chat, messages = provider.async_openai(), provider.async_anthropic()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> None:
        for streamed in (False, True):
            options: Any = {"stream_options": {"include_usage": True}} if streamed else {}
            answers: list[Any] = [
                await chat.chat.completions.create(
                    model=MODEL, messages=said("hello"), stream=streamed, **options
                )
            ]
            if streamed:
                _ = [c async for c in answers[0]]
            answers.append(await chat.responses.create(model=MODEL, input="hi", stream=streamed))
            if streamed:
                _ = [c async for c in answers[1]]
            answers.append(
                await messages.messages.create(
                    model=MODEL, max_tokens=9, messages=said("hello"), stream=streamed
                )
            )
            if streamed:
                _ = [c async for c in answers[2]]

    asyncio.run(talk.start(run_id="r"))
    usages = [line["usage"] for line in lines(storage, "r") if line["type"] == "step"]
    for whole, streamed in zip(usages[:3], usages[3:], strict=True):
        assert whole["model"] == streamed["model"] == MODEL
        assert whole["latencyMs"] >= 0
        assert streamed["latencyMs"] >= streamed["firstTokenMs"] >= 0
        spent = {k: v for k, v in whole.items() if not k.endswith("Ms")}
        assert spent == {k: v for k, v in streamed.items() if not k.endswith("Ms")}
        assert spent["cachedInputTokens"] == 4
        dollars = (spent["inputTokens"] - 4) + 0.4 + 10 * spent["outputTokens"]
        assert spent["costUsd"] == pytest.approx(dollars / 1e6)
    assert [u.get("reasoningTokens") for u in usages[:3]] == [2, 2, None]
    assert usages[2]["inputTokens"] == usages[0]["inputTokens"] + 4, "the cached ones count"
    frame = kb.open(storage)["r"].steps()
    assert list(frame["model"]) == [MODEL] * 6
    assert list(frame["input_tokens"]) == [u["inputTokens"] for u in usages]
    assert list(frame["cost_usd"]) == [u["costUsd"] for u in usages]
    assert list(frame["cached_input_tokens"]) == [4] * 6
    assert list(frame["first_token_seconds"].isna()) == [True] * 3 + [False] * 3


def test_a_model_without_a_price_costs_an_unknown_sum_never_zero(
    provider: Loopback, storage: kb.LocalStorage, prices: Prices
) -> None:
    client = provider.openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> None:
        client.chat.completions.create(model=MODEL, messages=said("hello"))

    asyncio.run(talk.start(run_id="r"))
    usage = lines(storage, "r")[1]["usage"]
    assert usage["outputTokens"] > 0
    assert "costUsd" not in usage
    spend = kb.open(storage)["r"].fold().own
    assert (spend.cost_usd, spend.unpriced) == (None, 1)


def test_a_published_price_counts_where_its_provider_is_asked(prices: Prices) -> None:
    usage = Usage(model="gpt-4o-mini-2024-07-18", input_tokens=1_000_000, output_tokens=0)
    published = pricing.cost(usage, "gpt-4o-mini", OPENAI)
    assert published is not None
    assert 0.05 < published < 0.5
    elsewhere = "http://127.0.0.1:8000/v1/chat/completions"
    assert pricing.cost(usage, "gpt-4o-mini", elsewhere) is None, "the same name, another price"
    prices["gpt-4o-mini"] = Price(input=7, output=7)
    assert pricing.cost(usage, "gpt-4o-mini", OPENAI) == 7.0, "the user's own price wins"
    prices["gpt-4o-mini-2024-07-18"] = Price(input=8, output=8)
    assert pricing.cost(usage, "gpt-4o-mini", elsewhere) == 8.0, "the exact name first"


def test_without_the_table_of_prices_the_cost_is_unknown() -> None:
    code = """
import sys
sys.modules["genai_prices"] = None
from kassette_nb.entries import Usage
from kassette_nb.llm import pricing
usage = Usage(model="gpt-4o-mini", input_tokens=1, output_tokens=1)
print(pricing.cost(usage, None, "https://api.openai.com/v1/chat/completions"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


def test_importing_the_room_loads_no_client_and_no_table() -> None:
    code = """
import sys, kassette_nb as kb
kb.llm.http_client
print([m for m in ("httpx", "httpx2", "openai", "anthropic", "genai_prices", "pydantic")
       if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            {
                "modelVersion": "g-1",
                "usageMetadata": {
                    "promptTokenCount": 9,
                    "candidatesTokenCount": 3,
                    "thoughtsTokenCount": 2,
                    "cachedContentTokenCount": 1,
                },
            },
            ("g-1", 9, 5, 1, 2),
        ),
        ({"model": "o-1", "prompt_eval_count": 7, "eval_count": 2}, ("o-1", 7, 2, None, None)),
        (
            {
                "model": "e-1",
                "object": "list",
                "usage": {"prompt_tokens": 5, "total_tokens": 5},
            },
            ("e-1", 5, 0, None, None),
        ),
    ],
    ids=["google", "ollama", "embeddings"],
)
def test_other_providers_count_in_their_own_words(body: Any, expected: Any) -> None:
    usage = usage_of(Request("POST", "http://127.0.0.1/x", {"model": "asked"}, ""), body)
    assert usage is not None
    assert expected == (
        usage.model,
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_input_tokens,
        usage.reasoning_tokens,
    )


@pytest.mark.parametrize("body", [None, {}, {"usage": None}, {"usage": {"seconds": 3}}])
def test_an_answer_that_does_not_tell_has_no_usage(body: Any) -> None:
    assert usage_of(Request("POST", "http://127.0.0.1/x", None, ""), body) is None


def test_a_sum_counts_the_calls_whose_price_is_unknown() -> None:
    known = Usage(model="a", input_tokens=1, output_tokens=2, cost_usd=0.5)
    assert total([known, known]).cost_usd == 1.0
    mixed = total([known, Usage(model="b", input_tokens=3)])
    assert (mixed.cost_usd, mixed.unpriced) == (0.5, 1)
    assert (mixed.input_tokens, mixed.output_tokens, mixed.model) == (4, 2, "a, b")


STREAM: dict[str, Any] = {"model": MODEL, "messages": said("hello"), "stream": True}


@pytest.mark.parametrize("place", ["workflow", "step"])
def test_a_stream_that_does_not_tell_its_tokens_has_spent_an_unknown_number_not_none(
    place: str, provider: Loopback, storage: kb.LocalStorage, prices: Prices
) -> None:
    prices[MODEL] = Price(input=1, output=1)
    client = provider.openai()

    def reads() -> int:
        client.chat.completions.create(**{**STREAM, "stream": False})
        return len(list(client.chat.completions.create(**STREAM)))

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> None:
        if place == "step":
            await ctx.step("reads", reads)
        else:
            reads()

    asyncio.run(talk.start(run_id="r"))
    run = kb.open(storage)["r"]
    if place == "step":
        (step,) = (line for line in lines(storage, "r") if line["type"] == "step")
        told, usage = run["reads"].conversations, step["calls"][1]["usage"]
        assert [c.answer is not None for c in told] == [True, True], "of both"
        assert step["usage"]["unpriced"] == 1
        assert step["usage"]["costUsd"] > 0, "of the other one"
    else:
        usage = lines(storage, "r")[2]["usage"]
        frame = run.steps()
        assert list(frame["model"]) == [MODEL] * 2
        assert list(frame["first_token_seconds"].isna()) == [True, False]
        assert list(frame["cost_usd"].isna()) == [False, True]
    assert sorted(usage) == ["firstTokenMs", "latencyMs", "model"]
    assert usage["model"] == MODEL
    assert run.fold().own.unpriced == 1


def test_a_list_of_models_is_no_spending(
    provider: Loopback, storage: kb.LocalStorage, prices: Prices
) -> None:
    client = provider.openai()

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> None:
        client.models.list()
        await ctx.step("models", lambda: len(client.models.list().data))

    asyncio.run(talk.start(run_id="r"))
    steps = [line for line in lines(storage, "r") if line["type"] == "step"]
    assert [("usage" in step, "calls" in step) for step in steps] == [(False, False)] * 2
    assert kb.open(storage)["r"].fold().own.unpriced == 0


@pytest.mark.parametrize(
    ("model", "price", "told"),
    [
        ("m", 3, r"prices\['m'\] = 3: give dollars for a million tokens"),
        ("m", "3", r"prices\['m'\] = '3'"),
        ("m", None, r"prices\['m'\] = None"),
        ("m", {"input": 1}, r"prices\['m'\]: .*output"),
        ("m", {"input": 1, "output": -1}, r"prices\['m'\]: Price\(output=-1\)"),
        ("m", {"in": 1, "out": 2}, r"prices\['m'\]: "),
        (3, Price(input=1, output=1), r"prices\[3\]: a model is named by a text"),
        ("", Price(input=1, output=1), r"prices\[''\]: a model has a name"),
    ],
)
def test_what_is_no_price_is_refused_when_it_is_set(
    model: Any, price: Any, told: str, prices: Prices
) -> None:
    for sets in (prices.__setitem__, lambda m, p: prices.update({m: p}), prices.setdefault):
        with pytest.raises((TypeError, ValueError), match=told):
            sets(model, price)
    assert not prices


@pytest.mark.parametrize(
    "numbers",
    [
        {"input": "1", "output": 1},
        {"input": None, "output": 1},
        {"input": True, "output": 1},
        {"input": 1, "output": float("nan")},
        {"input": 1, "output": float("inf")},
        {"input": -1, "output": 1},
        {"input": 1, "output": 1, "cached_input": -0.1},
        {"input": 1, "output": 1, "cache_write": "2"},
    ],
)
def test_what_is_no_number_of_dollars_is_no_price(numbers: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"Price\(\w+="):
        Price(**numbers)


def test_a_dict_with_the_fields_of_a_price_becomes_one(prices: Prices) -> None:
    prices["m"] = {"input": 1, "output": 2}
    assert prices["m"] == Price(input=1, output=2)
    assert dict(prices) == {"m": Price(input=1, output=2)}


@pytest.mark.parametrize("place", ["workflow", "step"])
def test_whatever_goes_wrong_with_a_price_the_answer_is_kept_and_it_is_told(
    place: str,
    provider: Loopback,
    storage: kb.LocalStorage,
    prices: Prices,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prices[MODEL] = Price(input=1, output=1)

    def fails(self: Price, usage: Usage) -> float:
        raise OverflowError("too dear")

    monkeypatch.setattr(Price, "cost", fails)
    client = provider.openai()

    def ask() -> Any:
        return (
            client.chat.completions.create(**{**STREAM, "stream": False}).choices[0].message.content
        )

    @kassette(storage=storage)
    async def talk(ctx: kb.Context) -> Any:
        return await ctx.step("ask", ask) if place == "step" else ask()

    with pytest.warns(RuntimeWarning, match=r"cannot be used \(OverflowError: too dear\)"):
        reached = asyncio.run(talk.start(run_id="r"))
    assert "hello" in reached.result
    usage = lines(storage, "r")[1]["usage"]
    assert usage["outputTokens"] > 0
    assert "costUsd" not in usage
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert asyncio.run(talk.start(run_id="s")).result == reached.result
