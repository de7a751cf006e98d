"""Journals as tables: one list a column, in plain Python.

Instants stay the journal's own text here, and what was not recorded is None; `frames` makes
pandas of it. Runs are only read: nothing in a journal is imported or run for a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from . import values as codec
from .diff import Row
from .entries import (
    AnyEntry,
    Cancel,
    Complete,
    ErrorInfo,
    Failure,
    Foreign,
    Intent,
    Note,
    Resume,
    Start,
    Step,
    Suspend,
    Usage,
    kind_of,
)
from .errors import KassetteError
from .journal import Journal
from .model import RunModel
from .preview import outcome, recorded
from .text import first_line, visible

#: A table by column; every list has the same length.
Columns = dict[str, list[Any]]


class Table:
    """A table that grows run by run.

    Attributes:
        columns: One list a column.
        damaged: Run id → reason, of the runs that could not be read and have no rows.
    """

    def __init__(self, *names: str) -> None:
        self.columns: Columns = {name: [] for name in names}
        self.damaged: dict[str, str] = {}

    def add(self, **row: Any) -> None:
        """Add a row; a column that is not given is missing in it."""
        for name, column in self.columns.items():
            column.append(row.get(name))

    def extend(self, size: int, **columns: Sequence[Any]) -> None:
        """Add ``size`` rows by column."""
        for name, values in columns.items():
            self.columns[name] += values
        for name in self.columns.keys() - columns.keys():
            self.columns[name] += [None] * size

    def readable(self, runs: Iterable[RunModel]) -> Iterator[tuple[RunModel, Journal]]:
        """Yield the runs that can be read with their journals; take note of the others."""
        for run in runs:
            try:
                journal = run.journal
            except KassetteError as problem:
                self.damaged[run.run_id] = str(problem)
            else:
                yield run, journal


def steps_table(runs: Iterable[RunModel], *, values: bool = False) -> Table:
    """Return one row a recorded step; see `kassette_nb.frames.steps_frame`."""
    table = Table(
        "run_id", "step_id", "name", "kind", "branch", "session", "offset", "started", "finished",
        "model", "input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens",
        "first_token_seconds", "cost_usd", "error", "overridden", "copied", "code_hash", "bytes",
        "result", *["value"] * values,
    )  # fmt: skip
    for run, journal in table.readable(runs):
        steps = [entry for entry in journal.entries if type(entry) is Step]
        size, copied = len(steps), copied_lines(journal)
        usages = [step.usage for step in steps]
        ids = [step.step_id for step in steps]
        columns: dict[str, Sequence[Any]] = {
            "run_id": [run.run_id] * size,
            "step_id": _visible(ids),
            "name": _visible([step.name for step in steps]),
            "kind": _visible([step.kind or "step" for step in steps]),
            "branch": [visible(i.rpartition("/")[0]) if "/" in i else None for i in ids],
            "session": [step.session for step in steps],
            "offset": [step.offset for step in steps],
            # An overridden result was not computed: when the one it replaces began is not its.
            "started": [None if step.overridden else step.started_at for step in steps],
            "finished": [step.timestamp for step in steps],
            "error": [failed(step.error) if step.error else None for step in steps],
            "overridden": [step.overridden for step in steps],
            "copied": [step.offset < copied for step in steps],
            "code_hash": [shown(step.code_hash) for step in steps],
            "bytes": [len(step.result) if step.result else None for step in steps],
            "result": [outcome(s) if s.request else recorded(s.result) for s in steps],
        }
        if any(usages):
            columns |= {
                "model": [shown(u.model) if u else None for u in usages],
                "input_tokens": [u.input_tokens if u else None for u in usages],
                "output_tokens": [u.output_tokens if u else None for u in usages],
                "cached_input_tokens": [u.cached_input_tokens if u else None for u in usages],
                "reasoning_tokens": [u.reasoning_tokens if u else None for u in usages],
                "first_token_seconds": [_first_token(u) for u in usages],
                "cost_usd": [u.cost_usd if u else None for u in usages],
            }
        if values:
            columns["value"] = [
                codec.decode(step.result, what=f"run {run.run_id!r}, result of {step.step_id!r}")
                for step in steps
            ]
        table.extend(size, **columns)
    return table


def entries_table(runs: Iterable[RunModel]) -> Table:
    """Return one row a journal line; see `kassette_nb.frames.entries_frame`."""
    table = Table("run_id", "offset", "session", "type", "timestamp", "step_id", "name", "by",
                  "bytes", "summary")  # fmt: skip
    for run, journal in table.readable(runs):
        lines, ends, size = journal.entries, journal.ends, len(journal.entries)
        rows = [_ROWS[type(entry)](entry) for entry in lines]
        step_ids, names, by, summaries = zip(*rows, strict=True)
        table.extend(
            size,
            run_id=[run.run_id] * size,
            offset=range(size),
            session=[entry.session for entry in lines],
            type=[_TYPES.get(type(entry)) or visible(kind_of(entry)) for entry in lines],
            timestamp=[entry.timestamp for entry in lines],
            step_id=_visible(step_ids),
            name=_visible(names),
            by=by,
            bytes=[end - start for start, end in zip([0, *ends], ends, strict=False)],
            summary=summaries,
        )
    return table


def comparison_table(runs: Sequence[RunModel], rows: Sequence[Row], base: int) -> Table:
    """Return one row for each run and aligned step; see `Comparison.frame`."""
    table = Table("row", "name", "run_id", "step_id", "status", "letter", "differs", "started",
                  "finished", "cost_usd", "result")  # fmt: skip
    for number, row in enumerate(rows):
        for column, (run, step) in enumerate(zip(runs, row.cells, strict=True)):
            table.add(
                row=number,
                name=visible(row.name),
                run_id=run.run_id,
                step_id=visible(step.step_id) if step else None,
                status=_compared(row, column, base),
                letter=row.letters[column],
                differs=_differs(row, column, base) if step else None,
                started=step.started_at if step and not step.overridden else None,
                finished=step.timestamp if step else None,
                cost_usd=step.usage.cost_usd if step and step.usage else None,
                # Read side by side by a person, and few: here the panel's own line.
                result=_line(step) if step else None,
            )
    return table


def _line(step: Step) -> str:
    return first_line(failed(step.error)) if step.error else outcome(step)


def _compared(row: Row, column: int, base: int) -> str:
    step = row.cells[column]
    if step is None:
        return "missing"
    if step.error is not None:
        return "failed"
    if row.cells[base] is None:
        return "inserted"
    return "changed" if row.differs[column] else "same"


def _differs(row: Row, column: int, base: int) -> str:
    return row.differs[column] if row.cells[base] is not None else ""


def copied_lines(journal: Journal) -> int:
    """Return how many lines of a fork are its source's."""
    source = journal.opening.source
    return source.from_offset if source else 0


def _visible(texts: Sequence[str | None]) -> Sequence[str | None]:
    """Make a column visible: as a whole where nothing is hidden in it, which is the rule."""
    if "".join(filter(None, texts)).isprintable():
        return texts
    return [shown(text) for text in texts]


def shown(text: str | None) -> str | None:
    """Return a text with nothing hidden in it, if there is one."""
    return None if text is None else visible(text)


def failed(error: ErrorInfo) -> str:
    """Return an error as a cell shows it."""
    return visible(f"{error.name}: {error.message}")


#: step_id, name, by and summary of an entry; the first two as recorded.
_Cells = tuple[str | None, str | None, str | None, str | None]


def _step(entry: Step) -> _Cells:
    text = first_line(failed(entry.error)) if entry.error else recorded(entry.result)
    return entry.step_id, entry.name, None, text


def _suspend(entry: Suspend) -> _Cells:
    prompt = first_line(entry.prompt) if entry.prompt else None
    return entry.step_id, entry.event_name, None, prompt


def _resume(entry: Resume) -> _Cells:
    by = shown(entry.by)
    return entry.step_id, entry.event_name, by, recorded(entry.value)


def _intent(entry: Intent) -> _Cells:
    return entry.step_id, entry.name, None, recorded(entry.args)


def _note(entry: Note) -> _Cells:
    return entry.step_id, entry.kind, None, recorded(entry.data)


def _start(entry: Start) -> _Cells:
    return None, entry.workflow, None, recorded(entry.metadata)


def _complete(entry: Complete) -> _Cells:
    return None, None, None, recorded(entry.result)


def _failure(entry: Failure) -> _Cells:
    return entry.step_id, None, None, first_line(failed(entry.error))


def _cancel(entry: Cancel) -> _Cells:
    return None, None, None, first_line(entry.reason) if entry.reason else None


def _foreign(entry: Foreign) -> _Cells:
    return None, None, None, first_line(entry.reason)


_ROWS: dict[type[AnyEntry], Callable[[Any], _Cells]] = {
    Start: _start, Step: _step, Intent: _intent, Note: _note, Suspend: _suspend,
    Resume: _resume, Complete: _complete, Failure: _failure, Cancel: _cancel, Foreign: _foreign,
}  # fmt: skip
_TYPES: dict[type[AnyEntry], str] = {
    struct: str(struct.__struct_config__.tag) for struct in _ROWS if struct is not Foreign
}


def _first_token(usage: Usage | None) -> float | None:
    if usage is None or usage.first_token_ms is None:
        return None
    return usage.first_token_ms / 1000
