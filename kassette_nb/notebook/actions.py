"""What the buttons of a panel do: each is one method of the run.

A click can lose a race or be refused; it then says so, and nothing was written.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from .. import values
from ..entries import Step
from ..errors import JournalValueError, KassetteError
from ..model import RunModel
from ..values import JSON
from . import forms

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
    except KassetteError as refusal:
        reply = {"phase": "refused", "text": str(refusal)}
    except Exception as problem:
        # Jupyter would lose it: an exception in a widget's callback goes to a log nobody reads.
        reply = {
            "phase": "failed",
            "text": f"{type(problem).__name__}: {problem}",
            "traceback": traceback.format_exc(),
        }
    send({"type": "acted", "n": number, **reply})


def _decide(run: RunModel, message: Message) -> Message:
    decide = run.approve if message["verb"] == "approve" else run.reject
    decide(by=_text(message, "by"), note=_text(message, "note"), event=_text(message, "id"))
    return {"phase": "done", "text": f"{message['verb']}: recorded"}


def _respond(run: RunModel, message: Message) -> Message:
    event = _text(message, "id")
    question = next((q for q in run.fold().questions if q.step_id == event), None)
    fields = message.get("fields")
    if isinstance(fields, dict):
        schema = values.decode(question.schema) if question else None
        value = forms.answer(schema, {str(k): str(v) for k, v in fields.items()})
    else:
        value = _json(str(message.get("value_text", "")), "the answer")
    run.respond(value, by=_text(message, "by"), note=_text(message, "note"), event=event)
    return {"phase": "done", "text": "answer recorded"}


def _fork(run: RunModel, message: Message) -> Message:
    offset = message.get("offset")
    entries = run.journal.entries
    entry = entries[offset] if isinstance(offset, int) and 0 <= offset < len(entries) else None
    start = bool(message.get("start"))
    label = _text(message, "label") or None
    text = message.get("override_text")
    if text is None:
        made = run.fork(at=offset, start=start, label=label)
    elif isinstance(entry, Step):
        value = _override(entry, str(text), message.get("override_format") == "json")
        made = run.fork(override={entry.step_id: value}, start=start, label=label)
    else:
        raise KassetteError("only a step's result can be changed. Nothing was written.")
    went = "and runs" if start else "; it has not been started"
    told = f" · {made.verification.line}" if made.verification is not None else ""
    return {"phase": "done", "text": f"forked as {made.run_id} {went}{told}", "open": made.run_id}


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
        raise JournalValueError(
            f"{what} is not valid JSON: {problem}. Texts need double quotes. Nothing was recorded.",
            path="$",
            reason=str(problem),
        ) from None


def _text(message: Message, name: str) -> str | None:
    value = message.get(name)
    return None if value is None else str(value)


_VERBS: dict[str, Callable[[RunModel, Message], Message]] = {
    "approve": _decide,
    "reject": _decide,
    "respond": _respond,
    "fork": _fork,
    "go_on": _go_on,
    "cancel": _cancel,
}
