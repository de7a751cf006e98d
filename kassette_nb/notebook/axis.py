"""The axis of a timeline: working time with waits folded to a narrow break, wall time, or steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

WORK, WALL, STEPS = "work", "wall", "steps"
#: A gap is folded from this many milliseconds on (or half of all the work, if that is less), and
#: from this part of all the work; never one that nobody would notice.
LEAST, PART, NOTICED = 2_000.0, 0.04, 250.0
#: The width of a break, as a part of all the work, and of all breaks together.
BREAK, BREAKS = 0.05, 0.45

Span = tuple[float, float]


class Piece(msgspec.Struct):
    """A stretch of time, in milliseconds, and where it stands on the axis."""

    start: float
    end: float
    folded: bool
    left: float = 0.0
    width: float = 0.0


class Axis:
    """Places instants on a line.

    Args:
        busy: When something worked, in milliseconds since the run began; at least one.
        end: The last instant to be placed.
        fold: Fold the gaps between them; without it time runs evenly.
    """

    def __init__(self, busy: Sequence[Span], end: float, *, fold: bool = True) -> None:
        merged = _merge(busy)
        start, end = merged[0][0], max(end, merged[-1][1])
        if not fold:
            merged = [(start, end)]
        work = sum(stop - begin for begin, stop in merged)
        least = max(min(LEAST, work / 2), work * PART, NOTICED)
        self.pieces: list[Piece] = []
        at = start
        for begin, stop in [*merged, (end, end)]:
            if begin > at:
                self._push(Piece(at, begin, begin - at >= least))
            if stop > begin or not self.pieces:
                self._push(Piece(begin, stop, False))
            at = stop
        breaks = sum(piece.folded for piece in self.pieces)
        work = sum(piece.end - piece.start for piece in self.pieces if not piece.folded) or 1.0
        narrow = work * min(BREAK, BREAKS / breaks) if breaks else 0.0
        self.length = 0.0
        for piece in self.pieces:
            piece.left = self.length
            piece.width = narrow if piece.folded else piece.end - piece.start
            self.length += piece.width
        self._starts = [piece.start for piece in self.pieces]

    @property
    def breaks(self) -> list[Piece]:
        """The gaps that were folded."""
        return [piece for piece in self.pieces if piece.folded]

    def at(self, instant: float) -> float:
        """Return where an instant stands: milliseconds of work and breaks from the left."""
        piece = self.pieces[max(bisect_right(self._starts, instant) - 1, 0)]
        inside = min(max(instant, piece.start), piece.end) - piece.start
        whole = piece.end - piece.start
        return piece.left + (inside / whole * piece.width if whole else 0.0)

    def ticks(self, wanted: int = 8) -> list[tuple[float, float]]:
        """Return round amounts of work and where they stand."""
        work = sum(piece.width for piece in self.pieces if not piece.folded)
        step = _round(work / wanted)
        found: list[tuple[float, float]] = []
        done, amount = 0.0, 0.0
        for piece in self.pieces:
            if piece.folded:
                continue
            while amount <= done + piece.width:
                found.append((amount, piece.left + amount - done))
                amount += step
            done += piece.width
        return found

    def _push(self, piece: Piece) -> None:
        last = self.pieces[-1] if self.pieces else None
        if last is not None and not last.folded and not piece.folded:
            last.end = piece.end
        else:
            self.pieces.append(piece)


def _merge(spans: Sequence[Span]) -> list[Span]:
    merged: list[Span] = []
    for begin, stop in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((begin, max(begin, stop)))
    return merged


_STEPS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 43_200),
)


def _round(milliseconds: float) -> float:
    """Return the next larger step that people count time in."""
    for seconds in _STEPS:
        if milliseconds <= seconds * 1_000:
            return seconds * 1_000
    days = -(-milliseconds // 86_400_000)
    return float(days * 86_400_000)
