"""RunsModel, steps and entries as pandas data frames.

Times are ``datetime64[ms, UTC]``, durations ``Float64`` seconds, money ``Float64`` US dollars,
counts ``Int64``; what was not recorded is missing (``<NA>`` or ``NaT``), never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from .clock import instant
from .diff import Row
from .entries import Cancel, Complete, Failure, Intent, Note, Resume, Step, Suspend, kind_of
from .errors import KassetteError
from .model import RunModel
from .preview import preview
from .state import RunState
from .text import first_line

_INSTANT = "datetime64[ms, UTC]"
_TEXT = "string"

_RUNS = {
    "run_id": _TEXT, "label": _TEXT, "state": _TEXT, "workflow": _TEXT, "version": _TEXT,
    "waiting_on": _TEXT, "steps": "Int64", "tokens": "Int64", "cost_usd": "Float64",
    "unpriced": "Int64", "started": _INSTANT, "updated": _INSTANT, "source": _TEXT,
    "source_offset": "Int64", "error": _TEXT, "damage": _TEXT,
}  # fmt: skip
_STEPS = {
    "run_id": _TEXT, "step_id": _TEXT, "name": _TEXT, "kind": _TEXT, "session": "Int64",
    "offset": "Int64", "started": _INSTANT, "finished": _INSTANT, "seconds": "Float64",
    "model": _TEXT, "input_tokens": "Int64", "output_tokens": "Int64", "cost_usd": "Float64",
    "error": _TEXT, "overridden": "boolean", "copied": "boolean", "bytes": "Int64",
    "result": _TEXT,
}  # fmt: skip
_ENTRIES = {
    "run_id": _TEXT, "offset": "Int64", "session": "Int64", "type": _TEXT,
    "timestamp": _INSTANT, "step_id": _TEXT, "name": _TEXT, "by": _TEXT, "bytes": "Int64",
    "summary": _TEXT,
}  # fmt: skip
_COMPARISON = {
    "row": "Int64", "name": _TEXT, "run_id": _TEXT, "step_id": _TEXT, "status": _TEXT,
    "letter": _TEXT, "seconds": "Float64", "cost_usd": "Float64", "result": _TEXT,
}  # fmt: skip


def runs_frame(runs: Iterable[RunModel]) -> pd.DataFrame:
    """Return one row a run.

    Returns:
        Columns ``run_id label state workflow version waiting_on`` (string; ``waiting_on`` holds
        step ids joined by a comma), ``steps tokens unpriced source_offset`` (Int64),
        ``cost_usd`` (Float64, this run's own spend), ``started updated`` (datetime64[ms, UTC]),
        ``source error damage`` (string). A damaged journal has only its id, the state
        ``damaged`` and the reason in ``damage``.
    """
    rows: list[dict[str, Any]] = []
    for run in runs:
        try:
            folded = run.fold()
        except KassetteError as problem:
            rows.append({"run_id": run.run_id, "state": "damaged", "damage": str(problem)})
            continue
        first = folded.opening
        ending = folded.ending
        rows.append(
            {
                "run_id": run.run_id,
                "label": first.label,
                "state": folded.status,
                "workflow": first.workflow,
                "version": (folded.latest or first).version,
                "waiting_on": ", ".join(q.step_id for q in folded.waits) or None,
                "steps": len(folded.steps),
                "tokens": folded.own.tokens,
                "cost_usd": folded.own.cost_usd,
                "unpriced": folded.own.unpriced,
                "started": _began(folded),
                "updated": instant(folded.updated),
                "source": first.source.run_id if first.source else None,
                "source_offset": first.source.from_offset if first.source else None,
                "error": f"{ending.error.name}: {ending.error.message}"
                if isinstance(ending, Failure)
                else None,
            }
        )
    return _frame(rows, _RUNS)


def _began(folded: RunState) -> Any:
    """Return when the run itself began: a fork's line 0 is its source's."""
    own = (s.at for s in folded.sessions if s.offset >= folded.copied)
    at = next(own, None)
    return instant(at) if at is not None else None


def steps_frame(runs: Iterable[RunModel]) -> pd.DataFrame:
    """Return one row a recorded step, in journal order.

    Returns:
        Columns ``run_id step_id name kind`` (string), ``session offset`` (Int64), ``started
        finished`` (datetime64[ms, UTC]; ``started`` is missing where it was not recorded,
        or the result is not the step's own), ``seconds`` (Float64), ``model`` (string),
        ``input_tokens output_tokens`` (Int64), ``cost_usd`` (Float64), ``error`` (string),
        ``overridden copied`` (boolean), ``bytes`` (Int64, of the result's JSON), ``result``
        (string, its first line).
    """
    rows: list[dict[str, Any]] = []
    for run, entry in _entries(runs):
        if not isinstance(entry, Step):
            continue
        source = run.journal.opening.source
        finished = instant(entry.timestamp)
        started = None if entry.overridden else _maybe(entry.started_at)
        usage = entry.usage
        rows.append(
            {
                "run_id": run.run_id,
                "step_id": entry.step_id,
                "name": entry.name,
                "kind": entry.kind or "step",
                "session": entry.session,
                "offset": entry.offset,
                "started": started,
                "finished": finished,
                "seconds": (finished - started).total_seconds() if started else None,
                "model": usage.model if usage else None,
                "input_tokens": usage.input_tokens if usage else None,
                "output_tokens": usage.output_tokens if usage else None,
                "cost_usd": usage.cost_usd if usage else None,
                "error": f"{entry.error.name}: {entry.error.message}" if entry.error else None,
                "overridden": entry.overridden,
                "copied": source is not None and entry.offset < source.from_offset,
                "bytes": len(bytes(entry.result)) if entry.result else None,
                "result": preview(entry.result),
            }
        )
    return _frame(rows, _STEPS)


def entries_frame(runs: Iterable[RunModel]) -> pd.DataFrame:
    """Return one row a journal line.

    Returns:
        Columns ``run_id`` (string), ``offset session`` (Int64), ``type`` (string), ``timestamp``
        (datetime64[ms, UTC]), ``step_id name by`` (string), ``bytes`` (Int64, of the line),
        ``summary`` (string).
    """
    rows: list[dict[str, Any]] = []
    for run, entry in _entries(runs):
        rows.append(
            {
                "run_id": run.run_id,
                "offset": entry.offset,
                "session": entry.session,
                "type": kind_of(entry),
                "timestamp": instant(entry.timestamp),
                "step_id": getattr(entry, "step_id", None),
                "name": getattr(entry, "name", None) or getattr(entry, "event_name", None),
                "by": getattr(entry, "by", None),
                "bytes": len(run.journal.line(entry.offset)),
                "summary": _summary(entry),
            }
        )
    return _frame(rows, _ENTRIES)


def comparison_frame(runs: Sequence[RunModel], rows: Sequence[Row], base: int) -> pd.DataFrame:
    """Return one row for each run and aligned step; see `Comparison.frame`."""
    made: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        for column, (run, step) in enumerate(zip(runs, row.cells, strict=True)):
            started = _maybe(step.started_at) if step and not step.overridden else None
            made.append(
                {
                    "row": number,
                    "name": row.name,
                    "run_id": run.run_id,
                    "step_id": step.step_id if step else None,
                    "status": _status(row, column, base),
                    "letter": row.letters[column],
                    "seconds": (instant(step.timestamp) - started).total_seconds()
                    if step and started
                    else None,
                    "cost_usd": step.usage.cost_usd if step and step.usage else None,
                    "result": _summary(step) if step else None,
                }
            )
    return _frame(made, _COMPARISON)


def _status(row: Row, column: int, base: int) -> str:
    step = row.cells[column]
    if step is None:
        return "missing"
    if step.error is not None:
        return "failed"
    if row.cells[base] is None:
        return "inserted"
    return "same" if row.letters[column] == row.letters[base] else "changed"


def _entries(runs: Iterable[RunModel]) -> Iterable[tuple[RunModel, Any]]:
    for run in runs:
        try:
            lines = run.journal.entries
        except KassetteError:
            continue  # runs_frame lists the damaged ones with their reason
        for entry in lines:
            yield run, entry


def _summary(entry: Any) -> str:
    if isinstance(entry, Step):
        if entry.error:
            return first_line(f"{entry.error.name}: {entry.error.message}")
        return preview(entry.result)
    if isinstance(entry, Suspend):
        return first_line(entry.prompt or "")
    if isinstance(entry, Resume):
        return preview(entry.value)
    if isinstance(entry, Complete):
        return preview(entry.result)
    if isinstance(entry, Failure):
        return first_line(f"{entry.error.name}: {entry.error.message}")
    if isinstance(entry, Cancel):
        return first_line(entry.reason or "")
    if isinstance(entry, Intent):
        return preview(entry.args)
    if isinstance(entry, Note):
        return f"{entry.kind} {preview(entry.data)}"
    return ""


def _maybe(text: str | None) -> Any:
    try:
        return instant(text) if text else None
    except ValueError:
        return None


def _frame(rows: list[dict[str, Any]], columns: dict[str, str]) -> pd.DataFrame:
    data = {}
    for name, dtype in columns.items():
        column = [row.get(name) for row in rows]
        if dtype == _INSTANT:
            data[name] = pd.Series(pd.DatetimeIndex(column, tz="UTC").as_unit("ms"))
        else:
            data[name] = pd.Series(column, dtype=dtype)
    return pd.DataFrame(data)
