"""Attempts counted in pairs: who won, and what it cost more or less. Pure."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

import msgspec

#: Resamples behind an interval; drawn with a fixed seed, so that the same runs give the same one.
RESAMPLES = 4_000
#: The part of the resamples inside the interval.
LEVEL = 0.95


class Paired(msgspec.Struct, frozen=True):
    """What pairs of attempts say of the second against the first.

    ``wins losses ties`` count pairs in which both have a score. ``cost_usd`` is the median
    difference of the cost in all, in US dollars, over the ``priced`` pairs in which both have one;
    ``low`` and ``high`` are the ends of its 95 % bootstrap interval; None where there are too few
    (none, and fewer than two).
    """

    wins: int = 0
    losses: int = 0
    ties: int = 0
    priced: int = 0
    cost_usd: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def line(self) -> str:
        """The same in words; empty where no pair can be counted."""
        parts = []
        if self.wins + self.losses + self.ties:
            parts.append(f"{self.wins} better, {self.losses} worse, {self.ties} tied")
        if self.cost_usd is not None:
            told = f"cost in all: median difference {_money(self.cost_usd)}"
            if self.low is not None and self.high is not None:
                told += f" ({_money(self.low)} to {_money(self.high)}, 95 % of resamples)"
            parts.append(f"{told}, {self.priced} {'pair' if self.priced == 1 else 'pairs'}")
        return " · ".join(parts)


class Side(msgspec.Struct, frozen=True):
    """One attempt of a pair; more ``score`` is better, None is not known.

    ``cost_usd`` is what it takes to have the attempt, a copied prefix included.
    """

    score: float | None = None
    cost_usd: float | None = None


def paired(pairs: Sequence[tuple[Side, Side]]) -> Paired:
    """Count pairs of attempts.

    Args:
        pairs: (the first, the second): each counts what the second has against the first.
    """
    wins = losses = ties = 0
    costs = []
    for first, second in pairs:
        if first.score is not None and second.score is not None:
            wins += second.score > first.score
            losses += second.score < first.score
            ties += second.score == first.score
        if first.cost_usd is not None and second.cost_usd is not None:
            costs.append(second.cost_usd - first.cost_usd)
    if not costs:
        return Paired(wins, losses, ties)
    low = high = None
    if len(costs) > 1:
        chance = random.Random(len(costs))
        medians = sorted(
            statistics.median(chance.choices(costs, k=len(costs))) for _ in range(RESAMPLES)
        )
        edge = int(RESAMPLES * (1 - LEVEL) / 2)
        low, high = medians[edge], medians[-1 - edge]
    return Paired(wins, losses, ties, len(costs), statistics.median(costs), low, high)


def _money(dollars: float) -> str:
    if abs(dollars) < 0.00005:
        return "$0"
    sign = "−" if dollars < 0 else "+"
    return f"{sign}${abs(dollars):.2f}" if abs(dollars) >= 0.01 else f"{sign}${abs(dollars):.4f}"
