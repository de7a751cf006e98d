"""The state of a run as a pure fold over its journal, the clock and the lock.

Nothing is stored besides the journal: whatever shows or decides something about a run asks here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec
from msgspec import UNSET, field
from msgspec.structs import replace

from .clock import instant
from .entries import (
    INCOMPLETE,
    AnyEntry,
    Cancel,
    Complete,
    Failure,
    Foreign,
    Intent,
    Note,
    Payload,
    Resume,
    Start,
    Step,
    Suspend,
)
from .usage import unpriced

COMPLETED = "completed"
FAILED = "failed"
CANCELLED = "cancelled"
SUSPENDED = "suspended"
INTERRUPTED = "interrupted"
READY = "ready"
RUNNING = "running"
#: States in which a run takes no more entries.
TERMINAL = frozenset({COMPLETED, FAILED, CANCELLED})
#: An ending in a form that is not ours still ends the run: its type says so.
_FOREIGN_ENDINGS = {"complete": COMPLETED, "error": FAILED, "cancel": CANCELLED}
#: Events the runtime waits for itself; workflows cannot use these names.
TIMER, BUDGET, IN_DOUBT = "timer", "budget", "in-doubt"
RESERVED_EVENTS = frozenset({TIMER, BUDGET, IN_DOUBT})


class Pending(msgspec.Struct):
    """A suspension without an answer. ``since`` is when it was first asked."""

    event: str
    step_id: str
    offset: int
    since: str
    prompt: str | None = None
    schema: Payload = UNSET
    context: Payload = UNSET
    deadline: str | None = None
    expired: bool = False


class Decision(msgspec.Struct):
    """A recorded answer."""

    event: str
    step_id: str
    offset: int
    at: str
    value: Payload
    by: str | None
    note: str | None


class Session(msgspec.Struct):
    """One attempt by one process. ``opened_by``: start, resume, fork or cancel."""

    number: int
    offset: int
    at: str
    last: str
    opened_by: str


class Spend(msgspec.Struct):
    """Tokens, dollars and calls without a known price. None: nothing was recorded."""

    tokens: int | None = None
    cost_usd: float | None = None
    unpriced: int = 0

    def add(self, step: Step) -> None:
        """Count a step's usage."""
        usage = step.usage
        if usage is None:
            return
        if usage.input_tokens is not None or usage.output_tokens is not None:
            spent = (usage.input_tokens or 0) + (usage.output_tokens or 0)
            self.tokens = (self.tokens or 0) + spent
        self.unpriced += unpriced(usage)
        if usage.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + usage.cost_usd


class RunState(msgspec.Struct):
    """All that a journal says about its run.

    ``opening`` is line 0, ``latest`` the newest `Start` that counts for version and label. Lines
    before ``copied`` come from the run that this one was forked from.
    """

    status: str
    opening: Start
    latest: Start | None
    copied: int
    length: int
    started: str
    updated: str
    steps: list[Step] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    doubts: list[Intent] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    foreign: list[Foreign] = field(default_factory=list)
    own: Spend = field(default_factory=Spend)
    prefix: Spend = field(default_factory=Spend)
    ending: Complete | Failure | Cancel | None = None

    @property
    def terminal(self) -> bool:
        """Whether the run has ended."""
        return self.status in TERMINAL

    @property
    def questions(self) -> list[Pending]:
        """The pending suspensions that the workflow itself asked for."""
        return [p for p in self.pending if p.event not in RESERVED_EVENTS]

    @property
    def waits(self) -> list[Pending]:
        """The pending suspensions that a person can answer: doubts and budgets, too."""
        return [p for p in self.pending if p.event != TIMER]


class Events:
    """Matches answers to suspensions by step id, counting for those that carry none."""

    def __init__(self) -> None:
        self.suspends: dict[str, Suspend] = {}
        self.answers: dict[str, Resume] = {}
        self._counts: dict[str, int] = {}

    def suspended(self, entry: Suspend) -> str:
        """Take a suspension and return its step id."""
        step_id = entry.step_id
        if step_id is None:
            count = self._counts[entry.event_name] = self._counts.get(entry.event_name, 0) + 1
            step_id = entry.event_name if count == 1 else f"{entry.event_name}#{count}"
        if entry.event_name == IN_DOUBT and self.answers.pop(step_id, None) is not None:
            # It was answered before the attempt that is in doubt now, perhaps without having been
            # asked; this is another question.
            self.suspends.pop(step_id, None)
        self.suspends.setdefault(step_id, entry)
        return step_id

    def resumed(self, entry: Resume) -> str:
        """Take an answer and return the step id that it answers; the first answer counts.

        Of a tool in doubt it is the newest: each attempt may be decided, asked about or not.
        """
        step_id = entry.step_id
        if step_id is None:
            waiting = (
                known
                for known, suspend in self.suspends.items()
                if suspend.event_name == entry.event_name and known not in self.answers
            )
            step_id = next(waiting, entry.event_name)
        if entry.event_name == IN_DOUBT:
            self.answers[step_id] = entry
        elif entry.event_name != BUDGET:  # asked for by no call, though one may have its id
            self.answers.setdefault(step_id, entry)
        return step_id


def fold(lines: Sequence[AnyEntry], now: datetime, held: bool) -> RunState:
    """Return the state that a journal means.

    Args:
        lines: A verified journal's entries; at least one.
        now: The present, for timers and deadlines.
        held: Whether a session holds the run.
    """
    folding = Folding(lines[0])
    folding.take(lines)
    return folding.state(now, held)


class Folding:
    """The fold, entry by entry: whoever follows a journal gives it only what is new.

    Args:
        first: Line 0.

    Attributes:
        last: The newest entry taken, None before the first.
    """

    def __init__(self, first: AnyEntry) -> None:
        assert isinstance(first, Start), "a verified journal begins with a start entry"
        copied = first.source.from_offset if first.source else 0
        self.last: AnyEntry | None = None
        self._state = RunState("", first, None, copied, 0, first.timestamp, first.timestamp)
        self._events = Events()
        self._intents: dict[str, Intent] = {}
        self._doubts: dict[str, Intent] = {}
        self._group: dict[str, Suspend] = {}
        self._grouping = False

    @property
    def taken(self) -> int:
        """How many entries were taken."""
        return self._state.length

    def fits(self, lines: Sequence[AnyEntry]) -> bool:
        """Tell whether a journal begins with what was taken, the same objects."""
        taken = self.taken
        return taken <= len(lines) and (not taken or lines[taken - 1] is self.last)

    def take(self, lines: Sequence[AnyEntry]) -> None:
        """Take the next entries."""
        state, doubts, copied = self._state, self._doubts, self._state.copied
        scope = state.opening.scope_from or 0
        sessions, steps = state.sessions, state.steps
        number = sessions[-1].number if sessions else 0
        before = self.last
        # Whole folders are folded here: most lines are steps of the session that is open.
        for entry in lines:
            if entry.session != number:
                if before is not None:
                    sessions[-1].last = before.timestamp
                sessions.append(_opened(entry, copied))
                number = entry.session
            before = entry
            if isinstance(entry, Step):
                self._grouping = False
                steps.append(entry)
                if doubts:
                    doubts.pop(entry.step_id, None)
                if self._group:
                    self._decided(entry.step_id)
                if entry.usage is not None:
                    (state.prefix if entry.offset < copied else state.own).add(entry)
            elif isinstance(entry, Suspend):
                self._suspended(entry)
                continue
            elif isinstance(entry, Resume):
                self._resumed(entry)
            elif isinstance(entry, Start):
                if entry.offset >= copied:
                    state.latest = entry
            elif isinstance(entry, Intent):
                if entry.offset >= scope:
                    self._intents[entry.step_id] = doubts[entry.step_id] = entry
                    self._decided(entry.step_id)
            elif isinstance(entry, Foreign):
                state.foreign.append(entry)
            elif not isinstance(entry, Note):
                state.ending = entry
            elif entry.kind == INCOMPLETE:
                (state.prefix if entry.offset < copied else state.own).unpriced += 1
            self._grouping = False
        if before is not None:
            self.last = before
            sessions[-1].last = before.timestamp
            state.length += len(lines)

    def state(self, now: datetime, held: bool) -> RunState:
        """Return what the entries taken so far mean; what is taken later leaves it as it is."""
        last, known = self.last, self._state
        assert last is not None, "a journal has at least one entry"
        state = replace(
            known,
            updated=last.timestamp,
            steps=list(known.steps),
            decisions=list(known.decisions),
            doubts=list(self._doubts.values()),
            sessions=[*known.sessions[:-1], replace(known.sessions[-1])],
            foreign=list(known.foreign),
            own=replace(known.own),
            prefix=replace(known.prefix),
        )
        if state.ending is None:
            suspends = self._events.suspends
            state.pending = [_pending(i, e, suspends[i], now) for i, e in self._group.items()]
        state.status = _status(last, state, held)
        return state

    def _suspended(self, entry: Suspend) -> None:
        if not self._grouping:
            self._group, self._grouping = {}, True
        step_id = self._events.suspended(entry)
        scope = self._state.opening.scope_from or 0
        if entry.event_name != IN_DOUBT or entry.offset >= scope:
            self._group[step_id] = entry  # else about a call that is not this run's
        if entry.event_name == IN_DOUBT and step_id in self._intents:
            self._doubts[step_id] = self._intents[step_id]

    def _decided(self, step_id: str) -> None:
        """Take back a question of doubt that newer code has decided by itself."""
        asked = self._group.get(step_id)
        if asked is not None and asked.event_name == IN_DOUBT:
            del self._group[step_id]

    def _resumed(self, entry: Resume) -> None:
        step_id = self._events.resumed(entry)
        self._group.pop(step_id, None)
        if entry.event_name == IN_DOUBT:
            self._doubts.pop(step_id, None)
        self._state.decisions.append(
            Decision(
                entry.event_name,
                step_id,
                entry.offset,
                entry.timestamp,
                entry.value,
                entry.by,
                entry.note,
            )
        )


def _opened(entry: AnyEntry, copied: int) -> Session:
    if isinstance(entry, Resume):
        opened_by = "resume"
    elif isinstance(entry, Cancel):
        opened_by = "cancel"
    else:
        opened_by = "fork" if copied and entry.offset == copied else "start"
    return Session(entry.session, entry.offset, entry.timestamp, entry.timestamp, opened_by)


def _pending(step_id: str, entry: Suspend, first: Suspend, now: datetime) -> Pending:
    return Pending(
        entry.event_name,
        step_id,
        entry.offset,
        first.timestamp,
        entry.prompt,
        entry.schema,
        entry.context,
        entry.deadline,
        _past(entry.deadline, now),
    )


def _past(deadline: str | None, now: datetime) -> bool:
    try:
        return deadline is not None and instant(deadline) <= now
    except ValueError:
        return False  # a foreign writer's deadline that nobody can read never passes


def _status(last: AnyEntry, state: RunState, held: bool) -> str:
    if isinstance(last, Complete):
        return COMPLETED
    if isinstance(last, Failure):
        return FAILED
    if isinstance(last, Cancel):
        return CANCELLED
    if isinstance(last, Foreign) and last.type in _FOREIGN_ENDINGS:
        return _FOREIGN_ENDINGS[last.type]
    if held:
        return RUNNING
    if isinstance(last, Foreign):
        return SUSPENDED if last.type == "suspend" else INTERRUPTED
    if state.copied and state.length <= max(1, state.copied):
        return READY
    if isinstance(last, Suspend):
        if last.more:
            return INTERRUPTED
        due = any(p.event == TIMER and p.expired for p in state.pending)
        return READY if due else SUSPENDED
    return READY if isinstance(last, Resume) else INTERRUPTED


def overdue(state: RunState) -> str | None:
    """Return the question of an open run that nobody answered in time, or None."""
    late = (question.step_id for question in state.questions if question.expired)
    return None if state.terminal else next(late, None)


def replay_blocker(foreign: Iterable[Foreign]) -> str | None:
    """Return why a journal with these entries cannot be replayed, or None."""
    for entry in foreign:
        return f"entry {entry.offset} {entry.reason}"
    return None
