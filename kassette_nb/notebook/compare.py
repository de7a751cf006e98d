"""RunsModel side by side: a table of attempts, and their steps aligned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .. import diff, display
from ..diff import Row, readable
from ..entries import Complete, Failure, Step
from ..errors import KassetteError
from ..llm.conversation import conversation, said
from ..model import RunModel
from ..preview import outcome, preview
from ..state import RunState, Spend
from ..text import first_line, visible
from . import code
from .present import nothing, text_value
from .summary import facts

if TYPE_CHECKING:
    import pandas as pd

    from .view import View

Message = dict[str, Any]


class Comparison:
    """Runs aligned step by step; shows itself in a notebook.

    Args:
        runs: Two or more runs.
        base: The index of the one that the others are compared with.

    Raises:
        KassetteError: Fewer than two runs, or one is damaged.
    """

    def __init__(self, runs: Sequence[RunModel], base: int = 0) -> None:
        given: object = runs
        if not isinstance(given, list | tuple):
            raise KassetteError("compare takes one list of runs: kb.compare([a, b])")
        if not all(hasattr(run, "fold") for run in given):
            raise KassetteError("compare takes runs, not ids: kb.compare([runs['a'], runs['b']])")
        if len(runs) < 2:
            raise KassetteError("a comparison needs two or more runs: kb.compare([a, b])")
        if not 0 <= base < len(runs):
            raise KassetteError(f"base={base} is not an index of the {len(runs)} runs")
        self.runs = list(runs)
        self.base = base
        self.states: list[RunState] = [run.fold() for run in runs]
        self.rows: list[Row] = diff.align([folded.steps for folded in self.states], base, said)

    def __repr__(self) -> str:
        return f"<{self.title}: {self.sub}>"

    def _ipython_display_(self) -> None:
        if not display.show("comparison", self):
            raise NotImplementedError

    def _repr_html_(self) -> str:
        from . import html

        return html.comparison(self)

    @property
    def related(self) -> bool:
        """Whether the runs come from one another or from one source."""
        roots = {
            folded.opening.source.run_id if folded.opening.source else run.run_id
            for run, folded in zip(self.runs, self.states, strict=True)
        }
        return len(roots) == 1 or bool(roots & {run.run_id for run in self.runs})

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
            return f"all {same} {steps} equal"
        start = f"{same} equal {steps} first" if same else "no equal start"
        step = next(cell for cell in first.cells if cell is not None)
        return visible(f"{start}, then a difference at {step.step_id}")

    def frame(self) -> pd.DataFrame:
        """Return one row for each run and aligned step.

        Returns:
            Columns ``row`` (Int64), ``name run_id step_id status letter`` (string; status is
            ``same``, ``changed``, ``failed``, ``inserted`` or ``missing``, against the base),
            ``seconds cost_usd`` (Float64), ``result`` (string, its first line).
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
        """Return each run's line of the table: outcome, steps, tokens, cost, time."""
        lines = []
        for number, (run, folded) in enumerate(zip(self.runs, self.states, strict=True)):
            figures = facts(folded)
            own, copied = folded.own, folded.prefix
            costs = [c for c in (own.cost_usd, copied.cost_usd) if c is not None]
            tokens = [t for t in (own.tokens, copied.tokens) if t is not None]
            lines.append(
                {
                    "run_id": run.run_id,
                    "label": None if run.label is None else visible(run.label),
                    "state": folded.status,
                    "outcome": _outcome(folded),
                    "steps": len(folded.steps),
                    "tokens": sum(tokens) if tokens else None,
                    "cost_own": own.cost_usd,
                    "cost_total": sum(costs) if costs else None,
                    "working_ms": figures["working_ms"] + figures["copied_ms"],
                    "base": number == self.base,
                }
            )
        return lines


class ComparePanel:
    """Answers the page's messages about one comparison. Tests call `handle`."""

    def __init__(
        self,
        comparison: Comparison,
        send: Callable[[Message], None],
        publish: Callable[[Message], None],
    ) -> None:
        self.comparison = comparison
        self._send = send
        self._publish = publish
        publish(self.summary())

    def summary(self) -> Message:
        """Return the summary trait."""
        made = self.comparison
        spends = [folded.own for folded in made.states] + _prefixes(made)
        tokens = [spend.tokens for spend in spends if spend.tokens is not None]
        costs = [spend.cost_usd for spend in spends if spend.cost_usd is not None]
        return {
            "kind": "compare",
            "title": made.title,
            "sub": made.sub,
            "runs": made.attempts(),
            "total": {
                "steps": sum(s.offset >= f.copied for f in made.states for s in f.steps),
                "tokens": sum(tokens) if tokens else None,
                "cost": sum(costs) if costs else None,
            },
            "code_line": made.code,
            "total_rows": len(made.rows),
        }

    def handle(self, message: Message) -> None:
        """Answer one message of the page."""
        kind = message.get("type")
        if kind == "hello":
            self._publish(self.summary())
            rows = [_cells(row) for row in self.comparison.rows]
            self._send({"type": "rows", "from": 0, "rows": rows, "total": len(rows)})
        elif kind == "cell":
            self._send(self._cell(message))

    def close(self) -> None:
        """Nothing to stop: a comparison is of one moment."""

    def _cell(self, message: Message) -> Message:
        asked = {"base": self.comparison.base, **message}
        reply = {"type": "cell", **{name: asked.get(name) for name in ("row", "run", "base")}}
        rows, runs = self.comparison.rows, self.comparison.runs
        row = _index(asked.get("row"), rows)
        column, base = _index(asked.get("run"), runs), _index(asked["base"], runs)
        if row is None or column is None or base is None:
            return {**reply, "title": "", **nothing("there is no such cell")}
        cells = rows[row].cells
        before, after = cells[base], cells[column]
        names = [visible(run.label or run.run_id) for run in (runs[base], runs[column])]
        step = after or before
        name = visible(step.step_id) if step else ""
        whole = bool(asked.get("whole"))
        if base == column or before is None or after is None:
            shown, who = (after, names[1]) if after is not None else (before, names[0])
            if shown is None:
                return {**reply, "title": name, **nothing("neither run has this step")}
            missing = "" if base == column else " · the other run has no such step"
            text = _text(shown)
            return {**reply, "title": f"{name} · {who}{missing}", **text_value(text, whole=whole)}
        changed = _difference(before, after)
        title = f"{name} · {names[0]} → {names[1]}"
        if not changed:
            return {**reply, "title": f"{title} · equal", **text_value(_text(after), whole=whole)}
        return {**reply, "title": title, **text_value(changed, "diff", whole=whole)}


def _prefixes(made: Comparison) -> list[Spend]:
    """Return what was spent on copied steps, once for each source that is not itself compared."""
    compared = {run.run_id for run in made.runs}
    longest: dict[str, RunState] = {}
    for folded in made.states:
        source = folded.opening.source
        if source is None or source.run_id in compared:
            continue
        known = longest.get(source.run_id)
        if known is None or known.copied < folded.copied:
            longest[source.run_id] = folded
    return [folded.prefix for folded in longest.values()]


def _index(index: Any, things: Sequence[object]) -> int | None:
    return index if isinstance(index, int) and 0 <= index < len(things) else None


def _text(step: Step) -> str:
    if step.error is not None:
        return visible(f"{step.error.name}: {step.error.message}")
    found = conversation(step)
    return readable(step.result) if found is None else visible(str(found))


def _difference(before: Step, after: Step) -> str:
    """Return the difference of two results; of two model calls, that of what was said."""
    if before.request is None or after.request is None:
        return diff.difference(before, after)
    return diff.changes(_text(before), _text(after))


def _outcome(folded: RunState) -> str:
    ending = folded.ending
    if isinstance(ending, Complete):
        return preview(ending.result) or folded.status
    if isinstance(ending, Failure):
        return first_line(f"{ending.error.name}: {ending.error.message}")
    return folded.status


def _cells(row: Row) -> Message:
    cells: list[Message | None] = []
    for step, letter in zip(row.cells, row.letters, strict=True):
        if step is None:
            cells.append(None)
            continue
        cells.append(
            {
                "m": letter,
                "p": outcome(step),
                "o": step.offset,
                "e": step.error is not None,
                "v": step.overridden,
            }
        )
    return {"k": visible(row.name), "cells": cells, "eq": row.equal}
