"""A journal's entries as rows of the timeline and of the step list."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..clock import instant
from ..entries import (
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
)
from ..journal import Journal
from ..preview import decided, outcome, preview
from ..state import Events, RunState
from ..text import first_line, visible

Row = dict[str, Any]
MAIN = "main"


Text = Callable[[], str]
#: Journals whose rows are kept: those that are on show now, as a rule.
KEPT = 8
_built: dict[int, tuple[Journal, Rows]] = {}


class Rows:
    """The rows of one run, built once for a journal's state.

    The one-line previews cost most and are made for the rows that are asked for.

    Attributes:
        bare: One dict a row, as the page expects them, but for the preview.
        lanes: The branches, the workflow itself first.
    """

    def __init__(self, journal: Journal, folded: RunState) -> None:
        self.bare: list[Row] = []
        self.lanes: list[str] = [MAIN]
        self._texts: list[Text | None] = []
        self._lanes = {MAIN: 0}
        self._zero = instant(folded.started).timestamp()
        self._waiting = {question.step_id for question in folded.pending}
        self._events = Events()
        self._asked: dict[str, int] = {}
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
                    text = partial(preview, entry.args)
                    self._row(entry, entry.step_id, "intent", text)["x"] = "?"
            elif isinstance(entry, Note):
                self._row(entry, entry.step_id or "", "note", partial(_noted, entry))
            elif isinstance(entry, Foreign):
                self._row(entry, entry.type, "other", partial(first_line, entry.reason))
            elif not isinstance(entry, Start):
                self._ending(entry)

    def __len__(self) -> int:
        return len(self.bare)

    def shown(self, start: int = 0, stop: int | None = None) -> list[Row]:
        """Return rows with their previews."""
        for number in range(*slice(start, stop).indices(len(self.bare))):
            text = self._texts[number]
            if text is not None:
                self.bare[number]["p"] = text()
                self._texts[number] = None
        return self.bare[start:stop]

    def _step(self, entry: Step) -> None:
        row = self._row(entry, entry.step_id, entry.kind or "step", partial(outcome, entry))
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
        self._asked[step_id] = len(self.bare)
        text = partial(first_line, entry.prompt or entry.event_name)
        row = self._row(entry, step_id, "suspend", text)
        row["x"] = "w" if step_id in self._waiting else ""
        row["t0"] = self._since(entry.timestamp)

    def _resume(self, entry: Resume) -> None:
        number = self._asked.get(self._events.resumed(entry))
        if number is None or self.bare[number]["x"] == "a":
            return
        row = self.bare[number]
        row["x"] = "a"
        self._texts[number] = partial(_answered, entry)
        row["t1"] = self._since(entry.timestamp)
        row["d"] = row["t1"] - row["t0"]

    def _ending(self, entry: Complete | Failure | Cancel) -> None:
        if isinstance(entry, Complete):
            self._row(entry, "result", "complete", partial(preview, entry.result))
        elif isinstance(entry, Failure):
            self._row(entry, "error", "error", _failed(entry.error))["x"] = "e"
        else:
            self._row(entry, "cancelled", "cancel", partial(first_line, entry.reason or ""))

    def _row(self, entry: AnyEntry, step_id: str, kind: str, text: Text) -> Row:
        branch = step_id.rpartition("/")[0] or MAIN
        lane = self._lanes.get(branch)
        if lane is None:
            lane = self._lanes[branch] = len(self.lanes)
            self.lanes.append(branch)
        row: Row = {
            "o": entry.offset, "id": visible(step_id), "kind": kind, "lane": lane,
            "t0": None, "t1": None, "s": entry.session, "p": "", "d": None, "c": None, "x": "",
        }  # fmt: skip
        self.bare.append(row)
        self._texts.append(text)
        return row

    def _since(self, timestamp: str) -> int:
        return round((instant(timestamp).timestamp() - self._zero) * 1000)


def rows_of(journal: Journal, folded: RunState) -> Rows:
    """Return the rows of a journal as it is, built once for all that show it."""
    known = _built.get(id(journal))
    if known is None or known[0] is not journal:
        if len(_built) >= KEPT:
            _built.pop(next(iter(_built)))
        known = _built[id(journal)] = (journal, Rows(journal, folded))
    return known[1]


def _failed(error: ErrorInfo) -> Text:
    return partial(first_line, f"{error.name}: {error.message}")


def _noted(entry: Note) -> str:
    return first_line(f"{entry.kind} {preview(entry.data)}")


def _answered(entry: Resume) -> str:
    who = f" · {entry.by}" if entry.by else ""
    return first_line(f"{decided(entry.value)}{who}")
