"""What models cost. A cost that is not known stays unknown; it is never zero."""

from __future__ import annotations

import math
import warnings
from collections import UserDict
from collections.abc import Mapping
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

    Raises:
        TypeError: A price is no number.
        ValueError: It is negative, or none that can be paid.
    """

    input: float
    output: float
    cached_input: float | None = None
    cache_write: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            dollars = getattr(self, name)
            if dollars is None and name in ("cached_input", "cache_write"):
                continue
            if isinstance(dollars, bool) or not isinstance(dollars, (int, float)):
                raise TypeError(
                    f"Price({name}={dollars!r}): dollars for a million tokens, a number"
                )
            if not math.isfinite(dollars) or dollars < 0:
                raise ValueError(f"Price({name}={dollars!r}): a price is a number, 0 or more")

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


class Prices(UserDict[str, Price]):
    """Prices by the name of the model; what is none is refused when it is set.

    A dict with the fields of a `Price` becomes one.
    """

    def __setitem__(self, model: str, price: Price | Mapping[str, float]) -> None:
        """Set the price of a model.

        Raises:
            TypeError: The model is no name, or the price none.
            ValueError: The name is empty, or a number of the price negative.
        """
        if not isinstance(model, str):
            raise TypeError(f"prices[{model!r}]: a model is named by a text")
        if not model:
            raise ValueError("prices['']: a model has a name")
        if isinstance(price, Mapping):
            try:
                price = Price(**price)
            except (TypeError, ValueError) as problem:
                raise type(problem)(f"prices[{model!r}]: {problem}") from None
        if not isinstance(price, Price):
            raise TypeError(
                f"prices[{model!r}] = {price!r}: give dollars for a million tokens read and "
                "written, Price(input=…, output=…)"
            )
        super().__setitem__(model, price)


#: Your own prices by the name of the model; they win over every table. Names are looked up as the
#: answer spells them (``gpt-4o-mini-2024-07-18``), then as the request does (``gpt-4o-mini``).
prices = Prices()

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
