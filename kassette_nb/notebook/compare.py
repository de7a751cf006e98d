"""Runs side by side: a table of attempts, and their steps aligned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import diff, display
from ..diff import Row
from ..entries import Complete, Failure
from ..errors import KassetteError
from ..facets import Facets
from ..llm.conversation import said
from ..model import RunModel
from ..pairs import Paired, Side, paired
from ..preview import preview
from ..snapshots import Change
from ..state import RunState
from ..text import first_line, visible
from . import code
from .ranking import Ranking, Scoring, base_of
from .shared import Shared
from .summary import facts

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from .view import View

Message = dict[str, Any]


class Comparison:
    """Runs aligned step by step; shows itself in a notebook.

    Args:
        runs: Two or more runs.
        base: The one that the others are compared with: its index, its id or the run itself.
        score: Gives a run what it is ranked by; by default the ``outcome=`` of its workflow. A run
            that it raises for has no score, and ``note`` says why.

    Raises:
        KassetteError: Fewer than two runs, or one is damaged; ``base`` is none of them; ``score``
            is no function, or gives what is no score.
    """

    def __init__(
        self,
        runs: Sequence[RunModel],
        base: int | str | RunModel = 0,
        score: Scoring | None = None,
    ) -> None:
        given: object = runs
        if not isinstance(given, list | tuple):
            raise KassetteError("compare takes one list of runs: kb.compare([a, b])")
        if not all(hasattr(run, "fold") for run in given):
            raise KassetteError("compare takes runs, not ids: kb.compare([runs['a'], runs['b']])")
        if len(runs) < 2:
            raise KassetteError("a comparison needs two or more runs: kb.compare([a, b])")
        self.runs = list(runs)
        self.base = base_of(runs, base)
        self.states: list[RunState] = [run.fold() for run in runs]
        self.ranking = Ranking(runs, self.states, score)
        self.shared = Shared(self.runs, self.states)
        self.facets = Facets(self.runs)
        self.rows: list[Row] = self._aligned(self.base)
        self._files: dict[int, list[Change] | None] = {}

    def __repr__(self) -> str:
        note = f"; {self.note}" if self.note else ""
        return f"<{self.title}: {self.sub}{note}>"

    def _ipython_display_(self) -> None:
        if not display.show("comparison", self):
            raise NotImplementedError

    def _repr_html_(self) -> str:
        from . import html

        return html.comparison(self)

    @property
    def related(self) -> bool:
        """Whether the runs come from one another or from one source."""
        return self.shared.related

    @property
    def title(self) -> str:
        """How many attempts, in words."""
        kind = "attempts" if self.related else "independent attempts"
        return f"{len(self.runs)} {kind}"

    @property
    def sub(self) -> str:
        """What they share and where they part."""
        same = diff.shared(self.rows)
        first = diff.first_difference(self.rows)
        steps = "step" if same == 1 else "steps"
        if first is None:
            return (
                f"all {same} steps equal" if same > 1 else f"{same or 'no'} {steps}, equal in all"
            )
        step = next(cell for cell in first.cells if cell is not None)
        if not same:
            return visible(f"they differ from the first step on, {step.step_id}")
        return visible(f"{same} equal {steps} first, then a difference at {step.step_id}")

    @property
    def note(self) -> str:
        """Why scores are missing; empty where there is nothing to say."""
        return self.ranking.note

    def rebase(self, base: int) -> None:
        """Compare with another one of the runs."""
        self.base = base
        self.rows = self._aligned(base)

    def paired(self, pairs: Sequence[tuple[str, str]] | None = None) -> Paired:
        """Count wins, losses and ties by score, and what it costs more or less.

        Costs are those in all, a copied prefix included: else any fork would be cheaper than its
        source.

        Args:
            pairs: Run ids (the first, the second); by default the base with every other run.

        Raises:
            KassetteError: A run of a pair is not compared here.
        """
        numbers = {run.run_id: number for number, run in enumerate(self.runs)}
        if pairs is None:
            base = self.runs[self.base].run_id
            pairs = [(base, run_id) for run_id in numbers if run_id != base]
        for run_id in {each for pair in pairs for each in pair}:
            if run_id not in numbers:
                raise KassetteError(f"run {run_id!r} is not one of those that are compared.")
        return paired([(self._side(numbers[a]), self._side(numbers[b])) for a, b in pairs])

    def files(self, number: int) -> list[Change] | None:
        """Return what a run changed in its files, prefix included; None without a workspace."""
        if number not in self._files:
            kept = self.runs[number].workspace
            first, last = kept.first(), kept.last()
            known = first is not None and last is not None
            try:
                self._files[number] = kept.between(str(first), str(last)) if known else None
            except KassetteError:
                self._files[number] = None  # the snapshots are not here
        return self._files[number]

    def figure(self) -> go.Figure:
        """Return a picture for plotly: what the attempts cost, and where they part.

        Returns:
            A bar an attempt (dollars, else tokens, else steps), and a map of the aligned steps,
            a row an attempt. Sorted by score where there is one.
        """
        from .charts import comparison

        return comparison(self)

    def lineage(self) -> list[Message]:
        """Return the fork family as lines of a tree, depth first.

        Returns:
            ``depth``, ``run_id``, ``label``, ``at`` (the step it was forked at, None for a root)
            and ``number`` (its place in the comparison, None for a source that is not compared).
        """
        known = {run.run_id: number for number, run in enumerate(self.runs)}
        children: dict[str | None, list[str]] = {}
        for run, folded in zip(self.runs, self.states, strict=True):
            source = folded.opening.source
            parent = source.run_id if source else None
            children.setdefault(parent, []).append(run.run_id)
            if parent is not None and parent not in known and parent not in children.get(None, []):
                children.setdefault(None, []).append(parent)
        lines: list[Message] = []

        def add(run_id: str, depth: int) -> None:
            number = known.get(run_id)
            label = self.runs[number].label if number is not None else None
            lines.append(
                {
                    "depth": depth,
                    "run_id": run_id,
                    "label": None if label is None else visible(label),
                    "at": None if number is None else _forked_at(self.states[number]),
                    "number": number,
                }
            )
            for child in children.get(run_id, []):
                add(child, depth + 1)

        for root in children.get(None, []):
            add(root, 0)
        return lines

    def frame(self) -> pd.DataFrame:
        """Return one row for each run and aligned step.

        Returns:
            Columns ``row`` (Int64), ``name run_id step_id status letter`` (string; status is
            ``same``, ``changed``, ``failed``, ``inserted`` or ``missing``, against the base),
            ``differs`` (string: in what the step is another than the base's: ``value``,
            ``arguments``, ``files``, several joined by ", "; empty for nothing, and where the
            base has no such step; missing where this run has none), ``started finished``
            (datetime64[ms, UTC]; ``started`` is missing where it was not recorded, or the result
            is not the step's own), ``seconds cost_usd`` (Float64), ``result`` (string, its first
            line).

        A step is the same if its recorded value, its recorded arguments and what it changed in
        the files are: of a model call's request, and of a conversation among arguments, what is
        new in it; of files the paths with what they hold afterwards, where the snapshots are
        here. A run's own directory in arguments counts as the same as another's.
        """
        from ..frames import comparison_frame

        return comparison_frame(self.runs, self.rows, self.base)

    def panel(self) -> View:
        """Return the bare widget of this comparison."""
        from .view import of_comparison

        return of_comparison(self)

    @property
    def code(self) -> str:
        """The line of code that makes this comparison."""
        opened = code.opened(self.runs[0].storage.url)
        ids = ", ".join(f"{run.run_id!a}" for run in self.runs)
        base = f", base={self.base}" if self.base else ""
        return f"kb.compare([{opened}[i] for i in [{ids}]]{base})"

    def attempts(self) -> list[Message]:
        """Return each run's line of the table: outcome, steps, tokens, cost, time.

        Returns:
            Among others ``score`` (in words), ``points`` (its number, more is better) and
            ``rank`` (1 is the best, equal ones share it); None where there is no score.
        """
        lines = []
        for number, (run, folded) in enumerate(zip(self.runs, self.states, strict=True)):
            score, changed = self.ranking.scores[number], self.files(number)
            figures = facts(run, folded)
            own, copied = folded.own, folded.prefix
            working = figures["working_ms"]
            tokens = [t for t in (own.tokens, copied.tokens) if t is not None]
            lines.append(
                {
                    "run_id": run.run_id,
                    "label": None if run.label is None else visible(run.label),
                    "state": folded.status,
                    "outcome": _outcome(folded),
                    "steps": len(folded.steps),
                    "steps_own": sum(s.offset >= folded.copied for s in folded.steps),
                    "tokens_own": own.tokens,
                    "tokens": sum(tokens) if tokens else None,
                    "cost_own": own.cost_usd,
                    "cost_total": _cost(folded),
                    "working_ms": None if working is None else working + figures["copied_ms"],
                    "base": number == self.base,
                    "score": score.text if score is not None else None,
                    "points": score.value if score is not None else None,
                    "rank": self.ranking.rank(number),
                    "solved": score.solved if score is not None else None,
                    "files": None if changed is None else len(changed),
                    "added": sum(change.added or 0 for change in changed or ()),
                    "removed": sum(change.removed or 0 for change in changed or ()),
                    "number": number,
                }
            )
        return lines

    def _aligned(self, base: int) -> list[Row]:
        steps = [folded.steps for folded in self.states]
        return diff.align(steps, base, said, self.facets.beside)

    def _side(self, number: int) -> Side:
        score, folded = self.ranking.scores[number], self.states[number]
        return Side(score.value if score is not None else None, _cost(folded))


def _cost(folded: RunState) -> float | None:
    """Return what a run cost in all, its copied prefix included: what it takes to have it."""
    costs = [c for c in (folded.own.cost_usd, folded.prefix.cost_usd) if c is not None]
    return sum(costs) if costs else None


def _outcome(folded: RunState) -> str:
    ending = folded.ending
    if isinstance(ending, Complete):
        return preview(ending.result) or folded.status
    if isinstance(ending, Failure):
        return first_line(f"{ending.error.name}: {ending.error.message}")
    return folded.status


def _forked_at(folded: RunState) -> str | None:
    """Return the step at which a run went its own way."""
    if folded.opening.source is None:
        return None
    before = [step for step in folded.steps if step.offset < folded.copied]
    if before and before[-1].overridden:
        return f"{visible(before[-1].step_id)} (changed)"
    own = next((step for step in folded.steps if step.offset >= folded.copied), None)
    return visible(own.step_id) if own is not None else f"line {folded.copied}"
