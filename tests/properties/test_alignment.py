"""Aligned runs: an inserted step is one row, whatever else is like it."""

from __future__ import annotations

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from kassette_nb import diff, sequences
from kassette_nb.entries import Step

#: Few names and few values, so that everything looks like everything else.
NAMES = st.sampled_from(["think", "act", "look"])
VALUES = st.integers(0, 3)
STEPS = st.lists(st.tuples(NAMES, VALUES), max_size=30)


def steps(made: list[tuple[str, int]]) -> list[Step]:
    counts: dict[str, int] = {}
    found = []
    for number, (name, value) in enumerate(made):
        counts[name] = counts.get(name, 0) + 1
        step_id = name if counts[name] == 1 else f"{name}#{counts[name]}"
        result = Raw(str(value).encode())
        found.append(Step(session=1, offset=number, step_id=step_id, name=name, result=result))
    return found


@given(STEPS, st.lists(st.tuples(st.integers(0, 40), NAMES, VALUES), max_size=8))
def test_inserting_k_steps_changes_exactly_k_rows(
    base: list[tuple[str, int]], inserted: list[tuple[int, str, int]]
) -> None:
    other = list(base)
    for place, name, value in inserted:
        other.insert(min(place, len(other)), (name, value))
    for left, right in ((base, other), (other, base)):
        rows = diff.align([steps(left), steps(right)])
        assert len(rows) == len(other)
        assert sum(not row.equal for row in rows) == len(inserted)


@given(st.lists(STEPS, min_size=2, max_size=5), st.data())
def test_every_step_has_one_cell_and_keeps_its_order(
    runs: list[list[tuple[str, int]]], data: st.DataObject
) -> None:
    made = [steps(run) for run in runs]
    base = data.draw(st.integers(0, len(runs) - 1))
    rows = diff.align(made, base)
    for column, run in enumerate(made):
        cells = [row.cells[column] for row in rows]
        assert [cell for cell in cells if cell is not None] == run
    assert all(any(row.cells) for row in rows)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 4), max_size=12), st.lists(st.integers(0, 4), max_size=12))
def test_the_common_subsequence_is_as_long_as_any(left: list[int], right: list[int]) -> None:
    pairs = sequences.common(left, right)
    assert all(left[a] == right[b] for a, b in pairs)
    assert all(a < c and b < d for (a, b), (c, d) in itertools.pairwise(pairs))
    assert len(pairs) == _longest(left, right)


def _longest(left: list[int], right: list[int]) -> int:
    above = [0] * (len(right) + 1)
    for item in left:
        row = [0]
        for n, other in enumerate(right):
            row.append(above[n] + 1 if item == other else max(above[n + 1], row[n]))
        above = row
    return above[-1]


def test_a_step_that_took_the_place_of_another_stands_beside_it() -> None:
    base = steps([("plan", 1), ("read", 1), ("edit", 2), ("test", 0), ("edit", 3), ("test", 1)])
    fork = steps([("plan", 2), ("read", 1), ("edit", 4), ("test", 1)])
    rows = diff.align([base, fork])
    assert [row.letters for row in rows] == [
        ("A", "B"), ("A", "A"), ("A", "B"), ("A", "B"), ("A", None), ("A", None),
    ]  # fmt: skip


def test_the_command_tells_steps_of_one_name_apart() -> None:
    def run(command: str, number: int) -> Step:
        args = Raw(b'{"command": "%s"}' % command.encode())
        return Step(
            session=1,
            offset=number,
            step_id=f"run#{number}",
            name="run",
            args=args,
            result=Raw(b"1"),
        )

    base = [run("grep -n x", 1), run("PYTHONPATH=src python -m pytest -x", 2)]
    other = [run("ls", 1), run("grep y", 2), run("pytest", 3)]
    rows = diff.align([base, other])
    assert [row.label for row in rows] == ["run ls", "run grep", "run pytest"]
    assert [[cell is not None for cell in row.cells] for row in rows] == [
        [False, True],
        [True, True],
        [True, True],
    ]


def branch(path: str, name: str, number: int, value: int = 1) -> Step:
    step_id = f"{path}/{name}" if path else name
    return Step(session=1, offset=number, step_id=step_id, name=name, result=Raw(b"%d" % value))


def test_branches_are_compared_whichever_finished_first() -> None:
    base = [branch(p, n, 0) for p, n in [("a", "x"), ("b", "x"), ("a", "y"), ("b", "y")]]
    other = list(base)
    random.Random(1).shuffle(other)
    other.sort(key=lambda step: step.name)  # a branch's own order stays
    rows = diff.align([base, other[::-1] if other[0].name == "y" else other])
    assert len(rows) == 4
    assert all(row.equal for row in rows)


def test_a_branch_that_stands_elsewhere_is_found_and_marked() -> None:
    base = [branch("", "first", 0), branch("fetch", "x", 1), branch("fetch", "y", 2)]
    base += [branch("", name, 3) for name in ("read", "write", "last")]
    other = [branch("", name, 0) for name in ("first", "read", "write", "last")]
    other += [branch("fetch", "x", 4), branch("fetch", "y", 5, 2)]
    rows = diff.align([base, other])
    assert [row.letters for row in rows] == [("A", "A"), ("A", "A"), ("A", "B"), *[("A", "A")] * 3]
    assert [any(row.moved) for row in rows] == [False, True, True, False, False, False]
