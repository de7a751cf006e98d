"""A journal's entries as rows of the timeline and of the step list."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .. import values
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
from ..errors import JournalValueError
from ..journal import Journal
from ..preview import asleep, decided, outcome, preview
from ..state import RUNNING, Events, RunState
from ..text import first_line, visible
from .conversation import gist

Row = dict[str, Any]
Text = Callable[[], str]
MAIN = "main"
#: Journals whose rows are kept: those that are on show now, as a rule.
KEPT = 8
#: Changes of which it is known where they began; whoever has seen less gets all rows.
REMEMBERED = 100
_built: dict[int, Rows] = {}


class Rows:
    """The rows of one run; they grow with its journal, entry by entry.

    The one-line previews cost most and are made for the rows that are asked for.

    Attributes:
        bare: One dict a row, as the page expects them, but for the preview.
        lanes: The branches, the workflow itself first, whether or not it recorded anything.
        revision: Rises with every change of the rows.
    """

    def __init__(self) -> None:
        self.revision = 0
        self._begun: list[int] = []
        self._clear()

    def _clear(self) -> None:
        self.bare: list[Row] = []
        self.lanes = [MAIN]
        self._texts: list[Text | None] = []
        self._lanes = {MAIN: 0}
        self._zero = 0.0
        self._events = Events()
        #: Row numbers of questions and of tools that act, by step id, until they are over.
        self._asked: dict[str, int] = {}
        self._acting: dict[str, int] = {}
        self._sleeps: dict[str, int] = {}
        self._failed: set[str] = set()
        self._taken: list[AnyEntry] = []

    def __len__(self) -> int:
        return len(self.bare)

    def follow(self, journal: Journal, folded: RunState) -> None:
        """Take the entries that are new, and what the others mean by now."""
        entries = journal.entries
        known = len(self._taken)
        if known > len(entries) or (known and self._taken[-1] is not entries[known - 1]):
            self._clear()  # another file under the same name
            self._begun = []
            known = 0
        if not known:
            self._zero = instant(folded.started).timestamp()
        first = len(self.bare)
        for entry in entries[known:]:
            first = min(first, self._take(entry))
        self._taken = entries
        first = min(first, self._mark(folded))
        if first < len(self.bare):
            self.revision += 1
            self._begun = [*self._begun[1 - REMEMBERED :], first]

    def since(self, revision: int) -> int:
        """Return the number of the first row that may have changed after a revision."""
        missed = self.revision - revision
        if missed <= 0:
            return len(self.bare)
        if missed > len(self._begun):
            return 0
        return min(min(self._begun[-missed:]), len(self.bare))

    def shown(self, start: int = 0, stop: int | None = None) -> list[Row]:
        """Return rows with their previews."""
        for number in range(*slice(start, stop).indices(len(self.bare))):
            text = self._texts[number]
            if text is not None:
                self.bare[number]["p"] = text()
                self._texts[number] = None
        return self.bare[start:stop]

    def _take(self, entry: AnyEntry) -> int:
        """Add or change what an entry says; return the number of the first row that it touches."""
        count = len(self.bare)
        if isinstance(entry, Step):
            return self._step(entry)
        if isinstance(entry, Suspend):
            self._suspend(entry)
        elif isinstance(entry, Resume):
            return self._resume(entry)
        elif isinstance(entry, Intent):
            self._intent(entry)
        elif isinstance(entry, Note):
            self._row(entry, entry.step_id or "", "note", partial(_noted, entry))
        elif isinstance(entry, Foreign):
            self._row(entry, entry.type, "other", partial(first_line, entry.reason))
        elif not isinstance(entry, Start):
            self._ending(entry)
        return count

    def _mark(self, folded: RunState) -> int:
        """Mark what waits, what acts now and what is in doubt; return the first row changed."""
        waiting = {pending.step_id for pending in folded.pending}
        doubts = set() if folded.status == RUNNING else {i.step_id for i in folded.doubts}
        first = len(self.bare)
        for numbers, marked, flag in (
            (self._asked, waiting, "w"),
            (self._sleeps, waiting, "w"),
            (self._acting, doubts, "?"),
        ):
            for step_id, number in numbers.items():
                row = self.bare[number]
                flags = flag if step_id in marked else ""
                if row["x"] != flags:
                    row["x"] = flags
                    first = min(first, number)
        return first

    def _step(self, entry: Step) -> int:
        at = len(self.bare)
        if self._sleeps:
            self._awake(entry.step_id, self._since(entry.started_at or entry.timestamp))
        acting = self._acting.pop(entry.step_id, None)
        if acting is not None:
            self._drop(acting)
            at = acting
        if entry.error is not None:
            text = _failed(entry.error)
        else:
            text = partial(_SAID.get(entry.kind or "", _result), entry)
        row = self._row(entry, entry.step_id, entry.kind or "step", text)
        row["x"] = ("e" if entry.error else "") + ("v" if entry.overridden else "")
        if entry.error is not None:
            self._failed.add(entry.step_id)
        row["c"] = entry.usage.cost_usd if entry.usage else None
        if entry.kind == "sleep":
            row["t0"] = self._since(entry.timestamp)
            self._sleeps[entry.step_id] = len(self.bare) - 1
        # An overridden result was not computed: how long the one it replaces took is no news of it.
        elif entry.started_at is not None and not entry.overridden:
            try:
                row["t0"] = self._since(entry.started_at)
            except ValueError:
                return at
            row["t1"] = self._since(entry.timestamp)
            row["d"] = row["t1"] - row["t0"]
        return at

    def _awake(self, step_id: str, at: int) -> None:
        """End the sleeps of a step's branch: it has gone on."""
        lane = step_id.rpartition("/")[0]
        for sleeper, number in list(self._sleeps.items()):
            if sleeper != step_id and sleeper.rpartition("/")[0] == lane:
                row = self.bare[number]
                row["x"], row["t1"], row["d"] = "", at, at - row["t0"]
                del self._sleeps[sleeper]

    def _suspend(self, entry: Suspend) -> None:
        step_id = self._events.suspended(entry)
        if step_id in self._asked or step_id in self._sleeps or step_id in self._acting:
            return  # asked again, a long sleep, or a tool in doubt: the row is there
        self._asked[step_id] = len(self.bare)
        text = partial(first_line, entry.prompt or entry.event_name)
        self._row(entry, step_id, "suspend", text)["t0"] = self._since(entry.timestamp)

    def _resume(self, entry: Resume) -> int:
        step_id = self._events.resumed(entry)
        number = self._asked.pop(step_id, None)
        if number is None:
            return len(self.bare)
        row = self.bare[number]
        row["x"] = "a"
        row["a"] = entry.offset
        self._texts[number] = partial(_answered, entry)
        row["t1"] = self._since(entry.timestamp)
        row["d"] = row["t1"] - row["t0"]
        return number

    def _intent(self, entry: Intent) -> None:
        old = self._acting.pop(entry.step_id, None)
        if old is not None:
            self._drop(old)
        self._acting[entry.step_id] = len(self.bare)
        row = self._row(entry, entry.step_id, "intent", partial(preview, entry.args))
        row["t0"] = self._since(entry.timestamp)

    def _ending(self, entry: Complete | Failure | Cancel) -> None:
        self._awake("", self._since(entry.timestamp))
        if isinstance(entry, Complete):
            self._row(entry, "result", "complete", partial(preview, entry.result))
        elif isinstance(entry, Failure):
            # The failing step's row says what was raised.
            at = entry.step_id if entry.step_id in self._failed else None
            text = partial(visible, f"at {at}") if at else _failed(entry.error)
            self._row(entry, "error", "error", text)["x"] = "e"
        else:
            self._row(entry, "cancelled", "cancel", partial(first_line, entry.reason or ""))

    def _row(self, entry: AnyEntry, step_id: str, kind: str, text: Text) -> Row:
        row: Row = {
            "o": entry.offset, "id": visible(step_id), "kind": kind,
            "lane": self._lane(step_id.rpartition("/")[0] or MAIN),
            "t0": None, "t1": None, "s": entry.session, "p": "", "d": None, "c": None, "x": "",
        }  # fmt: skip
        self.bare.append(row)
        self._texts.append(text)
        return row

    def _lane(self, branch: str) -> int:
        lane = self._lanes.get(branch)
        if lane is None:
            lane = self._lanes[branch] = len(self.lanes)
            self.lanes.append(branch)
        return lane

    def _drop(self, number: int) -> None:
        del self.bare[number], self._texts[number]
        for numbers in (self._asked, self._acting, self._sleeps):
            for step_id, other in numbers.items():
                if other > number:
                    numbers[step_id] = other - 1

    def _since(self, timestamp: str) -> int:
        return round((instant(timestamp).timestamp() - self._zero) * 1000)


def rows_of(journal: Journal, folded: RunState) -> Rows:
    """Return the rows of a journal as it is, built once for all that show it."""
    opening = journal.entries[0]
    rows = _built.pop(id(opening), None)
    if rows is None or rows._taken[0] is not opening:
        rows = Rows()
        if len(_built) >= KEPT:
            _built.pop(next(iter(_built)))
    rows.follow(journal, folded)
    _built[id(opening)] = rows
    return rows


def _failed(error: ErrorInfo) -> Text:
    return partial(first_line, f"{error.name}: {error.message}")


def _said(entry: Step) -> str:
    told = gist(entry)
    return outcome(entry) if told is None else first_line(told)


def _result(entry: Step) -> str:
    return preview(entry.result)


#: What says in a line what a step came to, by its kind.
_SAID = {"llm": _said, "sleep": asleep}


def _noted(entry: Note) -> str:
    try:
        told = values.decode(entry.data)
    except JournalValueError:
        told = None
    if entry.kind == "workspace" and isinstance(told, dict):
        # Not where the files are: a twin carries no path of a machine.
        short = {name: str(told[name])[:12] for name in ("commit", "replaced") if name in told}
        rest = {name: told[name] for name in ("left_out", "error") if name in told}
        return first_line(f"files kept {preview(values.encode({**short, **rest}))}")
    if not isinstance(told, dict) or "attempt" not in told:
        return first_line(f"{entry.kind} {preview(entry.data)}")
    parts = [f"attempt {told['attempt']}", *(told.get(n) for n in ("error", "reason", "message"))]
    words = " · ".join(str(part) for part in parts if part)
    return first_line(words if entry.kind == "attempt" else f"{entry.kind} {words}")


def _answered(entry: Resume) -> str:
    who = f" · {entry.by}" if entry.by else ""
    return first_line(f"{decided(entry.value)}{who}")
