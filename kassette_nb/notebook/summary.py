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
from ..state import (
    BUDGET,
    IN_DOUBT,
    INTERRUPTED,
    READY,
    RUNNING,
    Decision,
    Pending,
    RunState,
    Session,
    replay_blocker,
)
from ..text import first_line, visible
from . import code
from .changes import has_files
from .forking import limited, money, retry_text
from .forms import bare, form
from .present import nothing, present
from .rows import Rows
from .stale import fit

Summary = dict[str, Any]


def summarize(
    run: RunModel, folded: RunState, rows: Rows, forks: Sequence[Summary] = ()
) -> Summary:
    """Return the summary trait of a run's panel; ``forks`` are the runs made from it."""
    first = folded.opening
    target = code.run(run.storage.url, run.run_id)
    background = run.session
    going_on = background is not None and not background.done
    doubts = [] if folded.status == RUNNING or folded.terminal else folded.doubts
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
        "facts": {**facts(folded), **_limits(run)},
        "started": folded.started,
        "updated": folded.updated,
        "as_of": stamp(SystemClock().now()),
        "place": run.storage.place,
        "questions": [_question(q, target) for q in folded.waits if q.event != IN_DOUBT],
        "doubts": [_doubt(intent, target) for intent in doubts],
        "decisions": [_decision(decision) for decision in folded.decisions],
        "ending": _ending(folded),
        "by": person() or "",
        "can": _can(run, folded),
        "going_on": going_on,
        "after_text": _after(run, folded),
        "problem": _problem(run, folded),
        "code_line": target,
        "sessions": [_session(session, folded) for session in folded.sessions],
        "copied": folded.copied,
        "copied_text": _copied(folded),
        "lanes": [visible(lane) for lane in rows.lanes],
        "total_rows": len(rows),
        "workspace": has_files(run.journal.entries),
        "lines": {
            "retry": code.call(target, "retry", start=run.workflow is not None or None),
            "go_on": code.call(target, "resume"),
            "verify": code.call(target, "verify"),
            "cancel": code.call(target, "cancel"),
        },
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
                  "cost": {"own": None, "copied": None, "unpriced": 0}, "limits": {}},
        "started": None, "updated": None, "as_of": stamp(SystemClock().now()),
        "place": run.storage.place, "questions": [], "doubts": [], "decisions": [],
        "ending": None, "by": "", "going_on": False, "problem": visible(str(problem)),
        "can": dict.fromkeys(("answer", "fork", "go_on", "verify"), "the journal is damaged"),
        "workspace": False, "lines": {}, "after_text": None,
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
        },
        "working_ms": round(working.total_seconds() * 1000),
        "copied_ms": round(copied.total_seconds() * 1000),
        "waiting_ms": round(waiting.total_seconds() * 1000) or None,
        "sessions": len(folded.sessions),
    }


def _limits(run: RunModel) -> Summary:
    found = limited(run.journal.entries)
    named = ("max_steps", "max_tokens", "max_cost_usd")
    return {"limits": {} if found is None else {name: getattr(found, name) for name in named}}


def _after(run: RunModel, folded: RunState) -> str | None:
    """Return what becomes of a run whose answer is recorded and that nobody goes on with yet."""
    if folded.status != READY or not folded.decisions:
        return None
    if run.workflow is None:
        return "the run goes on when its code is next started"
    return "the run is ready to go on"


def _code(run: RunModel, folded: RunState) -> Summary:
    name = folded.opening.workflow
    if name is None:
        return {"state": "none", "text": "no workflow named in the journal"}
    if run.workflow is None:
        return {"state": "missing", "text": "code not loaded in this kernel"}
    version = (folded.latest or folded.opening).version
    if folded.latest is not None and run.workflow.version != version:
        return {"state": "missing", "text": f"code loaded is version {run.workflow.version}"}
    return fit(run.workflow.definition.fn, folded.steps)


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
    made = bare(form(schema))
    context = present(question.context) if question.context else None
    if question.event == BUDGET and made["kind"] == "fields":
        context = _budget(made, _decoded(question.context)) or context
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
        "budget": question.event == BUDGET,
        "lines": {
            "approve": code.call(target, "approve", by=by, event=question.step_id),
            "reject": code.call(target, "reject", by=by, event=question.step_id),
            "respond": f"{target}.respond(..., event={question.step_id!a})",
        },
    }


def _budget(made: Summary, context: Any) -> Summary | None:
    """Say in the form what each limit is now and how much is spent; return what else there is."""
    if not isinstance(context, dict):
        return None
    limits, spent = context.get("limits"), context.get("spent")
    if not isinstance(limits, dict) or not isinstance(spent, dict):
        return None
    words = {"max_steps": "steps", "max_tokens": "tokens", "max_cost_usd": "cost_usd"}
    for field in made["fields"]:
        name = words.get(field["name"])
        if name is None:
            continue
        field["label"] = f"{'dollars' if name == 'cost_usd' else name}, at most"
        limit = limits.get(field["name"])
        told = "no limit now" if limit is None else f"{_amount(limit, name)} now"
        if name in spent:
            told = f"{told}, {_amount(spent[name], name)} spent"
        field["description"] = told
    return nothing("")


def _amount(number: Any, name: str) -> str:
    if isinstance(number, bool) or not isinstance(number, int | float):
        return "?"
    return money(number) if name == "cost_usd" else f"{number:,}"


def _doubt(intent: Intent, target: str) -> Summary:
    event = intent.step_id
    return {
        "id": event,
        "offset": intent.offset,
        "name": visible(intent.name),
        "key": _maybe(intent.idempotency_key),
        "attempt": intent.attempt,
        "since": intent.timestamp,
        "args": present(intent.args),
        "lines": {
            "record": f"{target}.settle('record', ..., event={event!a}, attempt={intent.attempt})",
            "retry": code.call(target, "settle", "retry", event=event, attempt=intent.attempt),
            "fail": code.call(target, "settle", "fail", event=event, attempt=intent.attempt),
        },
    }


def _decision(decision: Decision) -> Summary:
    return {
        "event": visible(decision.event),
        "id": decision.step_id,
        "by": _maybe(decision.by),
        "at": decision.at,
        "note": _maybe(decision.note),
        "text": _decided(decision),
        "offset": decision.offset,
    }


def _decided(decision: Decision) -> str:
    """Return an answer in words; of a tool in doubt, what became of it."""
    if decision.event == IN_DOUBT:
        value = _decoded(decision.value)
        action = value.get("action") if isinstance(value, dict) else None
        words = {"record": "it happened", "retry": "to be tried again", "fail": "failed"}
        return words.get(str(action), "settled")
    if decision.event == BUDGET:
        return f"new limits: {preview(decision.value)}"
    return decided(decision.value)


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
        "verify": blocker or code_missing or True,
        "retry": _can_retry(run, folded, blocker or code_missing),
        "cancel": f"the run is {folded.status}" if folded.terminal else True,
    }


def _can_retry(run: RunModel, folded: RunState, blocked: str | None) -> Summary | None:
    ending = folded.ending
    if not isinstance(ending, Failure) or ending.step_id is None:
        return None
    return {"text": retry_text(folded), "blocked": blocked}


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
            text = f"{text} · {_decided(decision)}{by}"
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
    paid = f", {money(cost)}" if cost else ""
    return visible(f"copied from {source.run_id}: {kept} steps{paid}")


def _decoded(payload: Any) -> Any:
    try:
        return values.decode(payload)
    except JournalValueError:
        return None


def _maybe(text: str | None) -> str | None:
    return None if text is None else visible(text)
