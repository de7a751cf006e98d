"""Two recorded values: texts by line, JSON by path, and only what differs."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw

from kassette_nb.difference import difference
from kassette_nb.entries import ErrorInfo, Step
from kassette_nb.pairs import Side, paired


def step(value: object) -> Step:
    return Step(session=1, offset=1, step_id="s", name="s", result=Raw(msgspec.json.encode(value)))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("a\nb", "a\nc", ["@@ -1,2 +1,2 @@", " a", "-b", "+c"]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, ["@@ $.a.b[1] @@", "-2", "+3"]),
        ({"a": 1}, {"a": None}, ["@@ $.a @@", "-1", "+null"]),
        ({"a": 1}, {}, ["@@ $.a @@", "-1"]),
        ({}, {"an odd key": 1}, ["@@ $['an odd key'] @@", "+1"]),
        ([{"n": n} for n in range(50)], [{"n": 9}] + [{"n": n} for n in range(50)],
         ["@@ $[0] @@", "+{", '+  "n": 9', "+}"]),
        ({"text": "one\ntwo"}, {"text": "one\n2"}, ["@@ $.text @@", " one", "-two", "+2"]),
        (1, "1", ["@@ -1 +1 @@", "-1", '+"1"']),
        ([], {}, ["@@ -1 +1 @@", "-[]", "+{}"]),
    ],
)  # fmt: skip
def test_a_difference_names_what_differs(old: object, new: object, told: list[str]) -> None:
    got = difference(step(old), step(new)).split("\n")
    assert [line for line in got if line] == told


def test_an_error_is_compared_like_a_text() -> None:
    failed = Step(
        session=1, offset=1, step_id="s", name="s", error=ErrorInfo(name="E", message="no")
    )
    assert difference(step("yes"), failed).endswith("-yes\n+E: no")
    assert difference(step({"a": 1}), failed)


def test_a_very_long_text_is_not_compared_by_line() -> None:
    assert difference(step("x\n" * 30_000), step("y\n" * 30_000)).startswith("-(30001 lines)")


def test_pairs_are_counted_by_score_and_cost() -> None:
    first = Side(1, 0.5)
    others = [Side(2, 0.4), Side(0, 0.45), Side(1, 0.3), Side(None, 0.5), Side(3, None)]
    found = paired([(first, other) for other in others])
    assert (found.wins, found.losses, found.ties, found.priced) == (2, 1, 1, 4)
    assert found.cost_usd == pytest.approx(-0.075)
    assert found.low is not None
    assert found.high is not None
    assert found.cost_usd is not None
    assert found.low <= found.cost_usd <= found.high
    assert paired([(first, other) for other in others]) == found
    assert found.line.startswith(
        "2 better, 1 worse, 1 tied · cost in all: median difference −$0.07"
    )


def test_where_there_are_no_pairs_nothing_is_claimed() -> None:
    assert paired([]).line == ""
    assert paired([(Side(), Side(1, 2))]).line == ""
    one = paired([(Side(1, 1), Side(2, 2))])
    assert (one.cost_usd, one.low, one.high) == (1, None, None)


def test_one_pair_is_told_as_one() -> None:
    assert paired([(Side(1, 0.5), Side(2, 0.4))]).line.endswith(
        "cost in all: median difference −$0.10, 1 pair"
    )
