"""The browser of runs: what waits for a person first, then what runs, then what went wrong."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from ..clock import SystemClock, stamp
from ..entries import Complete, Failure
from ..errors import KassetteError
from ..model import RunModel, RunsModel
from ..preview import asleep, preview
from ..state import FAILED, INTERRUPTED, READY, RUNNING, SUSPENDED, TERMINAL, RunState
from ..text import first_line, visible
from . import code
from .follow import Follower

Message = dict[str, Any]
_GROUPS = ("waits", "running", "trouble", "stopped", "rest")
#: A listing looks at every file of the folder. It is made at most this often, in seconds, and not
#: more often than that it takes so small a part of the time, unless that would be too seldom.
LISTING, SHARE, SELDOM = 0.25, 0.01, 5.0


class Browser:
    """Answers the page's messages about all runs of a storage. Tests call `handle`.

    Args:
        runs: The runs shown.
        send: Sends a message to the page.
        publish: Sets the summary trait that the page draws.
    """

    def __init__(
        self, runs: RunsModel, send: Callable[[Message], None], publish: Callable[[Message], None]
    ) -> None:
        self.runs = runs
        self._send = send
        self._publish = publish
        self._rows: list[Message] = []
        self._next = 0.0
        self._lock = threading.RLock()
        self._version: object = None
        #: What each run was drawn from, and its row: a run that has not changed is not drawn anew.
        self._drawn: dict[str, tuple[object, Message]] = {}
        self.follower = Follower(self, self.refresh, self._failed, runs.storage)
        self._open: list[str] = []
        self.refresh()

    def version(self, probe: bool) -> object:
        """Return what changes when a run does; see `Followed`."""
        began = time.monotonic()
        if began >= self._next or self._version is None:
            storage = self.runs.storage
            # Whether somebody holds an open run changes without a line.
            held = () if storage.blocking else tuple(map(storage.holder, self._open))
            self._version = list(storage.tokens()), held
            done = time.monotonic()
            self._next = done + min(SELDOM, max(LISTING / 2, (done - began) / SHARE))
        return self._version

    @property
    def over(self) -> bool:
        """Never: there can always be another run."""
        return False

    def left(self) -> None:
        """Nothing is kept for those who look."""

    def stood_still(self, seconds: float) -> None:
        """Nothing is said here about a blocked kernel: the panels do."""

    def refresh(self) -> None:
        """Read all runs and draw them."""
        with self._lock:  # as in Panel
            self._draw()

    def _draw(self) -> None:
        rows: list[Message] = []
        damaged: list[Message] = []
        for run in self.runs.listed():
            try:
                rows.append(self._row(run))
            except KassetteError as problem:
                damaged.append({"run_id": run.run_id, "reason": visible(str(problem))})
        rows = in_order(rows)
        self._open = [made["id"] for made in rows if made["state"] not in TERMINAL]
        storage = self.runs.storage
        self._publish(
            {
                "kind": "browser",
                "place": visible(storage.place),
                "total": len(rows) + len(damaged),
                "damaged": damaged,
                "empty": None if rows or damaged else _empty(storage.url, storage.place),
                "as_of": stamp(SystemClock().now()),
                "code_line": code.opened(storage.url),
            }
        )
        if rows != self._rows:
            self._rows = rows
            self._send(self._all_rows())

    def handle(self, message: Message) -> None:
        """Answer one message of the page."""
        kind, view = message.get("type"), str(message.get("view", ""))
        if kind == "hello":
            self.follower.here(view)
            self.refresh()
            self._send(self._all_rows())
        elif kind == "here":
            self.follower.here(view)
        elif kind == "gone":
            self.follower.gone(view)

    def close(self) -> None:
        """Stop following."""
        self.follower.stop()

    def _row(self, run: RunModel) -> Message:
        folded = run.fold()
        drawn = self._drawn.get(run.run_id)
        if drawn is None or drawn[0] is not folded:  # the same state is given out until it changes
            drawn = self._drawn[run.run_id] = folded, row(run, folded)
        return drawn[1]

    def _failed(self, problem: Exception) -> None:
        text = f"{type(problem).__name__}: {problem}"
        trace = "".join(traceback.format_exception(problem))
        self._send({"type": "failed", "text": text, "traceback": trace, "problem": problem})

    def _all_rows(self) -> Message:
        return {"type": "rows", "from": 0, "rows": self._rows, "total": len(self._rows)}


def in_order(rows: list[Message]) -> list[Message]:
    """Return rows with those first that wait for a person, and in a group the newest."""
    newest = sorted(rows, key=lambda made: str(made["updated"]), reverse=True)
    return sorted(newest, key=lambda made: _GROUPS.index(made["group"]))


def row(run: RunModel, folded: RunState) -> Message:
    """Return one run as a row of the browser."""
    first = folded.opening
    return {
        "id": run.run_id,
        "short": short(run.run_id),
        "label": None if first.label is None else visible(first.label),
        "state": folded.status,
        "workflow": None if first.workflow is None else visible(first.workflow),
        "text": _text(folded),
        "steps": len(folded.steps),
        "cost": folded.own.cost_usd,
        "unpriced": folded.own.unpriced,
        "updated": folded.updated,
        "parent": first.source.run_id if first.source else None,
        "group": _group(folded),
    }


def short(run_id: str) -> str:
    """Return a run id as short as it still says which: a UUID's last six characters."""
    return run_id[-6:] if len(run_id) == 36 and run_id.count("-") == 4 else run_id


def _group(folded: RunState) -> str:
    if folded.status == RUNNING:
        return "running"
    if folded.doubts and not folded.terminal:
        return "trouble"
    if folded.status == SUSPENDED:
        return "waits" if folded.waits else "rest"  # asleep: nobody can do anything
    if folded.status == FAILED:
        return "trouble"
    # A fork that was only made has stopped nowhere: it begins when somebody starts it.
    made = folded.copied and folded.length <= max(1, folded.copied)
    return "stopped" if folded.status in (INTERRUPTED, READY) and not made else "rest"


def _text(folded: RunState) -> str:
    if folded.waits and folded.status == SUSPENDED:
        question = folded.waits[0]
        return first_line(question.prompt or f"waits for {question.event}")
    if isinstance(folded.ending, Failure):
        return first_line(f"{folded.ending.error.name}: {folded.ending.error.message}")
    if folded.doubts and folded.status != RUNNING:
        return first_line(f"{folded.doubts[0].name}: not known whether it happened")
    if isinstance(folded.ending, Complete):
        return preview(folded.ending.result)
    if folded.steps and folded.status == SUSPENDED:
        return f"sleeps {asleep(folded.steps[-1])}"
    if folded.steps:
        return first_line(f"after {folded.steps[-1].step_id}")
    return ""


def _empty(url: str, place: str) -> Message:
    missing = url.startswith("file:") and not os.path.exists(place)
    return {
        "place": visible(place) + (" (there is no such folder yet)" if missing else ""),
        "lines": [
            f"@kassette(storage={url!a})",
            "async def hello(ctx): return await ctx.step('greet', lambda: 'hi')",
            "await hello.start()",
        ],
    }
