"""Tables that sum a journal up: one row a run, a session, a question, a model.

In plain Python like `tables`, which has one row a line.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .clock import SystemClock, instant
from .entries import (
    INCOMPLETE,
    AnyEntry,
    Complete,
    Failure,
    Note,
    Resume,
    Start,
    Step,
    Suspend,
    kind_of,
)
from .errors import KassetteError
from .imported import timed
from .model import RunModel
from .preview import decided, recorded
from .state import Events, RunState
from .tables import Table, copied_lines, failed, shown
from .text import visible
from .usage import unpriced


def runs_table(runs: Iterable[RunModel]) -> Table:
    """Return one row a run; see `kassette_nb.frames.runs_frame`."""
    table = Table(
        "run_id", "label", "state", "workflow", "version", "waiting_on", "steps", "sessions",
        "tokens", "cost_usd", "unpriced", "started", "updated", "working_seconds",
        "waiting_seconds", "source", "source_offset", "result", "error", "damage",
    )  # fmt: skip
    for run in runs:
        try:
            folded = run.fold()
        except KassetteError as problem:
            table.add(run_id=run.run_id, state="damaged", damage=str(problem))
            continue
        first, ending, own = folded.opening, folded.ending, folded.own
        sessions = [s for s in folded.sessions if s.offset >= folded.copied]
        working, waiting = _durations(folded)
        table.add(
            run_id=run.run_id,
            label=shown(first.label),
            state=folded.status,
            workflow=shown(first.workflow),
            version=shown((folded.latest or first).version),
            waiting_on=shown(", ".join(q.step_id for q in folded.waits) or None),
            steps=len(folded.steps),
            sessions=len(sessions),
            tokens=own.tokens,
            cost_usd=own.cost_usd,
            unpriced=own.unpriced,
            # A fork's line 0 is its source's; the run itself began with its own first session.
            started=sessions[0].at if sessions else None,
            updated=folded.updated,
            working_seconds=working if timed(run.journal.entries) else None,
            waiting_seconds=waiting,
            source=first.source.run_id if first.source else None,
            source_offset=first.source.from_offset if first.source else None,
            result=recorded(ending.result) if isinstance(ending, Complete) else None,
            error=failed(ending.error) if isinstance(ending, Failure) else None,
        )
    return table


def sessions_table(runs: Iterable[RunModel]) -> Table:
    """Return one row a session; see `kassette_nb.frames.sessions_frame`."""
    table = Table("run_id", "session", "offset", "opened_by", "by", "started", "ended", "entries",
                  "steps", "last_type", "copied", "pid", "host")  # fmt: skip
    for run, journal in table.readable(runs):
        folded, lines = run.fold(), journal.entries
        starts = [*(session.offset for session in folded.sessions), len(lines)]
        for session, end in zip(folded.sessions, starts[1:], strict=True):
            own = lines[session.offset : end]
            first = own[0]
            opened = first if isinstance(first, Start | Resume) else None
            table.add(
                run_id=run.run_id,
                session=session.number,
                offset=session.offset,
                opened_by=session.opened_by,
                by=shown(first.by) if isinstance(first, Resume) else None,
                started=session.at,
                # An import may have recorded no times: then the end is as unknown as the length.
                ended=session.last if timed(lines) else None,
                entries=len(own),
                steps=sum(type(entry) is Step for entry in own),
                last_type=visible(kind_of(own[-1])),
                copied=session.offset < folded.copied,
                pid=opened.pid if opened else None,
                host=shown(opened.host) if opened else None,
            )
    return table


def suspensions_table(runs: Iterable[RunModel]) -> Table:
    """Return one row a question, timer or doubt; see `kassette_nb.frames.suspensions_frame`."""
    table = Table("run_id", "step_id", "event", "state", "asked", "deadline", "answered", "offset",
                  "answer_offset", "decision", "by", "note", "prompt", "answer")  # fmt: skip
    for run, journal in table.readable(runs):
        pending = {question.step_id: question for question in run.fold().pending}
        for step_id, asked, answer in _asked(journal.entries):
            if answer is not None:
                state = "answered"
            elif step_id in pending:
                state = "expired" if pending[step_id].expired else "waiting"
            else:
                state = "closed"
            table.add(
                run_id=run.run_id,
                step_id=visible(step_id),
                event=visible(asked.event_name),
                state=state,
                asked=asked.timestamp,
                deadline=asked.deadline,
                answered=answer.timestamp if answer else None,
                offset=asked.offset,
                answer_offset=answer.offset if answer else None,
                decision=decided(answer.value) if answer else None,
                by=shown(answer.by) if answer else None,
                note=shown(answer.note) if answer else None,
                prompt=shown(asked.prompt),
                answer=recorded(answer.value) if answer else None,
            )
    return table


def _asked(lines: Iterable[AnyEntry]) -> list[tuple[str, Suspend, Resume | None]]:
    """Return each question with its answer; one that is asked again after an answer is another."""
    events = Events()
    found: list[tuple[str, Suspend, Resume | None]] = []
    newest: dict[str, int] = {}
    for entry in lines:
        if isinstance(entry, Suspend):
            step_id = events.suspended(entry)
            if step_id not in newest or found[newest[step_id]][2] is not None:
                newest[step_id] = len(found)
                found.append((step_id, entry, None))
        elif isinstance(entry, Resume):
            step_id = events.resumed(entry)
            if step_id in newest and found[newest[step_id]][2] is None:
                found[newest[step_id]] = (step_id, found[newest[step_id]][1], entry)
    return found


def usage_table(runs: Iterable[RunModel]) -> Table:
    """Return one row a run and model; see `kassette_nb.frames.usage_frame`."""
    counted = ("input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens",
               "cost_usd")  # fmt: skip
    table = Table("run_id", "model", "copied", "calls", "failed", *counted, "unpriced")
    for run, journal in table.readable(runs):
        copied = copied_lines(journal)
        sums: dict[tuple[bool, str | None], dict[str, Any]] = {}
        for step in journal.entries:
            lost = isinstance(step, Note) and step.kind == INCOMPLETE
            usage = step.usage if isinstance(step, Step) else None
            if usage is None and not lost:
                continue
            key = (step.offset < copied, usage.model if usage else None)
            row = sums.setdefault(key, {"calls": 0, "failed": 0, "unpriced": 0})
            row["calls"] += 1
            if not isinstance(step, Step) or usage is None:  # paid for, and nobody knows how much
                row["failed"] += 1
                row["unpriced"] += 1
                continue
            row["failed"] += step.error is not None
            row["unpriced"] += unpriced(usage)
            for name in counted:
                spent = getattr(usage, name)
                if spent is not None:  # a sum over nothing is missing, not zero
                    row[name] = row.get(name, 0) + spent
        for (prefix, model), row in sums.items():
            table.add(run_id=run.run_id, model=shown(model), copied=prefix, **row)
    return table


def _durations(folded: RunState) -> tuple[float, float]:
    """Return the seconds that a run's own sessions took, and those it waited for answers."""
    working = waiting = 0.0
    previous: str | None = None
    for session in folded.sessions:
        began, last = instant(session.at).timestamp(), instant(session.last).timestamp()
        if session.offset >= folded.copied:
            working += last - began
            if previous is not None and session.opened_by == "resume":
                waiting += began - instant(previous).timestamp()
        previous = session.last
    if folded.pending:
        waiting += SystemClock().now().timestamp() - instant(folded.updated).timestamp()
    return working, waiting
