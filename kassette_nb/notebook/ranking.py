"""What attempts are ranked by: their scores, and why one is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import values
from ..entries import Complete, Failure
from ..errors import KassetteError
from ..model import RunModel
from ..scores import Score, score_of
from ..state import RunState
from ..text import first_line, visible

#: Gives a run what it is ranked by.
Scoring = Callable[[Any], object]


class Ranking:
    """The scores of several runs.

    Args:
        runs: The runs.
        states: What their journals mean.
        score: Scores a run; None: the ``outcome=`` of its workflow, where that is loaded.

    Attributes:
        scores: One for each run, None where it is not known.
        note: Why scores are missing, in a line; empty where there is nothing to say.

    Raises:
        KassetteError: ``score`` is no function, or what it gave is no score.
    """

    def __init__(
        self, runs: Sequence[RunModel], states: Sequence[RunState], score: Scoring | None
    ) -> None:
        if score is not None and not callable(score):
            raise KassetteError(
                f"score={score!r} is no function: it takes a run and returns what that is ranked "
                "by, as in score=lambda run: run.result['passed']"
            )
        self._problems: dict[str, list[str]] = {}
        self.scores = [self._score(*each, score) for each in zip(runs, states, strict=True)]
        told = [
            f"the score of {', '.join(run_ids)} is missing: {problem}"
            for problem, run_ids in self._problems.items()
        ]
        unloaded = {
            folded.opening.workflow
            for run, folded in zip(runs, states, strict=True)
            if score is None and run.workflow is None and folded.opening.workflow is not None
        }
        if unloaded:
            names = ", ".join(sorted(map(repr, unloaded)))
            few = "no scores" if not any(self.scores) else "scores are missing"
            told.append(
                f"{few}: outcome= is part of a workflow's code, and that of {names} is not loaded "
                "here; import it or run its cell, or give score="
            )
        self.note = visible("; ".join(told))

    def rank(self, number: int) -> int | None:
        """Return the place of a run, 1 for the best, equal ones the same; None without a score."""
        score = self.scores[number]
        if score is None:
            return None
        return 1 + sum(other.value > score.value for other in self.scores if other is not None)

    def _score(self, run: RunModel, folded: RunState, score: Scoring | None) -> Score | None:
        who = f"run {run.run_id!r}"
        if score is not None:
            try:
                given = score(run)
            except Exception as problem:  # of one attempt; the others are still worth seeing
                self._missing(run, "score=", problem)
                return None
            return score_of(given, who)
        outcome = run.workflow.definition.outcome if run.workflow is not None else None
        if outcome is None:
            return None
        ending = folded.ending
        if not isinstance(ending, Complete):
            return Score(0.0, "not solved", False) if isinstance(ending, Failure) else None
        try:
            return score_of(outcome(values.decode(ending.result)), who)
        except Exception as problem:
            self._missing(run, f"outcome= of workflow {folded.opening.workflow!r}", problem)
            return None

    def _missing(self, run: RunModel, what: str, problem: Exception) -> None:
        text = f"{type(problem).__name__}: {problem}"
        if isinstance(problem, KassetteError):
            text = str(problem)
        line = first_line(f"{what} cannot tell it ({text})", 400)
        self._problems.setdefault(line, []).append(run.run_id)


def base_of(runs: Sequence[RunModel], base: object) -> int:
    """Return the index of the run that others are compared with.

    Args:
        runs: Those that are compared.
        base: Its index, its id, or the run itself.

    Raises:
        KassetteError: It is none of them.
    """
    if type(base) is int and 0 <= base < len(runs):
        return base
    wanted = getattr(base, "run_id", base)
    if isinstance(wanted, str):
        for number, run in enumerate(runs):
            if run.run_id == wanted:
                return number
    ids = first_line(", ".join(repr(run.run_id) for run in runs), 200)
    raise KassetteError(
        f"base={first_line(repr(base), 60)} is none of the {len(runs)} runs: give an index "
        f"(0 to {len(runs) - 1}), or one of {ids}"
    )
