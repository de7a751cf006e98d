"""What the inspector shows of one entry, part by part."""

from __future__ import annotations

import json
from typing import Any

from msgspec import UNSET

from .. import values
from ..entries import (
    AnyEntry,
    Cancel,
    Complete,
    Failure,
    Intent,
    Note,
    Resume,
    Start,
    Step,
    Suspend,
)
from ..errors import JournalValueError
from ..journal import Journal
from ..llm.conversation import broken_off, conversations
from ..preview import decided
from ..recorded import intent_of
from ..state import RunState
from ..text import visible
from .conversation import conversation
from .present import FIRST, Value, nothing, present, sized, text_value

Message = dict[str, Any]
#: Arguments that name a file; what it is called says how its text is to be read.
_FILE_NAMES = ("path", "file", "filename", "file_path")


def part(journal: Journal, folded: RunState, offset: object, name: object, whole: bool) -> Value:
    """Return one part of an entry for the page.

    Args:
        journal: The run's journal.
        folded: What it means.
        offset: The entry.
        name: ``result``, ``args``, ``context``, ``files``, ``usage`` or ``entry``.
        whole: All of it, not only the first 20 kB.
    """
    if not isinstance(offset, int) or not 0 <= offset < len(journal.entries):
        return nothing("there is no such entry")
    entry = journal.entries[offset]
    if name == "entry":
        line = journal.line(offset).decode(errors="replace").rstrip("\n")
        return text_value(line, "json", whole=whole)
    if name == "usage":
        return _usage(entry)
    if name == "args":
        return _args(journal, entry, whole)
    if name == "context" and isinstance(entry, Suspend):
        return present(entry.context, whole=whole, missing="the question carries no context")
    if isinstance(entry, Suspend):
        return _answer(folded, entry, whole)
    if isinstance(entry, Note) or (
        isinstance(entry, Step) and entry.kind == "llm" and entry.error is None
    ):
        previous = _previous_call(folded, entry) if isinstance(entry, Step) else None
        told = conversation(entry, previous, whole)
        if told is not None:
            if isinstance(entry, Note) and (broken := broken_off(entry)) is not None:
                told["note"] = visible(broken.finish_reason or "")
            return told
    return _result(entry, whole)


def _previous_call(folded: RunState, entry: Step) -> Step | None:
    """Return the model call before this one on its branch."""
    branch = entry.step_id.rpartition("/")[0]
    earlier = (
        step
        for step in reversed(folded.steps)
        if step.kind == "llm"
        and step.offset < entry.offset
        and step.step_id.rpartition("/")[0] == branch
    )
    return next(earlier, None)


def _answer(folded: RunState, entry: Suspend, whole: bool) -> Value:
    step_id = entry.step_id or entry.event_name
    decision = next((d for d in folded.decisions if d.step_id == step_id), None)
    if decision is None:
        if any(pending.step_id == step_id for pending in folded.waits):
            return nothing("no answer yet; the question and what it is about stand above")
        return nothing("no answer was recorded")
    shown = present(decision.value, whole=whole)
    by = f" by {decision.by}" if decision.by else ""
    note = f" · “{decision.note}”" if decision.note else ""
    shown["note"] = visible(f"{decided(decision.value)}{by}, entry {decision.offset}{note}")
    return shown


def _result(entry: AnyEntry, whole: bool) -> Value:
    if isinstance(entry, Step | Failure) and entry.error is not None:
        return _error(entry, whole)
    if isinstance(entry, Step):
        return present(entry.result, whole=whole, name=_file_name(entry))
    if isinstance(entry, Complete):
        return present(entry.result, whole=whole)
    if isinstance(entry, Intent):
        return nothing(
            "no result is recorded: it acts now, or it is not known whether it has acted"
        )
    if isinstance(entry, Note):
        return present(entry.data, whole=whole, missing="the note carries no data")
    if isinstance(entry, Resume):
        return present(entry.value, whole=whole)
    if isinstance(entry, Cancel):
        return text_value(visible(entry.reason or "no reason was given"))
    return nothing("shown as it is under Entry")


def _error(entry: Step | Failure, whole: bool) -> Value:
    """Return what was raised, what it was called with, and where it came from."""
    error = entry.error
    assert error is not None, "asked for by the caller"
    trace = error.traceback or (entry.traceback if isinstance(entry, Failure) else None)
    shown = sized("error", visible(error.message), whole)
    shown["name"] = visible(error.name)
    shown["traceback"] = visible(trace[-FIRST:]) if trace else None
    if isinstance(entry, Step) and entry.args is not UNSET:
        shown["args"] = present(entry.args)
    return shown


def _args(journal: Journal, entry: AnyEntry, whole: bool) -> Value:
    missing = "not recorded: none were given, or JSON cannot carry them in 8 kB"
    if isinstance(entry, Suspend):
        return present(entry.context, whole=whole, missing="the question carries no context")
    if isinstance(entry, Step) and (said := conversations(entry)):
        parts = [*map(str, said)]
        if schemas := [tool for call in said for tool in call.schemas]:
            # Last: they are long, and a person looks for what was said.
            parts.append(f"tools:\n{json.dumps(schemas, indent=2, ensure_ascii=False)}")
        return text_value(visible("\n\n———\n\n".join(parts)), whole=whole)
    if isinstance(entry, Step) and entry.kind == "tool":
        entry = intent_of(journal, entry) or entry
    payload = entry.metadata if isinstance(entry, Start) else getattr(entry, "args", UNSET)
    return present(payload, whole=whole, missing=missing)


def _file_name(entry: Step) -> str | None:
    if entry.args is UNSET:
        return None
    try:
        args = values.decode(entry.args)
    except JournalValueError:
        return None
    if isinstance(args, list) and args:
        args = args[-1] if isinstance(args[-1], dict) else {}
    if not isinstance(args, dict):
        return None
    return next((n for k in _FILE_NAMES if isinstance(n := args.get(k), str)), None)


def _usage(entry: AnyEntry) -> Value:
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
    return text_value(visible("\n".join([*lines, f"cost           {cost}"])))


def _count(number: int | None) -> str:
    return "not recorded" if number is None else f"{number:,}"
