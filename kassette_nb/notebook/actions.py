"""What the buttons of a panel do: each is one method of the run.

A click can lose a race or be refused; it then says so, and nothing was written.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from .. import values
from ..decisions import decision
from ..entries import AnyEntry, Intent, Step, Suspend
from ..errors import (
    JournalValueError,
    KassetteError,
    MetadataMismatchError,
    ReplayMismatchError,
    VersionMismatchError,
    WorkspaceChangedError,
)
from ..model import RunModel
from ..text import visible
from ..values import JSON
from . import code, forms, ways

Message = dict[str, Any]


def act(run: RunModel, message: Message, send: Callable[[Message], None]) -> None:
    """Carry out one click; reply ``received`` at once, then how it went.

    Args:
        run: The run.
        message: ``verb`` and its arguments; ``n`` marks the click.
        send: Sends a reply to the page.
    """
    number, verb = message.get("n"), str(message.get("verb"))
    send({"type": "acted", "n": number, "phase": "received"})
    try:
        reply = _VERBS[verb](run, message) if verb in _VERBS else _unknown(verb)
    except _UNFIT as refusal:
        reply = {"phase": "refused", "text": str(refusal)}
        if verb in _ANSWERS and message.get("start", True) and not message.get("fork"):
            reply["ways"] = ways.for_answer(run, message, refusal, lambda m: line(run, m))
    except KassetteError as refusal:
        reply = {"phase": "refused", "text": str(refusal)}
        if isinstance(refusal, JournalValueError):
            reply["at"] = refusal.path  # the field of a form that it is about
    except Exception as problem:
        # Jupyter would lose it: an exception in a widget's callback goes to a log nobody reads.
        reply = {
            "phase": "failed",
            "text": f"{type(problem).__name__}: {problem}",
            "traceback": traceback.format_exc(),
            "problem": problem,  # for `View.last_error`; it does not travel
        }
    send({"type": "acted", "n": number, **reply})


def line(run: RunModel, message: Message) -> str | None:
    """Return the code that a click would be now, or None where the form has no answer yet."""
    target = code.run(run.storage.url, run.run_id)
    event, by, note = (_text(message, name) or None for name in ("id", "by", "note"))
    verb = str(message.get("verb"))
    signed: dict[str, JSON] = {"by": by, "note": note, "event": event}
    signed["start"] = None if _start(message) else False
    try:
        if message.get("fork"):
            value = _given(run, message)
            return code.call(target, "fork", at=event, answer=value, by=by, note=note, start=True)
        if verb in ("approve", "reject"):
            return code.call(target, verb, **signed)
        if verb == "respond":
            return code.call(target, "respond", _answer(run, message), **signed)
        if verb in ("fork", "other"):
            return _fork_line(run, target, message)
        if verb == "cancel":
            return code.call(target, verb, reason=_text(message, "reason") or None)
        if verb == "settle":
            signed["attempt"] = _attempt(message)
            return code.call(target, "settle", *_outcome(message), **signed)
    except KassetteError:
        return None
    return None


def _fork_line(run: RunModel, target: str, message: Message) -> str:
    entry = _entry(run, message)
    named = {"start": bool(message.get("start")) or None, "label": _text(message, "label")}
    text, step_id = message.get("override_text"), _step_id(entry)
    if message["verb"] == "other":
        value = _json(str(text), "the other answer")
        return code.call(target, "fork", at=step_id, answer=value, **named)
    if text is not None and isinstance(entry, Step):
        value = _override(entry, str(text), message.get("override_format") == "json")
        return code.call(target, "fork", override={entry.step_id: value}, **named)
    return code.call(target, "fork", at=step_id, **named)


def _step_id(entry: AnyEntry) -> str | int:
    """Return what `Run.fork` takes for an entry: its step id, else its offset."""
    if isinstance(entry, Step | Intent | Suspend):
        return entry.step_id or entry.offset
    return entry.offset


def _decide(run: RunModel, message: Message) -> Message:
    if message.get("fork"):
        return _answer_in_fork(run, message)
    decide = run.approve if message["verb"] == "approve" else run.reject
    by, note, event = (_text(message, name) for name in ("by", "note", "id"))
    decide(by=by, note=note, event=event, start=_start(message))
    return {"phase": "done", "text": f"{message['verb']}: recorded"}


def _respond(run: RunModel, message: Message) -> Message:
    if message.get("fork"):
        return _answer_in_fork(run, message)
    value = _answer(run, message)
    by, note, event = (_text(message, name) for name in ("by", "note", "id"))
    run.respond(value, by=by, note=note, event=event, start=_start(message))
    return {"phase": "done", "text": "answer recorded"}


def _answer_in_fork(run: RunModel, message: Message) -> Message:
    by, note, event = (_text(message, name) for name in ("by", "note", "id"))
    made = run.fork(at=event, answer=_given(run, message), by=by, note=note or None, start=True)
    return _made(made, True)


def _start(message: Message) -> bool:
    """Return whether the run is to go on with an answer, or only to have it recorded."""
    return message.get("start") is not False


def _given(run: RunModel, message: Message) -> JSON:
    """Return the answer that a click gives, whichever button it was."""
    verb, event = message.get("verb"), _text(message, "id")
    if verb not in ("approve", "reject"):
        return _answer(run, message)
    asked = next((q for q in run.fold().waits if q.step_id == event), None)
    if asked is None:
        raise KassetteError(f"{event!r} is not asked any more. Nothing was written.")
    return decision(verb == "approve", _text(message, "note"), values.decode(asked.schema))


def _verify(run: RunModel, message: Message) -> Message:
    found = run.verify()
    if found.divergence is not None:
        reply: Message = {"phase": "differs", "text": visible(found.line)}
        reply["ways"] = ways.for_divergence(run, found.divergence, lambda m: line(run, m))
        return reply
    told = [found.line, f"next is {found.next}" if found.next else "to where the record ends"]
    if found.unasked:
        count = len(found.unasked)
        calls = "1 recorded model call is" if count == 1 else f"{count} recorded model calls are"
        told.append(f"{calls} no longer asked for: {', '.join(found.unasked[:5])}")
    return {"phase": "done", "text": visible("; ".join(told))}


def _answer(run: RunModel, message: Message) -> JSON:
    fields = message.get("fields")
    if fields is None:
        return _json(str(message.get("value_text", "")), "the answer")
    event = _text(message, "id")
    # Also of a question that somebody has answered meanwhile: who was first is told behind this.
    asked = (
        entry.schema
        for entry in reversed(run.journal.entries)
        if isinstance(entry, Suspend) and (entry.step_id or entry.event_name) == event
    )
    return forms.answer(values.decode(next(asked, msgspec.UNSET)), fields)


def _settle(run: RunModel, message: Message) -> Message:
    event, by = _text(message, "id"), _text(message, "by")
    note, seen, start = _text(message, "note"), _attempt(message), _start(message)
    run.settle(*_outcome(message), event=event, by=by, note=note, attempt=seen, start=start)
    return {"phase": "done", "text": "recorded"}


def _attempt(message: Message) -> int | None:
    """Return the attempt that was on show when somebody decided."""
    seen = message.get("attempt")
    return seen if type(seen) is int else None


def _outcome(message: Message) -> tuple[str, JSON] | tuple[str]:
    """Return what became of a tool in doubt, as `Run.settle` takes it."""
    action, text = str(message.get("action")), str(message.get("value_text") or "")
    if action == "record":
        return action, _json(text, "the tool's result") if text.strip() else None
    return (action, text.strip()) if action == "fail" and text.strip() else (action,)


def _fork(run: RunModel, message: Message) -> Message:
    entry = _entry(run, message)
    start, label = bool(message.get("start")), _text(message, "label") or None
    text = message.get("override_text")
    if text is not None:
        if not isinstance(entry, Step):
            raise KassetteError("only a step's result can be changed. Nothing was written.")
        value = _override(entry, str(text), message.get("override_format") == "json")
        made = run.fork(override={entry.step_id: value}, start=start, label=label)
    else:
        made = run.fork(at=_step_id(entry), start=start, label=label)
    return _made(made, start)


def _other(run: RunModel, message: Message) -> Message:
    entry = _entry(run, message)
    if not isinstance(entry, Suspend):
        raise KassetteError("only a question has another answer. Nothing was written.")
    value = _json(str(message.get("override_text", "")), "the other answer")
    start, label = bool(message.get("start")), _text(message, "label") or None
    event = entry.step_id or entry.event_name
    made = run.fork(at=event, answer=value, start=start, label=label)
    return _made(made, start)


def _retry(run: RunModel, message: Message) -> Message:
    start = run.workflow is not None
    return _made(run.retry(start=start), start)


def _made(run: RunModel, start: bool) -> Message:
    went = " and runs" if start else "; it has not been started"
    told = f" · {run.verification.line}" if run.verification is not None else ""
    return {"phase": "done", "text": f"forked as {run.run_id}{went}{told}", "open": run.run_id}


def _entry(run: RunModel, message: Message) -> AnyEntry:
    offset, entries = message.get("offset"), run.journal.entries
    if not isinstance(offset, int) or not 0 <= offset < len(entries):
        raise KassetteError("there is no such entry. Nothing was written.")
    return entries[offset]


def _override(entry: Step, text: str, is_json: bool) -> JSON:
    """Return the new result that a text means: a text where the old one was, else JSON."""
    old = values.decode(entry.result) if entry.error is None else None
    if isinstance(old, str) and not is_json:
        return text
    return _json(text, f"the new result of {entry.step_id!r}")


def _go_on(run: RunModel, message: Message) -> Message:
    run.resume()
    return {"phase": "done", "text": "the run goes on here"}


def _cancel(run: RunModel, message: Message) -> Message:
    run.cancel(reason=_text(message, "reason"))
    return {"phase": "done", "text": "cancelled"}


def _unknown(verb: str) -> Message:
    return {"phase": "refused", "text": f"this version has no action {verb!r}; nothing was done."}


def _json(text: str, what: str) -> JSON:
    try:
        return msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        bare = text.strip()[:1].isalpha() or text.strip().startswith("'")
        hint = " Texts need double quotes." if bare else ""
        raise JournalValueError(
            f"{what} is not valid JSON: {problem}.{hint} Nothing was recorded.",
            path="$",
            reason=str(problem),
        ) from None


def _text(message: Message, name: str) -> str | None:
    value = message.get(name)
    return None if value is None else str(value)


#: The code loaded here, or the files that are there, are not those of the record.
_UNFIT = (
    ReplayMismatchError, VersionMismatchError, MetadataMismatchError, WorkspaceChangedError
)  # fmt: skip
_ANSWERS = frozenset({"approve", "reject", "respond", "settle"})
_VERBS: dict[str, Callable[[RunModel, Message], Message]] = {
    "approve": _decide,
    "reject": _decide,
    "respond": _respond,
    "settle": _settle,
    "fork": _fork,
    "other": _other,
    "retry": _retry,
    "go_on": _go_on,
    "cancel": _cancel,
    "verify": _verify,
}
