"""What a run hands out about its journal: a recorded step, an open question."""

from __future__ import annotations

from datetime import datetime

import msgspec

from . import values
from .clock import instant
from .diff import readable
from .entries import ErrorInfo, Intent, Step, Usage
from .journal import Journal
from .llm.conversation import Conversation, conversations
from .state import Pending
from .text import visible
from .values import JSON


def intent_of(journal: Journal, step: Step) -> Intent | None:
    """Return the newest intent before a tool's result: its arguments stand there only."""
    own = (e for e in reversed(journal.entries[: step.offset]) if isinstance(e, Intent))
    return next((e for e in own if e.step_id == step.step_id), None)


class RecordedStep:
    """One recorded step of a run."""

    def __init__(self, run_id: str, journal: Journal, entry: Step) -> None:
        self._run_id = run_id
        self._journal = journal
        self._entry = entry

    def __repr__(self) -> str:
        return f"<step {self._entry.step_id!r} of run {self._run_id!r}>"

    @property
    def value(self) -> JSON:
        """The recorded result, decoded; None for a step that failed."""
        return values.decode(self._entry.result, what=f"result of {self._entry.step_id!r}")

    @property
    def text(self) -> str:
        """The recorded result, or the error, for people to read.

        A text as it is, anything else as indented JSON; hidden characters are spelled out.
        """
        failed = self._entry.error
        if failed is None:
            return visible(readable(self._entry.result))
        trace = f"\n\n{failed.traceback}" if failed.traceback else ""
        return visible(f"{failed.name}: {failed.message}{trace}")

    @property
    def args(self) -> JSON:
        """The arguments as kept for people to read; None where none were kept.

        A tool's are those of its intent, in canonical form.
        """
        intent = self._intent
        kept = intent.args if intent is not None else self._entry.args
        return values.decode(kept, what=f"arguments of {self._entry.step_id!r}")

    @property
    def idempotency_key(self) -> str | None:
        """The key that a tool was called with; None for a call without protection, and a step."""
        intent = self._intent
        return intent.idempotency_key if intent is not None else None

    @property
    def error(self) -> ErrorInfo | None:
        """The exception that the step's function raised."""
        return self._entry.error

    @property
    def conversations(self) -> list[Conversation]:
        """What was said to models: in the model call that this is, or in those made inside."""
        return conversations(self._entry)

    @property
    def usage(self) -> Usage | None:
        """What it spent."""
        return self._entry.usage

    @property
    def _intent(self) -> Intent | None:
        return intent_of(self._journal, self._entry)

    @property
    def entry(self) -> dict[str, JSON]:
        """The whole recorded line, decoded."""
        line: dict[str, JSON] = msgspec.json.decode(self._journal.line(self._entry.offset))
        return line


class Question(msgspec.Struct, frozen=True):
    """A suspension that waits for an answer; ``since`` is when it was first asked, in UTC."""

    step_id: str
    event: str
    prompt: str | None
    context: JSON
    schema: JSON
    since: datetime


def question(pending: Pending) -> Question:
    """Return a pending suspension, decoded."""
    name = pending.step_id
    return Question(
        name,
        pending.event,
        pending.prompt,
        values.decode(pending.context, what=f"context of {name!r}"),
        values.decode(pending.schema, what=f"schema of {name!r}"),
        instant(pending.since),
    )
