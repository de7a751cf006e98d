"""What a fork does and costs, in one line, before it happens; and the code that does it."""

from __future__ import annotations

from typing import Any

from ..budget import Budget, limits
from ..entries import AnyEntry, Failure, Intent, Resume, Start, Step, Suspend
from ..state import RunState
from ..text import visible
from . import code

Message = dict[str, Any]


def offers(entries: list[AnyEntry], folded: RunState, offset: int, target: str) -> Message:
    """Return what can be made of a step or a question: code lines, and what each fork does.

    Args:
        entries: The run's journal.
        folded: What it means.
        offset: The step, the question, or the intent of a tool.
        target: The code that names the run.

    Returns:
        ``lines`` by verb, ``fork_text``, and for a step ``override_text``, for a question
        ``other_text``; empty for an entry that nothing can be made of.
    """
    entry = entries[offset]
    if isinstance(entry, Step):
        step_id = entry.step_id
    elif isinstance(entry, Suspend | Intent):
        step_id = entry.step_id or entry.event_name if isinstance(entry, Suspend) else entry.step_id
    else:
        return {}
    cut = first_offset(entries, step_id, offset)
    shown = f"`{visible(step_id)}`"
    lines = {"fork": code.call(target, "fork", at=step_id, start=True)}
    again = "is asked again" if isinstance(entry, Suspend) else "runs again live"
    found: Message = {"lines": lines, "fork_text": _says(folded, entries, cut, f"{shown} {again}")}
    if isinstance(entry, Step):
        lines["value"] = code.value(target, step_id, failed=entry.error is not None)
        lines["override"] = f"{target}.fork(override={{{step_id!a}: ...}}, start=True)"
        keeps = f"{shown} has your result and what follows runs live"
        found["override_text"] = _says(folded, entries, entry.offset + 1, keeps)
    elif isinstance(entry, Suspend) and any(d.step_id == step_id for d in folded.decisions):
        lines["other"] = f"{target}.fork(at={step_id!a}, answer=..., start=True)"
        keeps = f"{shown} has the other answer and what follows runs live"
        found["other_text"] = _says(folded, entries, cut, keeps)
    return found


def retry_text(folded: RunState) -> str:
    """Return what a retry of a failed run keeps and repeats."""
    kept = [step for step in folded.steps if step.error is None]
    failed = folded.ending.step_id if isinstance(folded.ending, Failure) else None
    shown = f"`{visible(failed)}`" if failed else "the failed step"
    return (
        f"a new run that keeps {_steps(len(kept))}{_paid(kept)} and runs {shown} again with the "
        "same idempotency keys; this run stays on record"
    )


def first_offset(entries: list[AnyEntry], step_id: str, offset: int) -> int:
    """Return where a step begins: a tool's intent stands before its step."""
    for entry in reversed(entries[:offset]):
        if isinstance(entry, Intent) and entry.step_id == step_id:
            offset = entry.offset
    return offset


def _says(folded: RunState, entries: list[AnyEntry], cut: int, then: str) -> str:
    kept = [step for step in folded.steps if step.offset < cut]
    after = [step for step in folded.steps if step.offset >= cut]
    told = [f"keeps {_steps(len(kept))}{_paid(kept)}, {then}"]
    spent = _spent(after)
    if spent:
        told.append(f"the original spent {money(spent)} after this point")
    left = _left(entries, kept)
    if left:
        told.append(left)
    tools = {
        entry.step_id
        for entry in entries[cut:]
        if isinstance(entry, Intent) or (isinstance(entry, Step) and entry.kind == "tool")
    }
    if tools:
        told.append(f"{len(tools)} tool call{'s' * (len(tools) > 1)} may act again")
    return "; ".join(told)


def _steps(count: int) -> str:
    return f"{count} step{'s' * (count != 1)}"


def _paid(steps: list[Step]) -> str:
    cost = _spent(steps)
    return f" ({money(cost)}, not paid again)" if cost else ""


def _spent(steps: list[Step]) -> float:
    return sum(step.usage.cost_usd or 0.0 for step in steps if step.usage)


def _left(entries: list[AnyEntry], kept: list[Step]) -> str | None:
    """Return what is left of the budget for a fork, which carries its prefix's spend once."""
    found = limited(entries)
    told = []
    if found is not None and found.max_cost_usd is not None:
        told.append(money(max(0.0, found.max_cost_usd - _spent(kept))))
    if found is not None and found.max_steps is not None:
        told.append(_steps(max(0, found.max_steps - len(kept))))
    return f"budget left {' and '.join(told)}" if told else None


def limited(entries: list[AnyEntry]) -> Budget | None:
    """Return what limits a run now; only starts and answers say anything about that."""
    return limits([entry for entry in entries if type(entry) is Start or type(entry) is Resume])


def money(amount: float) -> str:
    """Return dollars as the page writes them: cents, and smaller parts only below one cent."""
    if 0 < amount < 0.01:
        return f"${amount:.4f}".rstrip("0")
    return f"${amount:,.2f}"
