"""What the head, the question and the foot of a run's panel say, folded from its journal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from .. import values
from ..clock import SystemClock, instant, stamp
from ..diff import readable
from ..entries import Cancel, Complete, Failure, Intent
from ..errors import JournalValueError, UnknownRunError
from ..identity import person
from ..model import RunModel
from ..preview import decided, preview
from ..state import INTERRUPTED, READY, Decision, Pending, RunState, Session, replay_blocker
from ..text import first_line, visible
from . import code
from .forms import form
from .present import present
from .rows import Rows

Summary = dict[str, Any]


def summarize(
    run: RunModel, folded: RunState, rows: Rows, forks: Sequence[Summary] = ()
) -> Summary:
    """Return the summary trait of a run's panel; ``forks`` are the runs made from it."""
    first = folded.opening
    target = code.run(run.storage.url, run.run_id)
    background = run.session
    return {
        "kind": "panel",
        "run_id": run.run_id,
        "label": _maybe(first.label),
        "state": folded.status,
        "workflow": _maybe(first.workflow),
        "version": _maybe((folded.latest or first).version),
        "code": _code(run, folded),
        "source": lineage(folded),
        "forks": list(forks),
        "facts": facts(folded),
        "started": folded.started,
        "updated": folded.updated,
        "as_of": stamp(SystemClock().now()),
        "place": run.storage.place,
        "questions": [_question(question, target) for question in folded.questions],
        "doubts": [_doubt(intent) for intent in folded.doubts],
        "decisions": [_decision(decision) for decision in folded.decisions],
        "ending": _ending(folded),
        "by": person() or "",
        "can": _can(run, folded),
        "going_on": background is not None and not background.done,
        "problem": _problem(run, folded),
        "code_line": target,
        "sessions": [_session(session, folded) for session in folded.sessions],
        "copied": folded.copied,
        "copied_text": _copied(folded),
        "lanes": [visible(lane) for lane in rows.lanes],
        "total_rows": len(rows),
    }


def damaged(run: RunModel, problem: Exception) -> Summary:
    """Return the summary of a run whose journal cannot be read."""
    return {
        "kind": "panel", "run_id": run.run_id, "label": None,
        "state": "missing" if isinstance(problem, UnknownRunError) else "damaged",
        "workflow": None, "version": None, "code": {"state": "none", "text": ""},
        "source": None, "forks": [],
        "facts": {"steps": 0, "tokens": None, "working_ms": None, "waiting_ms": None,
                  "sessions": 0,
                  "cost": {"own": None, "copied": None, "unpriced": 0, "limit": None}},
        "started": None, "updated": None, "as_of": stamp(SystemClock().now()),
        "place": run.storage.place, "questions": [], "doubts": [], "decisions": [],
        "ending": None, "by": "", "going_on": False, "problem": visible(str(problem)),
        "can": dict.fromkeys(("answer", "fork", "go_on"), "the journal is damaged"),
        "code_line": code.run(run.storage.url, run.run_id), "sessions": [], "copied": 0,
        "copied_text": "", "lanes": ["main"], "total_rows": 0,
    }  # fmt: skip


def facts(folded: RunState) -> Summary:
    """Return the figures of a run: steps, tokens, dollars, and milliseconds of work and waiting."""
    working = waiting = copied = timedelta()
    previous: Session | None = None
    for session in folded.sessions:
        if session.offset >= folded.copied:
            working += instant(session.last) - instant(session.at)
            if previous is not None and session.opened_by == "resume":
                waiting += instant(session.at) - instant(previous.last)
        else:
            copied += instant(session.last) - instant(session.at)
        previous = session
    if folded.pending:
        waiting += SystemClock().now() - instant(folded.updated)
    return {
        "steps": len(folded.steps),
        "tokens": folded.own.tokens,
        "cost": {
            "own": folded.own.cost_usd,
            "copied": folded.prefix.cost_usd,
            "unpriced": folded.own.unpriced,
            "limit": None,
        },
        "working_ms": round(working.total_seconds() * 1000),
        "copied_ms": round(copied.total_seconds() * 1000),
        "waiting_ms": round(waiting.total_seconds() * 1000) or None,
        "sessions": len(folded.sessions),
    }


def _code(run: RunModel, folded: RunState) -> Summary:
    name = folded.opening.workflow
    if name is None:
        return {"state": "none", "text": "no workflow named in the journal"}
    if run.workflow is None:
        return {"state": "missing", "text": "code not loaded in this kernel"}
    version = (folded.latest or folded.opening).version
    if folded.latest is not None and run.workflow.version != version:
        return {"state": "missing", "text": f"code loaded is version {run.workflow.version}"}
    return {"state": "loaded", "text": "code loaded"}


def lineage(folded: RunState) -> Summary | None:
    """Return the source of a fork and the step at which it parts from it."""
    source = folded.opening.source
    if source is None:
        return None
    overridden = next((s for s in folded.steps if s.overridden and s.offset < folded.copied), None)
    if overridden is not None:
        at = f"{overridden.step_id} (changed)"
    else:
        after = next((s.step_id for s in folded.steps if s.offset >= folded.copied), None)
        at = after or f"entry {source.from_offset}"
    return {"run_id": source.run_id, "at": visible(at)}


def _question(question: Pending, target: str) -> Summary:
    schema = _decoded(question.schema)
    made = form(schema)
    for field in made["fields"]:
        field.pop("values", None)
    context = present(question.context) if question.context else None
    by = person() or None
    return {
        "id": question.step_id,
        "event": visible(question.event),
        "prompt": None if question.prompt is None else visible(question.prompt),
        "since": question.since,
        "deadline": question.deadline,
        "expired": question.expired,
        "context": context,
        "context_lines": readable(question.context).rstrip("\n").count("\n") + 1 if context else 0,
        "form": made,
        "lines": {
            "approve": code.call(target, "approve", by=by, event=question.step_id),
            "reject": code.call(target, "reject", by=by, event=question.step_id),
            "respond": f"{target}.respond(..., event={question.step_id!a})",
        },
    }


def _doubt(intent: Intent) -> Summary:
    return {
        "id": visible(intent.step_id),
        "name": visible(intent.name),
        "key": _maybe(intent.idempotency_key),
        "attempt": intent.attempt,
        "since": intent.timestamp,
        "args": present(intent.args),
    }


def _decision(decision: Decision) -> Summary:
    return {
        "event": visible(decision.event),
        "id": decision.step_id,
        "by": _maybe(decision.by),
        "at": decision.at,
        "note": _maybe(decision.note),
        "text": decided(decision.value),
        "offset": decision.offset,
    }


def _ending(folded: RunState) -> Summary | None:
    entry = folded.ending
    if entry is None:
        return None
    if isinstance(entry, Complete):
        text = preview(entry.result)
    elif isinstance(entry, Failure):
        text = first_line(f"{entry.error.name}: {entry.error.message}")
    else:
        assert isinstance(entry, Cancel), "the three terminal entries"
        text = first_line(entry.reason or "no reason given")
    step = entry.step_id if isinstance(entry, Failure) else None
    return {
        "kind": folded.status,
        "text": text,
        "offset": entry.offset,
        "at": entry.timestamp,
        "step": _maybe(step),
    }


def _can(run: RunModel, folded: RunState) -> Summary:
    blocker = replay_blocker(folded.foreign)
    code_missing = (
        None
        if run.workflow is not None
        else "its code is not loaded in this kernel: run the cell that defines the workflow"
    )
    go_on: bool | str = code_missing or True
    if folded.status not in (READY, INTERRUPTED):
        go_on = f"the run is {folded.status}"
    return {
        "answer": blocker or True,
        "fork": blocker or True,
        "start_fork": code_missing or True,
        "go_on": blocker or go_on,
        "cancel": f"the run is {folded.status}" if folded.terminal else True,
    }


def _problem(run: RunModel, folded: RunState) -> str | None:
    background = run.session
    if background is not None and background.done and background.error is not None:
        error = background.error
        return visible(f"the last session here stopped: {type(error).__name__}: {error}")
    blocker = replay_blocker(folded.foreign)
    if blocker:
        return visible(f"{blocker}: the run can be viewed, not continued")
    torn = run.journal.torn
    if torn and folded.status != "running":
        return f"the last line is torn ({torn} bytes, never acknowledged); the next session cuts it"
    return None


def _session(session: Session, folded: RunState) -> Summary:
    text = f"session {session.number}"
    if session.opened_by == "resume":
        decision = next((d for d in folded.decisions if d.offset == session.offset), None)
        if decision is not None:
            by = f" by {decision.by}" if decision.by else ""
            text = f"{text} · {decided(decision.value)}{by}"
    elif session.opened_by == "fork":
        text = f"{text} · fork"
    return {
        "n": session.number,
        "offset": session.offset,
        "at": session.at,
        "by": session.opened_by,
        "text": first_line(text),
    }


def _copied(folded: RunState) -> str:
    source = folded.opening.source
    if source is None:
        return ""
    kept = sum(step.offset < folded.copied for step in folded.steps)
    cost = folded.prefix.cost_usd
    paid = f", ${cost:.2f}" if cost else ""
    return visible(f"copied from {source.run_id}: {kept} steps{paid}")


def _decoded(payload: Any) -> Any:
    try:
        return values.decode(payload)
    except JournalValueError:
        return None


def _maybe(text: str | None) -> str | None:
    return None if text is None else visible(text)
