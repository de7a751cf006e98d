"""The panel of one run: what it shows, and what its buttons do."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

from msgspec import UNSET

from .. import printed
from ..clock import SystemClock, stamp
from ..definition import live
from ..errors import KassetteError
from ..model import RunModel, RunsModel
from ..text import visible
from . import code, forking
from .actions import act, line
from .aside import Aside
from .changes import Changes
from .detail import part
from .follow import Follower
from .present import nothing
from .rows import Rows, rows_of
from .summary import damaged, summarize

#: The newest rows travel with the summary, so that a panel stands before the rest arrive.
TAIL = 20
#: Characters of what the agent printed that are kept; older ones are dropped, and it is said.
PRINTED = 40_000
_prepared = False
Message = dict[str, Any]
Send = Callable[[Message], None]


class Panel:
    """Answers the page's messages about one run. Needs no browser: tests call `handle`.

    Args:
        run: The run shown.
        send: Sends a message to the page.
        publish: Sets the summary trait that the page draws.
        runs: The runs beside it, where its forks are looked for.
    """

    def __init__(
        self,
        run: RunModel,
        send: Send,
        publish: Callable[[Message], None],
        runs: RunsModel | None = None,
    ) -> None:
        self.run = run
        self._runs = runs
        self._forks: list[Message] = []
        self._send = send
        self._publish = publish
        self._rows: Rows | None = None
        self._sent = 0
        self._status = ""
        self._still = 0.0
        self._printed = ""
        self._unfollow: Callable[[], None] | None = None
        self._beats = 0
        self._current: tuple[tuple[str, str], ...] = ()
        # Whether a page has asked for the rows; before that, messages are lost.
        self._heard = False
        self._lock = threading.RLock()
        self._changes = Changes(run)
        # Comparing files takes another program, and verifying runs the user's code.
        self._comparing, self._verifying = Aside(self._failed), Aside(self._failed)
        self.follower = Follower(self, self.refresh, self._failed, run.storage)
        self.refresh()

    def version(self, probe: bool) -> object:
        """Return what changes when the run does; see `Followed`."""
        if probe:
            self._status = self.run.fold().status
        session = self.run.session
        here = session is not None and not session.done
        if here:
            self._beat()
        self._look_on(here)
        return self.run.journal.token, self._status, here, self._current

    @property
    def over(self) -> bool:
        """Whether the run has ended: nothing can be added to it."""
        try:
            session = self.run.session
            return self.run.fold().terminal and (session is None or session.done)
        except KassetteError:
            return False

    def left(self) -> None:
        """Let what the run prints go where it always went."""
        stop, self._unfollow = self._unfollow, None
        if stop is not None:
            stop()

    def stood_still(self, seconds: float) -> None:
        """Say that a cell blocked the kernel, and a run of it with it."""
        session = self.run.session
        if session is not None and not session.done:
            self._still += seconds
            self.refresh()

    def printed(self, text: str) -> None:
        """Show what the agent printed in the background; from any thread."""
        with self._lock:
            self._printed = (self._printed + text)[-PRINTED:]
            if self._heard:
                self._send({"type": "printed", "text": visible(text)})

    def refresh(self) -> None:
        """Draw the run as it is now; the page gets only the rows that changed."""
        # The kernel's loop follows the journal while a click may be handled in its own thread.
        with self._lock:
            self._draw()

    def _draw(self) -> None:
        rows: Rows | None = None
        try:
            folded = self.run.fold()
            with self.run.still(folded):
                rows = rows_of(self.run.journal, folded)
                summary = summarize(self.run, folded, rows, self._forks)
        except KassetteError as problem:
            summary = damaged(self.run, problem)
        else:
            self._status = folded.status
            summary["stood_still"] = round(self._still)
            summary["current"] = [{"id": visible(n), "since": at} for n, at in self._current]
            summary["tail"] = [] if self._heard else rows.shown(max(len(rows) - TAIL, 0))
        same = 0
        if rows is not None and rows is self._rows:
            same = rows.since(self._sent)
        changed = rows is not self._rows or (rows is not None and same < len(rows))
        self._rows = rows
        self._sent = rows.revision if rows is not None else 0
        self._publish(summary)
        if changed and self._heard:
            self._send(self._tail(same))

    def handle(self, message: Message) -> None:
        """Answer one message of the page."""
        kind, view = message.get("type"), str(message.get("view", ""))
        if kind in ("hello", "here") and self._unfollow is None:
            self._listen()
        if kind == "hello":
            self.follower.here(view)
            self._find_forks()
            with self._lock:
                self._heard = False
                self.refresh()
                self._heard = True
                self._send(self._tail(0))
                if self._printed:
                    whole = {"type": "printed", "text": visible(self._printed), "whole": True}
                    self._send(whole)
            self._prepare()
        elif kind == "here":
            self.follower.here(view)
            if not self.run.storage.blocking:  # code elsewhere may have forked the run
                known = self._forks
                self._find_forks()
                if self._forks != known:
                    self.refresh()
        elif kind == "gone":
            self.follower.gone(view)
        elif kind == "file" or (kind in ("value", "more") and message.get("part") == "files"):
            self._send({"type": "working", "offset": message.get("offset"), "part": "files"})
            answer = self._changes.asked(message)
            self._comparing.do(lambda: self._send(answer()))
        elif kind in ("value", "more"):
            self._send(self._answer(message, whole=kind == "more"))
        elif kind == "search":
            self._send(self._search(str(message.get("text", ""))))
        elif kind == "line":
            self._send({"type": "line", "n": message.get("n"), "text": line(self.run, message)})
        elif kind == "act" and message.get("verb") == "verify":
            self._verifying.do(lambda: act(self.run, message, self._send))
        elif kind == "act":
            act(self.run, message, self._send)
            self._find_forks()
            self.refresh()
            self.follower.here(view)

    def close(self) -> None:
        """Stop following."""
        self.follower.stop()
        self.left()
        self._comparing.drop()
        self._verifying.drop()

    def _listen(self) -> None:
        """Take what the run prints in the background, and what it has printed for other views."""
        place = self.run.storage.locate(self.run.run_id)
        with self._lock:
            self._printed = "".join(f"{line}\n" for line in printed.lines(place)) or self._printed
            self._unfollow = printed.follow(
                place, lambda lines: self.printed("".join(f"{line}\n" for line in lines))
            )

    def _prepare(self) -> None:
        """Load what checks an answer while the question is read: a click should not wait for it."""
        global _prepared
        try:
            waits = self.run.fold().waits
        except KassetteError:
            return
        if not _prepared and any(pending.schema is not UNSET for pending in waits):
            _prepared = True
            threading.Thread(target=lambda: import_module("jsonschema"), daemon=True).start()

    def _look_on(self, here: bool) -> None:
        """Take note of what a session of this process calls now, and since when it is seen."""
        found = live(self.run.storage.locate(self.run.run_id)) if here else None
        names = found[0].in_flight if found is not None else ()
        known = dict(self._current)
        now = stamp(SystemClock().now())
        self._current = tuple((name, known.get(name, now)) for name in names)

    def _find_forks(self) -> None:
        if self._runs is not None:
            self._forks = [
                {"run_id": run.run_id, "label": None if run.label is None else visible(run.label)}
                for run in self._runs.forks_of(self.run.run_id)
            ]

    def _beat(self) -> None:
        """Tell the page once a second that a run of this kernel is not blocked by a cell."""
        self._beats += 1
        if self._heard and self._beats % 4 == 0:
            self._send({"type": "beat"})

    def _failed(self, problem: BaseException) -> None:
        self._send(
            {
                "type": "failed",
                "text": f"{type(problem).__name__}: {problem}",
                "traceback": "".join(traceback.format_exception(problem)),
                "problem": problem,
            }
        )

    def _tail(self, start: int) -> Message:
        rows = self._rows.shown(start) if self._rows is not None else []
        total = len(self._rows) if self._rows is not None else 0
        # A row changes in place while the message waits to be sent.
        return {"type": "rows", "from": start, "rows": [dict(r) for r in rows], "total": total}

    def _answer(self, message: Message, whole: bool) -> Message:
        offset, name = message.get("offset"), message.get("part")
        reply: Message = {"type": "value", "offset": offset, "part": name}
        try:
            journal, folded = self.run.journal, self.run.fold()
        except KassetteError as problem:
            return {**reply, **nothing(visible(str(problem)))}
        reply.update(part(journal, folded, offset, name, whole))
        if name == "result" and isinstance(offset, int) and 0 <= offset < len(journal.entries):
            target = code.run(self.run.storage.url, self.run.run_id)
            reply.update(forking.offers(journal.entries, folded, offset, target))
        return reply

    def _search(self, text: str) -> Message:
        wanted = text.lower().encode()
        if self._rows is None or not wanted:
            return {"type": "found", "text": text, "offsets": []}
        journal, found = self.run.journal, []
        for row in self._rows.bare:
            lines = [journal.line(row["o"]), *([journal.line(row["a"])] if "a" in row else [])]
            if any(wanted in line.lower() for line in lines):
                found.append(row["o"])
        return {"type": "found", "text": text, "offsets": found}
