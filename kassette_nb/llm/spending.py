"""What a call spent: tokens as the provider counts them, and dollars by a table of prices."""

from __future__ import annotations

import math
import re
from typing import Any
from urllib.parse import urlsplit

from ..entries import Usage
from ..usage import warn
from . import pricing
from .assemble import Body
from .request import Request


def usage_of(request: Request, body: Body | None) -> Usage | None:
    """Return what an answer says that it spent.

    Args:
        request: What was asked.
        body: The answer, whole.

    Returns:
        The usage, with the model that answered and what it cost as far as that is known: a model
        that does not tell its tokens has spent an unknown number, not none. None where neither
        the answer counts anything nor the request looks like one to a model.
    """
    usage = _tokens(body or {})
    if usage is None:
        if not looks_like_a_model(request):
            return None
        usage = Usage()
    model = (body or {}).get("model") or (body or {}).get("modelVersion")
    usage.model = model if isinstance(model, str) else request.model
    usage.cost_usd = _dollars(usage, request)
    return usage


def _dollars(usage: Usage, request: Request) -> float | None:
    """Return what a call cost; whatever is wrong with a price, the answer is not lost for it."""
    try:
        cost = pricing.cost(usage, request.model, request.url)
        if cost is not None and not (math.isfinite(cost) and cost >= 0):
            raise ValueError(f"{cost!r} is no sum")
    except Exception as problem:
        warn(
            f"the price of model {usage.model!r} cannot be used "
            f"({type(problem).__name__}: {problem}); the call is recorded with its cost unknown. "
            f"Set one: kb.llm.prices[{usage.model!r}] = kb.llm.Price(input=…, output=…)"
        )
        return None
    return cost


def _tokens(body: Body) -> Usage | None:
    told = body.get("usage")
    if isinstance(told, dict):
        if "prompt_tokens" in told:
            return _usage(
                told.get("prompt_tokens"),
                told.get("completion_tokens", 0),
                _in(told, "prompt_tokens_details", "cached_tokens"),
                _in(told, "completion_tokens_details", "reasoning_tokens"),
            )
        if "input_tokens" in told and ("input_tokens_details" in told or "total_tokens" in told):
            return _usage(
                told.get("input_tokens"),
                told.get("output_tokens"),
                _in(told, "input_tokens_details", "cached_tokens"),
                _in(told, "output_tokens_details", "reasoning_tokens"),
            )
        if "input_tokens" in told:  # Anthropic counts what comes from the cache apart
            read, written = (_count(told.get(name)) for name in _CACHES)
            entered = _count(told.get("input_tokens"))
            if entered is not None:
                entered += (read or 0) + (written or 0)
            return _usage(entered, told.get("output_tokens"), read, None, written)
    told = body.get("usageMetadata")
    if isinstance(told, dict):
        thoughts = _count(told.get("thoughtsTokenCount"))
        left = _count(told.get("candidatesTokenCount"))
        if thoughts is not None:
            left = (left or 0) + thoughts
        cached = told.get("cachedContentTokenCount")
        return _usage(told.get("promptTokenCount"), left, cached, thoughts)
    if "prompt_eval_count" in body or "eval_count" in body:
        return _usage(body.get("prompt_eval_count"), body.get("eval_count"))
    return None


_CACHES = ("cache_read_input_tokens", "cache_creation_input_tokens")


def _usage(
    entered: Any, left: Any, cached: Any = None, reasoning: Any = None, written: Any = None
) -> Usage:
    return Usage(
        input_tokens=_count(entered),
        output_tokens=_count(left),
        cached_input_tokens=_count(cached),
        reasoning_tokens=_count(reasoning),
        cache_write_tokens=_count(written),
    )


def _in(told: Body, part: str, name: str) -> Any:
    inner = told.get(part)
    return inner.get(name) if isinstance(inner, dict) else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def looks_like_a_model(request: Request) -> bool:
    """Tell whether a request is one to a model: it posts JSON that names one and says something."""
    body = request.body
    if request.method != "POST" or not isinstance(body, dict) or request.model is None:
        return False
    path = urlsplit(request.url).path
    return bool(_SAYS & body.keys()) or re.search(r"generateContent", path, re.I) is not None


_SAYS = frozenset({"messages", "input", "prompt", "contents", "message", "texts", "inputs"})
