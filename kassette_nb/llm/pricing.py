"""What models cost. A cost that is not known stays unknown; it is never zero."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ..entries import Usage

MILLION = 1_000_000


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a model costs, in US dollars for a million tokens.

    Attributes:
        input: Read by the model.
        output: Written by it, reasoning included.
        cached_input: Read from the provider's cache; by default as ``input``.
        cache_write: Written to it; by default as ``input``.
    """

    input: float
    output: float
    cached_input: float | None = None
    cache_write: float | None = None

    def cost(self, usage: Usage) -> float | None:
        """Return the US dollars for a usage; None where it does not tell its tokens."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        read, written = usage.cached_input_tokens or 0, usage.cache_write_tokens or 0
        plain = max(0, usage.input_tokens - read - written)
        dollars = (
            plain * self.input
            + read * (self.input if self.cached_input is None else self.cached_input)
            + written * (self.input if self.cache_write is None else self.cache_write)
            + usage.output_tokens * self.output
        )
        return round(dollars / MILLION, 12)


#: Your own prices by the name of the model; they win over every table. Names are looked up as the
#: answer spells them (``gpt-4o-mini-2024-07-18``), then as the request does (``gpt-4o-mini``).
prices: dict[str, Price] = {}

_table: Any = None


def cost(usage: Usage, asked: str | None, url: str) -> float | None:
    """Return what a call cost in US dollars, None where that is not known.

    The table behind the user's own is that of the package genai-prices, where it is installed,
    and only for the providers it knows by their address: a model of the same name that runs
    elsewhere has another price, or none.

    Args:
        usage: With the model that answered.
        asked: The model that was asked for.
        url: Where it was asked.
    """
    for name in (usage.model, asked):
        own = prices.get(name) if name else None
        if own is not None:
            return own.cost(usage)
    table = _published()
    if table is None or usage.input_tokens is None or usage.output_tokens is None:
        return None
    parts = urlsplit(url)
    spent = table.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_input_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    for name in filter(None, (usage.model, asked)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = table.calc_price(
                    spent, name, provider_api_url=f"{parts.scheme}://{parts.netloc}{parts.path}"
                )
        except (LookupError, ValueError):
            continue
        return float(found.total_price)
    return None


def _published() -> Any:
    """Return the published table, loaded when the first call is to be priced; None without."""
    global _table
    if _table is None:
        try:
            _table = import_module("genai_prices")
        except ImportError:
            _table = False
    return _table or None
