"""Answers the page about one comparison: its rows, and one cell against the base."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import diff
from ..difference import changes, readable
from ..entries import Step
from ..llm.conversation import conversation
from ..state import Spend
from ..text import visible
from .cells import told as cells_told
from .compare import Comparison
from .present import nothing, text_value

Message = dict[str, Any]


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
        prefix = Spend()
        for step in made.shared.prefix:
            prefix.add(step)
        spends = [*(folded.own for folded in made.states), prefix]
        tokens = [spend.tokens for spend in spends if spend.tokens is not None]
        costs = [spend.cost_usd for spend in spends if spend.cost_usd is not None]
        attempts = made.attempts()
        return {
            "kind": "compare",
            "title": made.title,
            "sub": made.sub,
            "runs": attempts,
            "total": {
                "steps": sum(a["steps_own"] for a in attempts) + len(made.shared.prefix),
                "tokens": sum(tokens) if tokens else None,
                "cost": sum(costs) if costs else None,
            },
            "paired": made.paired().line,
            "note": made.note,
            "lineage": made.lineage() if made.related else [],
            "code_line": made.code,
            "total_rows": len(made.rows),
        }

    def handle(self, message: Message) -> None:
        """Answer one message of the page."""
        kind = message.get("type")
        if kind == "base":
            base = _index(message.get("run"), self.comparison.runs)
            if base is not None:
                self.comparison.rebase(base)
        if kind in ("hello", "base"):
            self._publish(self.summary())
            rows = list(self._rows())
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
        if asked.get("what") == "files":
            return {**reply, **self._changed(row, column, base, bool(asked.get("whole")))}
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
        title = f"{name} · {names[0]} → {names[1]}"
        texts = self._differences(row, (base, before), (column, after))
        if not texts:
            return {**reply, "title": f"{title} · equal", **text_value(_text(after), whole=whole)}
        if "value" not in texts:
            title = f"{title} · the same value, other {' and '.join(texts)}"
        told = texts.get("value", "")
        if len(texts) > 1 or not told:
            told = "\n".join(f"@@ {part} @@\n{text}" for part, text in texts.items())
        return {**reply, "title": title, **text_value(visible(told), "diff", whole=whole)}

    def _differences(
        self, row: int, ours: tuple[int, Step], theirs: tuple[int, Step]
    ) -> dict[str, str]:
        """Return in what two steps differ, and how."""
        made, (base, before), (column, after) = self.comparison, ours, theirs
        names = [made.runs[number].label or made.runs[number].run_id for number in (base, column)]
        ways: dict[str, Callable[[], str]] = {
            "value": lambda: _difference(before, after),
            "arguments": lambda: made.facets.arguments_difference(ours, theirs),
            "files": lambda: made.facets.files_difference(ours, theirs, names),
        }
        if base != made.base:  # a page that has not heard of the other base yet
            return {part: text for part, way in ways.items() if (text := way())}
        return {part: ways[part]() for part in made.rows[row].differs[column].split(", ") if part}

    def _changed(self, row: int, column: int, base: int, whole: bool) -> Message:
        """Return how the files differ behind an aligned step."""
        runs, cells = self.comparison.runs, self.comparison.rows[row].cells
        names = [visible(run.label or run.run_id) for run in (runs[base], runs[column])]
        before, after = (cells[number] for number in (base, column))
        ours = before.workspace if before is not None else None
        theirs = after.workspace if after is not None else None
        title = f"files behind {visible((after or before or _NO_STEP).step_id)}"
        if base == column:
            names[0], ours = "the beginning", runs[base].workspace.first()
        if ours is None or theirs is None:
            return {"title": title, **nothing("no files were kept with both")}
        text = runs[column].workspace.difference(ours, theirs)
        title = f"{title} · {names[0]} → {names[1]}"
        if not text:
            return {"title": title, **nothing("the files are the same")}
        return {"title": title, **text_value(text, "diff", whole=whole)}

    def _rows(self) -> Iterator[Message]:
        made = self.comparison
        for row, lines in zip(made.rows, cells_told(made.rows, made.facets), strict=True):
            cells: list[Message | None] = []
            for number, (step, letter) in enumerate(zip(row.cells, row.letters, strict=True)):
                if step is None:
                    cells.append(None)
                    continue
                cell: Message = {"m": letter, "p": lines[number], "o": step.offset}
                marks = {
                    "e": step.error is not None,
                    "v": step.overridden,
                    "w": step.workspace is not None,
                    "mv": bool(row.moved and row.moved[number]),
                }
                cells.append(cell | {key: True for key, on in marks.items() if on})
            yield {"k": visible(row.label), "cells": cells, "eq": row.equal}


_NO_STEP = Step(session=0, step_id="", name="")


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
    return changes(_text(before), _text(after))
