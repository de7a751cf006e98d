"""The ways on where the loaded code does not fit what is recorded: each says what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..entries import Intent, Step, Suspend
from ..errors import (
    KassetteError,
    ReplayMismatchError,
    VersionMismatchError,
    WorkspaceChangedError,
)
from ..model import RunModel
from ..text import visible
from . import code, forking

Message = dict[str, Any]
Line = Callable[[Message], str | None]
#: What belongs to one click or one page, not to what is done.
_OF_THE_CLICK = ("type", "n", "view", "ch")


def for_answer(
    run: RunModel, message: Message, problem: KassetteError, line: Line
) -> list[Message]:
    """Return what can be done with an answer that was refused because the code does not fit.

    Args:
        run: The run.
        message: The click that was refused.
        problem: Why.
        line: Returns the code of a click.

    Returns:
        Buttons: ``label``, ``text``, the ``message`` of the click, its code ``line``.
    """
    again = {name: value for name, value in message.items() if name not in _OF_THE_CLICK}
    only = {**again, "start": False}
    found = [
        {
            "label": "Record only",
            "text": "the answer is recorded and nothing runs; the run goes on when code that fits "
            "what is recorded is next started",
            "message": only,
            "line": line(only),
        }
    ]
    if message.get("verb") != "settle" and isinstance(
        problem, VersionMismatchError | WorkspaceChangedError
    ):
        inside = {**again, "fork": True}
        kept = _kept(run, message)
        found.append(
            {
                "label": "Answer in a fork",
                "text": f"a new run{kept} has the answer and goes on with the code loaded here; "
                "in this run the question stays open",
                "message": inside,
                "line": line(inside),
            }
        )
    return found + for_divergence(run, problem, line)


def for_divergence(run: RunModel, problem: KassetteError, line: Line) -> list[Message]:
    """Return the fork that begins where the code differs, if it says where that is."""
    offset = problem.offset if isinstance(problem, ReplayMismatchError) else None
    entries, folded = run.journal.entries, run.fold()
    if offset is None or not 0 < offset < len(entries):
        return []
    entry = entries[offset]
    step_id = getattr(entry, "step_id", None)
    if isinstance(entry, Suspend):
        step_id = step_id or entry.event_name
    if not isinstance(entry, Step | Suspend | Intent) or step_id is None:
        return []
    message = {"verb": "fork", "offset": offset, "start": True}
    offer = forking.offers(entries, folded, offset, code.run(run.storage.url, run.run_id))
    waits = folded.status == "suspended"
    return [
        {
            "label": "Ask again in a fork" if waits else "Fork there and run",
            "text": f"a new run that begins where the code differs: {offer['fork_text']}"
            + ("; what it asks then is asked there" if waits else ""),
            "message": message,
            "line": line(message),
        }
    ]


def _kept(run: RunModel, message: Message) -> str:
    asked = next((q for q in run.fold().waits if q.step_id == message.get("id")), None)
    if asked is None:
        return ""
    kept = [step for step in run.fold().steps if step.offset < asked.offset]
    count = f"{len(kept)} step{'s' * (len(kept) != 1)}"
    return visible(f" that keeps {count} up to `{asked.step_id}`")
