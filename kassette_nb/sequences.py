"""The longest common subsequence of two sequences, exactly and fast. Pure.

``difflib`` looks for the longest equal *stretch*, which is another question: in a loop of think,
act, think, act it lets one inserted step shift everything behind it.

Source: Hyyrö, "Bit-parallel LCS-length computation revisited" (2004); one machine word there is
one Python integer here, so a row of the table costs a few operations.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def common(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return the positions of a longest common subsequence, as rising pairs."""
    start = prefix(left, right)
    ours, theirs = left[start:], right[start:]
    # Looked at backwards, so that of equally long ones the earliest is found: what one run does
    # more often than another then stands behind what both did.
    backwards = _middle(ours[::-1], theirs[::-1])
    pairs = [(n, n) for n in range(start)]
    for a, b in reversed(backwards):
        pairs.append((start + len(ours) - 1 - a, start + len(theirs) - 1 - b))
    return pairs


def prefix(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Return how long the common beginning is."""
    for number, (ours, theirs) in enumerate(zip(left, right, strict=False)):
        if ours != theirs:
            return number
    return min(len(left), len(right))


def _middle(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    if not left or not right:
        return []
    places: dict[Hashable, int] = {}
    for number, item in enumerate(left):
        places[item] = places.get(item, 0) | 1 << number
    whole = (1 << len(left)) - 1
    # A zero bit i says that the table rises from row i to row i + 1 in this column.
    column, columns = whole, []
    for item in right:
        hit = column & places.get(item, 0)
        column = ((column + hit) | (column - hit)) & whole
        columns.append(column)
    pairs = []
    row, at = len(left), len(right)
    while row and at:
        if left[row - 1] == right[at - 1]:
            row, at = row - 1, at - 1
            pairs.append((row, at))
        elif columns[at - 1] >> (row - 1) & 1:
            row -= 1
        else:
            at -= 1
    return pairs[::-1]
