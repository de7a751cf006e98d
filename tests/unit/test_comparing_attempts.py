"""Attempts side by side: ranked by what they reached, with their files, any of them the base."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import (
    LocalStorage,
    MemoryStorage,
    Usage,
    Workflow,
    kassette,
    with_usage,
)
from kassette_nb.notebook.compare import Comparison
from kassette_nb.notebook.matrix import ComparePanel
from kassette_nb.notebook.view import of_runs
from kassette_nb.scores import score_of


def solver(tmp_path: Path, **options: Any) -> Workflow:
    """An agent that writes what its plan says; three tests pass for each letter of it."""
    (tmp_path / "tree").mkdir(exist_ok=True)
    (tmp_path / "tree" / "a.txt").write_text("old\n")

    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tmp_path / "tree", **options)
    async def solve(ctx, task):
        def edit(text: str) -> str:
            (ctx.workspace / "a.txt").write_text(f"{text}\n")
            return "written"

        plan = await ctx.step(
            "plan", lambda: with_usage("a", Usage(model="m", cost_usd=0.25, input_tokens=10))
        )
        await ctx.step("edit", edit, plan)
        await ctx.step("price", lambda: with_usage(1, Usage(cost_usd=len(plan) / 100)))
        return {"passed": 3 * len(plan)}

    return solve


@pytest.fixture
def made(tmp_path: Path) -> Comparison:
    wf = solver(tmp_path, outcome=lambda result: (result["passed"], 9))
    wf.start_sync("t", run_id="run")
    attempts = wf.fork_many("run", at="plan", values=["bbb", "cc", ""])
    attempts.wait(30)
    runs = kb.open(tmp_path / "store")
    return kb.compare([runs[i] for i in ("run", *attempts.run_ids)])


def test_attempts_have_a_score_files_and_a_family(made: Comparison) -> None:
    table = made.attempts()
    assert [a["score"] for a in table] == ["3 / 9", "9 / 9", "6 / 9", "0 / 9"]
    assert [a["solved"] for a in table] == [False, True, False, False]
    assert [(a["files"], a["added"], a["removed"]) for a in table] == [(1, 1, 1)] * 4
    found = made.paired()
    assert (found.wins, found.losses, found.ties) == (2, 1, 0)
    assert made.paired([("run.2", "run.3")]).losses == 1
    assert [(line["run_id"], line["depth"], line["at"]) for line in made.lineage()] == [
        ("run", 0, None),
        ("run.2", 1, "plan (changed)"),
        ("run.3", 1, "plan (changed)"),
        ("run.4", 1, "plan (changed)"),
    ]
    with pytest.raises(kb.KassetteError, match="'gone' is not one of those"):
        made.paired([("run", "gone")])


def test_a_cell_shows_the_value_or_the_files_against_the_base(made: Comparison) -> None:
    sent: list[dict[str, Any]] = []
    panel = ComparePanel(made, sent.append, sent.append)
    panel.handle({"type": "cell", "row": 1, "run": 1, "what": "value"})
    assert "the same value, other arguments and files" in sent[-1]["title"]
    panel.handle({"type": "cell", "row": 1, "run": 1, "what": "files"})
    assert "-a\n+bbb" in sent[-1]["text"]
    panel.handle({"type": "cell", "row": 1, "run": 0, "what": "files"})
    assert "-old\n+a" in sent[-1]["text"]
    assert "the beginning" in sent[-1]["title"]
    panel.handle({"type": "cell", "row": 0, "run": 1, "what": "files"})
    assert sent[-1]["note"] == "the files are the same"


def test_any_attempt_can_be_the_base(made: Comparison) -> None:
    sent: list[dict[str, Any]] = []
    panel = ComparePanel(made, sent.append, sent.append)
    panel.handle({"type": "base", "run": 2})
    summary, rows = sent[-2], sent[-1]
    assert [run["base"] for run in summary["runs"]] == [False, False, True, False]
    assert summary["code_line"].endswith(", base=2)")
    assert [cell["m"] for cell in rows["rows"][0]["cells"]] == ["B", "C", "A", "D"]
    assert made.paired().losses == 2
    panel.handle({"type": "base", "run": 9})
    assert made.base == 2


def test_a_score_given_to_the_comparison_ranks_it(tmp_path: Path) -> None:
    wf = solver(tmp_path)
    wf.start_sync("t", run_id="run")
    fork = asyncio.run(wf.fork("run", override={"plan": "bb"}))
    wf.start_sync(run_id=fork)
    runs = kb.open(tmp_path / "store")
    plain = kb.compare([runs["run"], runs[fork]])
    assert [a["score"] for a in plain.attempts()] == [None, None]
    made = kb.compare([runs["run"], runs[fork]], score=lambda run: run.result["passed"])
    assert [(a["points"], a["rank"]) for a in made.attempts()] == [(3, 2), (6, 1)]
    assert made.paired().wins == 1
    with pytest.raises(kb.KassetteError, match="the score of run 'run' is 'good'"):
        kb.compare([runs["run"], runs[fork]], score=lambda run: "good")


def test_an_outcome_that_fails_takes_nothing_down_and_is_told(tmp_path: Path) -> None:
    scored = {3: 1, 6: "good"}
    wf = solver(tmp_path, outcome=lambda result: scored[result["passed"]])
    wf.start_sync("t", run_id="run")
    wf.fork_many("run", at="plan", values=["bb", "ccc"]).wait(30)
    runs = kb.open(tmp_path / "store")
    made = kb.compare([runs[i] for i in ("run", "run.2", "run.3")])
    assert [a["rank"] for a in made.attempts()] == [1, None, None]
    for told in (
        "the score of run.3 is missing: outcome= of workflow 'solve' cannot tell it (KeyError: 9)",
        "the score of run.2 is missing",
        "is 'good'",
    ):
        assert told in repr(made)
        assert told in ComparePanel(made, print, lambda _: None).summary()["note"]
    assert "KeyError: 9" in made._repr_html_()
    asked = Comparison(made.runs, score=lambda run: run.result["missing"])
    assert "the score of run, run.2, run.3 is missing: score= cannot tell it" in asked.note


def test_where_the_code_is_not_loaded_the_comparison_says_why_there_are_no_scores(
    tmp_path: Path,
) -> None:
    wf = solver(tmp_path, outcome=lambda result: result["passed"])
    wf.start_sync("t", run_id="run")
    runs = kb.open(tmp_path / "store")
    assert kb.compare([runs["run"], runs["run"]]).note == ""
    code = (
        "import sys, kassette_nb as kb; run = kb.open(sys.argv[1])['run']; "
        "print(kb.compare([run, run])); print(kb.compare([run, run], score=lambda run: 1))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "store")],
        check=True, capture_output=True, text=True,
    ).stdout.split("\n")  # fmt: skip
    assert "no scores: outcome= is part of a workflow's code, and that of 'solve'" in said[0]
    assert "score" not in said[1]


def test_ticked_forks_are_compared_with_their_source(made: Comparison) -> None:
    view = of_runs(kb.open(made.runs[0].storage))
    view.handle({"type": "compare", "run_ids": ["run.3", "run.2", "run"]})
    shown = view.detail
    assert [a["run_id"] for a in shown["runs"]] == ["run", "run.3", "run.2"]
    assert shown["runs"][0]["base"]
    view.close()


def test_a_base_is_an_index_or_one_of_the_runs(made: Comparison) -> None:
    runs: Any = made.runs
    odd: Any
    assert [kb.compare(runs, base=b).base for b in (2, "run.3", runs[2])] == [2, 2, 2]
    for odd in ("b01", 4, -1, True, None, 1.0):
        with pytest.raises(kb.KassetteError, match="is none of the 4 runs: give an index"):
            kb.compare(runs, base=odd)
    odd = 3
    with pytest.raises(kb.KassetteError, match="score=3 is no function"):
        kb.compare(runs, score=odd)
    with pytest.raises(TypeError, match="outcome=3 is no plain function"):
        kassette(outcome=odd)(solve)


async def solve(ctx):
    return None


def test_attempts_that_are_equally_good_share_a_rank(made: Comparison) -> None:
    points = {"run": 2, "run.2": 3, "run.3": 2, "run.4": None}
    again = Comparison(made.runs, score=lambda run: points[run.run_id])
    assert [a["rank"] for a in again.attempts()] == [2, 1, 2, None]
    assert [a["points"] for a in again.attempts()] == [2, 3, 2, None]


def test_scores_are_numbers_pairs_or_yes_and_no() -> None:
    assert score_of(None, "x") is None
    assert [s.text for s in (score_of(g, "x") for g in (True, 3, 2.5, (2, 3))) if s] == [
        "solved",
        "3",
        "2.5",
        "2 / 3",
    ]
    for bad in (
        "3",
        float("nan"),
        (1, 2, 3),
        (True, 2),
        (3, 0),
        (0, 0),
        (4, 3),
        (-1, 3),
        (1, float("inf")),
    ):
        with pytest.raises(kb.KassetteError, match="the score of x"):
            score_of(bad, "x")


def test_the_picture_carries_no_markup_of_a_journal(tmp_path: Path) -> None:
    wf = solver(tmp_path)
    wf.start_sync("t", run_id="run")
    wf.fork_many("run", at="plan", values=["<b>x</b>"], labels=["<a href='https://x'>y"]).wait(30)
    runs = kb.open(tmp_path / "store")
    text = kb.compare([runs["run"], runs["run.2"]]).figure().to_json()
    assert "<a href" not in text
    assert "&lt;a href" in text or "\\u0026lt;a href" in text


def test_comparing_needs_plotly_only_for_its_picture(tmp_path: Path) -> None:
    wf = solver(tmp_path)
    wf.start_sync("t", run_id="run")
    code = (
        "import sys, kassette_nb as kb; run = kb.open(sys.argv[1])['run']; "
        "c = kb.compare([run, run]); assert 'plotly' not in sys.modules; c.figure(); "
        "assert 'plotly' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], check=True)


def test_what_runs_share_is_counted_once_whoever_stands_between_them() -> None:
    @kassette(storage=MemoryStorage())
    async def three(ctx):
        for name in "abc":
            await ctx.step(name, lambda: with_usage(1, Usage(cost_usd=1.0, input_tokens=100)))

    three.start_sync(run_id="r")
    runs = kb.open(three.storage)

    def forked(run_id: str, **how: Any) -> str:
        made: str = runs[run_id].fork(**how).run_id
        three.start_sync(run_id=made)
        return made

    fork = forked("r", at="c")
    grandchild = forked(fork, at="c")
    cousin = forked("r", override={"b": 2})

    def compared(*run_ids: str) -> tuple[bool, dict[str, Any], float | None]:
        found = kb.compare([runs[run_id] for run_id in run_ids])
        panel = ComparePanel(found, lambda _: None, lambda _: None)
        return found.related, panel.summary()["total"], found.paired().cost_usd

    once = {"steps": 4, "tokens": 400, "cost": 4.0}
    for pair in (("r", grandchild), (fork, grandchild), (grandchild, cousin), ("r", cousin)):
        assert compared(*pair) == (True, once, 0.0), pair
    assert compared("r", fork, grandchild, cousin)[1] == {"steps": 6, "tokens": 600, "cost": 6.0}
    three.start_sync(run_id="other")
    assert compared("r", "other") == (False, {"steps": 6, "tokens": 600, "cost": 6.0}, 0.0)
