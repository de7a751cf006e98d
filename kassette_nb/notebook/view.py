"""The one widget: a thin pipe between the page and the handlers of what is shown."""

from __future__ import annotations

import contextvars
import os
import re
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import anywidget
import traitlets

from .. import background
from ..errors import KassetteError
from ..model import RunModel, RunsModel
from .browser import Browser
from .compare import Comparison
from .matrix import ComparePanel
from .panel import Panel

Message = dict[str, Any]
_STATIC = Path(__file__).parent / "static"
#: Joined in this order: the page loads one module from a Blob, where imports cannot be resolved.
_FILES = (
    "dom.js",
    "marks.js",
    "act.js",
    "value.js",
    "bodies.js",
    "files.js",
    "draw.js",
    "timeline.js",
    "list.js",
    "inspector.js",
    "form.js",
    "question.js",
    "doubt.js",
    "head.js",
    "panel.js",
    "browser.js",
    "attempts.js",
    "compare.js",
    "main.js",
)


_COMMENT = re.compile(r"//|/\*\*.*\*/$")


def module() -> str:
    """Return the page's one ES module."""
    source = "\n".join((_STATIC / name).read_text("utf-8") for name in _FILES)
    # It travels with every view, so comments and indentation stay here.
    lines = (line.strip() for line in source.split("\n"))
    return "\n".join(line for line in lines if line and not _COMMENT.match(line))


class Handler(Protocol):
    """What is shown in a channel of the view."""

    def handle(self, message: Message) -> None: ...

    def close(self) -> None: ...


Publish = Callable[[Message], None]
Make = Callable[[Publish, Publish], Handler]


class View(anywidget.AnyWidget):
    """A browser of runs, a panel of one run, or a comparison.

    ``main`` is the summary of what is shown, ``detail`` of what is opened below it.
    ``last_error`` keeps the newest exception of a callback, which Jupyter would lose.
    """

    _esm = module()
    _css = (_STATIC / "view.css").read_text("utf-8")

    main = traitlets.Dict({}).tag(sync=True)
    detail = traitlets.Dict(None, allow_none=True).tag(sync=True)
    alive = traitlets.Int(0).tag(sync=True)

    def __init__(self, make: Make, runs: RunsModel | None = None) -> None:
        super().__init__(alive=os.getpid())
        background.adopt()
        # Clicks may come in a thread of their own while the kernel's loop follows the journal.
        self._lock = threading.RLock()
        self.last_error: BaseException | None = None
        self._runs = runs
        self._handlers: dict[str, Handler] = {}
        self._show("main", make)
        #: Messages whose answers take network time: a thread answers them, in order, so that
        #: the kernel's loop does not wait.
        self._mail: SimpleQueue[Callable[[], None] | None] | None = None
        if runs is not None and runs.storage.blocking:
            self._mail = SimpleQueue()
            threading.Thread(
                target=_answer_all, args=(self._mail,), name="kassette view", daemon=True
            ).start()
        self.on_msg(lambda _widget, message, _buffers: self._arrived(message))

    def _arrived(self, message: Message) -> None:
        if self._mail is None:
            self.handle(message)
        else:
            context = contextvars.copy_context()  # which cell the page belongs to, for Jupyter
            self._mail.put(lambda: context.run(self.handle, message))

    def handle(self, message: Message) -> None:
        """Answer one message of the page; an exception is shown there and kept here."""
        try:
            with self._lock:
                self._route(message)
        except Exception as problem:
            self.last_error = problem
            self.send(
                {
                    "ch": message.get("ch", "main"),
                    "type": "failed",
                    "text": f"{type(problem).__name__}: {problem}",
                    "traceback": traceback.format_exc(),
                }
            )

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call back after each change after which nothing runs."""
        seen = _mark(self.main)

        def watch(_change: object) -> None:
            nonlocal seen
            mark = _mark(self.main)
            if mark is not None and mark != seen:
                seen = mark
                callback()

        self.observe(watch, names="main")

    def printed(self, run_id: str, text: str) -> bool:
        """Show what a run printed in its panel; tell whether this view has one."""
        shown = [
            handler
            for handler in self._handlers.values()
            if isinstance(handler, Panel) and handler.run.run_id == run_id
        ]
        for panel in shown:
            panel.printed(text)
        return bool(shown)

    def close(self) -> None:
        """Stop following and close the widget."""
        for handler in self._handlers.values():
            handler.close()
        if self._mail is not None:
            self._mail.put(None)
        super().close()

    def _route(self, message: Message) -> None:
        kind = message.get("type")
        if kind == "open":
            run = self._find(str(message.get("run_id")))
            self._show("detail", lambda send, publish: Panel(run, send, publish, self._runs))
        elif kind == "compare":
            runs = [self._find(str(run_id)) for run_id in message.get("run_ids", [])]
            made = Comparison(_sources_first(runs))
            self._show("detail", lambda send, publish: ComparePanel(made, send, publish))
        elif kind == "close":
            self._drop("detail")
            self.set_trait("detail", None)
        else:
            handler = self._handlers.get(str(message.get("ch", "main")))
            if handler is not None:
                handler.handle(message)

    def _show(self, channel: str, make: Make) -> None:
        self._drop(channel)

        def send(message: Message) -> None:
            problem = message.pop("problem", None)
            if problem is not None:
                self.last_error = problem
            self.send({"ch": channel, **message})

        def publish(summary: Message) -> None:
            setattr(self, channel, summary)

        self._handlers[channel] = make(send, publish)

    def _drop(self, channel: str) -> None:
        handler = self._handlers.pop(channel, None)
        if handler is not None:
            handler.close()

    def _find(self, run_id: str) -> RunModel:
        if self._runs is None:
            raise KassetteError(f"this view knows no run {run_id!r}")
        return self._runs[run_id]


def _answer_all(mail: SimpleQueue[Callable[[], None] | None]) -> None:
    while (answer := mail.get()) is not None:
        answer()


def _sources_first(runs: list[RunModel]) -> list[RunModel]:
    """Return the runs with each fork behind its source: the first is what others are read by."""
    sources = {run.run_id: run.fold().opening.source for run in runs}

    def depth(run: RunModel) -> int:
        seen: set[str] = set()  # a foreign journal may name any source
        above = sources[run.run_id]
        while above is not None and above.run_id in sources and above.run_id not in seen:
            seen.add(above.run_id)
            above = sources[above.run_id]
        return len(seen)

    return sorted(runs, key=depth)


def _mark(summary: Message) -> object:
    """Return what a settled summary differs by from the next one; None while a session runs."""
    if summary.get("state") == "running" or summary.get("going_on"):
        return None
    return tuple(summary.get(name) for name in ("state", "total", "total_rows", "updated"))


def of_run(run: RunModel, runs: RunsModel) -> View:
    """Return the panel of a run; ``runs`` are those that its lineage leads to."""
    return View(lambda send, publish: Panel(run, send, publish, runs), runs)


def of_runs(runs: RunsModel) -> View:
    """Return the browser of a storage."""
    return View(lambda send, publish: Browser(runs, send, publish), runs)


def of_comparison(comparison: Comparison) -> View:
    """Return the view of a comparison."""
    return View(lambda send, publish: ComparePanel(comparison, send, publish))
