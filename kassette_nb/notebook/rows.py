"""A journal's entries as rows of the timeline and of the step list."""

from __future__ import annotations

from typing import Any

from ..clock import instant
from ..entries import (
    AnyEntry,
    Cancel,
    Complete,
    Failure,
    Foreign,
    Intent,
    Note,
    Resume,
    Start,
    Step,
    Suspend,
)
from ..journal import Journal
from ..preview import decided, preview
from ..state import Events, RunState
from ..text import first_line, visible

Row = dict[str, Any]
MAIN = "main"


class Rows:
    """The rows of one run, built once for a journal's state.

    Attributes:
        rows: One dict a row, as the page expects them.
        lanes: The branches, the workflow itself first.
    """

    def __init__(self, journal: Journal, folded: RunState) -> None:
        self.rows: list[Row] = []
        self.lanes: list[str] = [MAIN]
        self._zero = instant(folded.started)
        self._folded = folded
        self._waiting = {question.step_id for question in folded.pending}
        self._events = Events()
        self._asked: dict[str, Row] = {}
        doubts = {intent.step_id for intent in folded.doubts}
        for entry in journal.entries:
            if isinstance(entry, Step):
                self._step(entry)
            elif isinstance(entry, Suspend):
                self._suspend(entry)
            elif isinstance(entry, Resume):
                self._resume(entry)
            elif isinstance(entry, Intent):
                if entry.step_id in doubts:
                    row = self._row(entry, entry.step_id, "intent", preview(entry.args))
                    row["x"] = "?"
            elif isinstance(entry, Note):
                text = f"{entry.kind} {preview(entry.data)}"
                self._row(entry, entry.step_id or "", "note", first_line(text))
            elif isinstance(entry, Foreign):
                self._row(entry, entry.type, "other", first_line(entry.reason))
            elif not isinstance(entry, Start):
                self._ending(entry)

    def _step(self, entry: Step) -> None:
        if entry.error is not None:
            text = first_line(f"{entry.error.name}: {entry.error.message}")
        else:
            text = preview(entry.result)
        row = self._row(entry, entry.step_id, entry.kind or "step", text)
        row["x"] = ("e" if entry.error else "") + ("v" if entry.overridden else "")
        row["c"] = entry.usage.cost_usd if entry.usage else None
        # An overridden result was not computed: how long the one it replaces took is no news of it.
        if entry.started_at is not None and not entry.overridden:
            try:
                row["t0"] = self._since(entry.started_at)
            except ValueError:
                return
            row["t1"] = self._since(entry.timestamp)
            row["d"] = row["t1"] - row["t0"]

    def _suspend(self, entry: Suspend) -> None:
        step_id = self._events.suspended(entry)
        if step_id in self._asked:
            return
        row = self._row(entry, step_id, "suspend", first_line(entry.prompt or entry.event_name))
        row["x"] = "w" if step_id in self._waiting else ""
        row["t0"] = self._since(entry.timestamp)
        self._asked[step_id] = row

    def _resume(self, entry: Resume) -> None:
        row = self._asked.get(self._events.resumed(entry))
        if row is not None and "a" not in row["x"]:
            who = f" · {entry.by}" if entry.by else ""
            row["x"] = "a"
            row["p"] = first_line(f"{decided(entry.value)}{who}")
            row["t1"] = self._since(entry.timestamp)
            row["d"] = row["t1"] - row["t0"]

    def _ending(self, entry: Complete | Failure | Cancel) -> None:
        if isinstance(entry, Complete):
            self._row(entry, "result", "complete", preview(entry.result))
        elif isinstance(entry, Failure):
            text = first_line(f"{entry.error.name}: {entry.error.message}")
            self._row(entry, "error", "error", text)["x"] = "e"
        else:
            self._row(entry, "cancelled", "cancel", first_line(entry.reason or ""))

    def _row(self, entry: AnyEntry, step_id: str, kind: str, text: str) -> Row:
        branch = step_id.rpartition("/")[0] or MAIN
        if branch not in self.lanes:
            self.lanes.append(branch)
        row: Row = {
            "o": entry.offset, "id": visible(step_id), "kind": kind,
            "lane": self.lanes.index(branch), "t0": None, "t1": None, "s": entry.session,
            "p": text, "d": None, "c": None, "x": "",
        }  # fmt: skip
        self.rows.append(row)
        return row

    def _since(self, timestamp: str) -> int:
        return round((instant(timestamp) - self._zero).total_seconds() * 1000)
