"""The panel of one run: what it shows, and what its buttons do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from ..entries import (
    AnyEntry,
    Cancel,
    Complete,
    Failure,
    Intent,
    Note,
    Start,
    Step,
    Suspend,
)
from ..errors import KassetteError
from ..llm.conversation import conversations
from ..model import RunModel, RunsModel
from ..text import visible
from . import code
from .actions import act
from .follow import Follower
from .present import nothing, present, text_value
from .rows import Row, rows_of
from .summary import damaged, summarize

#: The newest rows travel with the summary, so that a panel stands before the rest arrive.
TAIL = 20
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
        self._rows: list[Row] = []
        self._status = ""
        # Whether a page has asked for the rows; before that, messages are lost.
        self._heard = False
        self._lock = threading.RLock()
        self.follower = Follower(self, self.refresh, run.storage)
        self.refresh()

    def version(self, probe: bool) -> object:
        """Return what changes when the run does; see `Followed`."""
        if probe:
            self._status = self.run.fold().status
        session = self.run.session
        return self.run.journal.token, self._status, session.done if session else None

    def refresh(self) -> None:
        """Draw the run as it is now; the page gets only the rows that changed."""
        # The kernel's loop follows the journal while a click may be handled in its own thread.
        with self._lock:
            self._draw()

    def _draw(self) -> None:
        rows: list[Row] = []
        try:
            folded = self.run.fold()
            with self.run.still(folded):
                built = rows_of(self.run.journal, folded)
                summary = summarize(self.run, folded, built, self._forks)
        except KassetteError as problem:
            summary = damaged(self.run, problem)
        else:
            rows = built.shown() if self._heard else []
            self._status = folded.status
            summary["tail"] = built.shown(max(len(built) - TAIL, 0))
        same = 0
        for old, new in zip(self._rows, rows, strict=False):
            if old != new:
                break
            same += 1
        changed = same < max(len(rows), len(self._rows))
        self._rows = rows
        self._publish(summary)
        if changed and self._heard:
            self._send(self._tail(same))

    def handle(self, message: Message) -> None:
        """Answer one message of the page."""
        kind = message.get("type")
        if kind == "hello":
            self.follower.here()
            self._find_forks()
            self._heard = False
            self.refresh()
            self._heard = True
            self._rows = self._whole()
            self._send(self._tail(0))
        elif kind == "here":
            self.follower.here()
        elif kind in ("value", "more"):
            self._send(self._answer(message, whole=kind == "more"))
        elif kind == "search":
            self._send(self._search(str(message.get("text", ""))))
        elif kind == "act":
            act(self.run, message, self._send)
            self._find_forks()
            self.refresh()

    def close(self) -> None:
        """Stop following."""
        self.follower.stop()

    def _whole(self) -> list[Row]:
        try:
            return list(rows_of(self.run.journal, self.run.fold()).shown())
        except KassetteError:
            return []

    def _find_forks(self) -> None:
        if self._runs is not None:
            self._forks = [
                {"run_id": run.run_id, "label": None if run.label is None else visible(run.label)}
                for run in self._runs.forks_of(self.run.run_id)
            ]

    def _tail(self, start: int) -> Message:
        return {
            "type": "rows", "from": start, "rows": self._rows[start:], "total": len(self._rows)
        }  # fmt: skip

    def _answer(self, message: Message, whole: bool) -> Message:
        offset, part = message.get("offset"), message.get("part")
        reply: Message = {"type": "value", "offset": offset, "part": part}
        try:
            journal = self.run.journal
        except KassetteError as problem:
            return {**reply, **nothing(visible(str(problem)))}
        if not isinstance(offset, int) or not 0 <= offset < len(journal.entries):
            return {**reply, **nothing("there is no such entry")}
        entry = journal.entries[offset]
        if part == "entry":
            line = journal.line(offset).decode(errors="replace").rstrip("\n")
            return {**reply, **text_value(line, "json", whole=whole)}
        if part == "usage":
            return {**reply, **_usage(entry)}
        if part == "context":
            return {**reply, **_result(entry, whole)}
        if part == "args":
            return {**reply, **_args(entry, whole)}
        reply.update(_result(entry, whole))
        reply.update(self._step_actions(offset))
        return reply

    def _step_actions(self, offset: int) -> Message:
        entry = self.run.journal.entries[offset]
        if not isinstance(entry, Step):
            return {}
        target = code.run(self.run.storage.url, self.run.run_id)
        folded = self.run.fold()
        kept = [step for step in folded.steps if step.offset < offset]
        cost = sum(step.usage.cost_usd or 0.0 for step in kept if step.usage)
        spent = sum(s.usage.cost_usd or 0.0 for s in folded.steps if s.usage and s.offset >= offset)
        paid = f" (${cost:.2f}, not paid again)" if cost else ""
        after = f"; the original spent ${spent:.2f} from this point on" if spent else ""
        name = visible(entry.step_id)
        return {
            "lines": {
                "fork": code.call(target, "fork", at=entry.step_id, start=True),
                "override": f"{target}.fork(override={{{entry.step_id!a}: ...}}, start=True)",
            },
            "fork_text": f"keeps {len(kept)} steps{paid}; {name} and what follows run again{after}",
            "override_text": f"keeps {len(kept) + 1} steps{paid}, {name} with the new result; "
            f"what follows runs again{after}",
        }

    def _search(self, text: str) -> Message:
        wanted = text.lower().encode()
        if not self._rows:
            return {"type": "found", "text": text, "offsets": []}
        journal = self.run.journal
        found = [
            row["o"] for row in self._rows if wanted and wanted in journal.line(row["o"]).lower()
        ]
        return {"type": "found", "text": text, "offsets": found}


def _result(entry: AnyEntry, whole: bool) -> Message:
    if isinstance(entry, Step | Failure) and entry.error is not None:
        text = f"{entry.error.name}: {entry.error.message}"
        trace = entry.error.traceback or (entry.traceback if isinstance(entry, Failure) else None)
        if trace:
            text = f"{text}\n\n{trace}"
        return text_value(visible(text), whole=whole)
    if isinstance(entry, Step | Complete):
        return present(entry.result, whole=whole)
    if isinstance(entry, Suspend):
        return present(entry.context, whole=whole, missing="the question carries no context")
    if isinstance(entry, Intent):
        return present(entry.args, whole=whole, missing="no arguments were recorded")
    if isinstance(entry, Note):
        return present(entry.data, whole=whole, missing="the note carries no data")
    if isinstance(entry, Cancel):
        return text_value(visible(entry.reason or "no reason was given"))
    return nothing("shown as it is under Entry")


def _args(entry: AnyEntry, whole: bool) -> Message:
    if isinstance(entry, Step) and (said := conversations(entry)):
        return text_value(visible("\n\n———\n\n".join(map(str, said))), whole=whole)
    missing = "not recorded: none were given, or JSON cannot carry them in 8 kB"
    payload = entry.metadata if isinstance(entry, Start) else getattr(entry, "args", UNSET)
    return present(payload, whole=whole, missing=missing)


def _usage(entry: AnyEntry) -> Message:
    usage = entry.usage if isinstance(entry, Step) else None
    if usage is None:
        return nothing("no usage was recorded")
    lines = [
        f"model          {usage.model or 'not recorded'}",
        f"input tokens   {_count(usage.input_tokens)}",
        f"output tokens  {_count(usage.output_tokens)}",
    ]
    if usage.cached_input_tokens is not None:
        lines.append(f"cached input   {_count(usage.cached_input_tokens)}")
    if usage.reasoning_tokens is not None:
        lines.append(f"reasoning      {_count(usage.reasoning_tokens)} of the output")
    if usage.first_token_ms is not None:
        lines.append(f"first token    {usage.first_token_ms / 1000:.2f} s")
    if usage.latency_ms is not None:
        lines.append(f"whole answer   {usage.latency_ms / 1000:.2f} s")
    cost = "not known" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    return text_value("\n".join([*lines, f"cost           {cost}"]))


def _count(number: int | None) -> str:
    return "not recorded" if number is None else f"{number:,}"
