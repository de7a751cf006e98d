"""What a run may spend, and the fold over its journal that says what it has spent.

A guard that starts again from zero after each crash is no guard: the count is taken from the
journal, failed steps and the prefix of a fork included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from .entries import INCOMPLETE, AnyEntry, Note, Payload, Resume, Start, Step, Suspend, Usage
from .errors import BudgetExceededError, JournalValueError
from .state import BUDGET, Spend
from .usage import unpriced, warn

#: The exact kinds that count as a step; values of the moment and sleeps cost nothing.
_FREE = frozenset({"value", "sleep"})
LIMITS = ("max_steps", "max_tokens", "max_cost_usd")
#: What an answer to a budget's question may be.
SCHEMA = {
    "type": "object",
    "properties": {
        "max_steps": {"type": ["integer", "null"], "minimum": 0},
        "max_tokens": {"type": ["integer", "null"], "minimum": 0},
        "max_cost_usd": {"type": ["number", "null"], "minimum": 0},
    },
    "additionalProperties": False,
    "minProperties": 1,
}


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Limits of a run; whoever reaches one starts no further live step.

    Args:
        max_steps: Recorded steps, tools and model calls, failed ones included; those that run
            count already.
        max_tokens: Input and output tokens together.
        max_cost_usd: US dollars. Calls without a known price cannot be counted: the first one is
            told in a warning, all of them in the question and in the panel's head; ``max_steps``
            limits them, too.
        on_exceeded: ``"ask"`` suspends the run with the event ``budget``, whose answer is new
            limits (``{"max_cost_usd": 2}``; those not named stay, null lifts one); ``"fail"``
            ends it with `BudgetExceededError`.

    Raises:
        JournalValueError: A limit is negative or not a number.
    """

    max_steps: int | None = None
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    on_exceeded: str = "ask"

    def __post_init__(self) -> None:
        for name in LIMITS:
            limit = getattr(self, name)
            kinds = (int, float) if name == "max_cost_usd" else (int,)
            # Exact types: JSON would not carry a numpy number.
            usable = type(limit) in kinds and math.isfinite(limit) and limit >= 0
            if limit is not None and not usable:
                wanted = "a plain number" if float in kinds else "a plain whole number"
                raise _refused(name, f"{name}={limit!r} is not {wanted}, 0 or more")
        if self.on_exceeded not in ("ask", "fail"):
            raise _refused(
                "on_exceeded", f"on_exceeded={self.on_exceeded!r} is neither 'ask' nor 'fail'"
            )

    def encoded(self) -> Raw:
        """Return the limits as a start entry carries them."""
        return Raw(msgspec.json.encode(self))


def _refused(path: str, reason: str) -> JournalValueError:
    return JournalValueError(f"budget: {reason}.", path=path, reason=reason)


def limits(
    lines: Sequence[AnyEntry], opening: Start | Resume | None = None, code: Budget | None = None
) -> Budget | None:
    """Return what limits a run now: the answers' limits over the latest start's, else the code's.

    Args:
        lines: A verified journal's entries.
        opening: The entry that is about to open a session.
        code: What the code that opens it says; a fork that begins with an answer has no other.

    Returns:
        None where nothing was ever set.
    """
    first = lines[0] if lines else opening
    source = first.source if isinstance(first, Start) else None
    copied = source.from_offset if source else 0
    scope = (first.scope_from or 0) if isinstance(first, Start) else 0
    base: Budget | None = None
    answers: list[Payload] = []
    for entry in [*lines, *([opening] if opening is not None else [])]:
        own = entry is opening or entry.offset >= copied
        if isinstance(entry, Start) and own:
            base = _recorded(entry.budget)
        elif (
            isinstance(entry, Resume)
            and _is_answer(entry)
            and (entry is opening or entry.offset >= scope)
        ):
            answers.append(entry.value)
    for answer in answers:
        base = _changed(base or code or Budget(), answer)
    return base or code


def _recorded(payload: Payload) -> Budget | None:
    if isinstance(payload, Raw):
        try:
            return msgspec.json.decode(payload, type=Budget)
        except (msgspec.DecodeError, JournalValueError):
            return None  # somebody else's idea of a budget limits nothing here
    return None


def _changed(base: Budget, answer: Payload) -> Budget:
    try:
        named: Any = msgspec.json.decode(answer) if isinstance(answer, Raw) else {}
        known = {name: named[name] for name in LIMITS if name in named}
        return replace(base, **known)
    except (msgspec.DecodeError, JournalValueError, TypeError):
        return base


class Excess(msgspec.Struct, frozen=True):
    """A limit that is reached: which, how much it allows, and what has been spent."""

    what: str
    limit: float
    spent: float


class Meter:
    """Counts what a run has spent, live steps in flight included.

    Args:
        run_id: The run, for errors and questions.
        lines: What is recorded.
        budget: What limits it.
        opening: The entry that is about to open a session.
    """

    def __init__(
        self,
        run_id: str,
        lines: Sequence[AnyEntry],
        budget: Budget,
        opening: Start | Resume | None = None,
    ) -> None:
        self.run_id = run_id
        self.budget = budget
        self.steps = 0
        self.spend = Spend()
        self._running: set[str] = set()
        self._told = False
        self._asked = 1 if opening is None else 1 + _is_answer(opening)
        for entry in lines:
            if isinstance(entry, Step):
                self._add(entry)
            elif isinstance(entry, Note):
                self._lose(entry)
            else:
                self._asked += _is_answer(entry)

    def begin(self, step_id: str) -> Excess | None:
        """Count a live step that is about to run; where a limit is reached, return that instead."""
        spent = {
            "max_steps": self.steps + len(self._running),
            "max_tokens": self.spend.tokens or 0,
            "max_cost_usd": self.spend.cost_usd or 0.0,
        }
        for what, amount in spent.items():
            limit = getattr(self.budget, what)
            if limit is not None and amount >= limit:
                return Excess(what, limit, amount)
        self._running.add(step_id)
        return None

    def count(self, entry: AnyEntry) -> None:
        """Count a step that is recorded, or a model call that broke off; nothing else counts.

        What the latter spent is not known, but it is paid for, and whoever asks again pays again:
        it counts as a step, of an unknown price.
        """
        if isinstance(entry, Step):
            self._running.discard(entry.step_id)
            self._add(entry)
            if entry.usage is not None:
                self._tell_uncounted(entry.step_id, entry.usage)
        elif isinstance(entry, Note) and self._lose(entry):
            self._tell_uncounted(entry.step_id, None)

    def _lose(self, note: Note) -> bool:
        lost = note.kind == INCOMPLETE
        if lost:
            self._running.discard(str(note.step_id))
            self.steps += 1
            self.spend.unpriced += 1
        return lost

    def _tell_uncounted(self, step_id: str | None, usage: Usage | None) -> None:
        """Warn, once a session, of spending that a limit does not see."""
        if self._told:
            return
        blind = []
        if self.budget.max_cost_usd is not None and (usage is None or unpriced(usage)):
            blind.append("price")
        if self.budget.max_tokens is not None and (usage is None or usage.output_tokens is None):
            blind.append("number of tokens")
        if blind:
            self._told = True
            why = "it broke off" if usage is None else f"model: {usage.model or 'not told'}"
            warn(
                f"run {self.run_id!r} has a budget, but what step {step_id!r} spent is not "
                f"counted in it: its {' and its '.join(blind)} {'are' if blind[1:] else 'is'} not "
                f"known ({why}). Set kb.llm.prices for the model, ask streams for their usage and "
                "read them to their end, or limit max_steps as well."
            )

    def error(self, over: Excess) -> BudgetExceededError:
        """Return the error of a run that is to fail."""
        return BudgetExceededError(
            f"run {self.run_id!r} has spent {_told(over.what, over.spent)} of its "
            f"{over.what}={_told(over.what, over.limit)}; no further step was started. Go on with "
            "a larger budget: fork() it and start the fork with_options(budget=…).",
            run_id=self.run_id,
            what=over.what,
            limit=over.limit,
            spent=over.spent,
        )

    def question(self, over: Excess, session: int) -> Suspend:
        """Return the suspension that asks for new limits."""
        unpriced = self.spend.unpriced
        calls = "1 call has" if unpriced == 1 else f"{unpriced} calls have"
        more = f", and {calls} no known price" if unpriced else ""
        if self._running:
            more += f"; {len(self._running)} of its steps were still running"
        prompt = (
            f"The budget is spent: {_told(over.what, over.spent)} of "
            f"{_told(over.what, over.limit)} ({over.what}){more}. Give new limits to go on."
        )
        context = {
            "exceeded": over.what,
            "limits": {n: getattr(self.budget, n) for n in LIMITS},
            "spent": {
                "steps": self.steps + len(self._running),
                "tokens": self.spend.tokens or 0,
                "cost_usd": self.spend.cost_usd or 0.0,
                "unpriced": unpriced,
            },
        }
        return Suspend(
            session=session,
            event_name=BUDGET,
            step_id=BUDGET if self._asked == 1 else f"{BUDGET}#{self._asked}",
            prompt=prompt,
            schema=Raw(msgspec.json.encode(SCHEMA)),
            context=Raw(msgspec.json.encode(context)),
        )

    def _add(self, step: Step) -> None:
        if step.kind not in _FREE:
            self.steps += 1
        self.spend.add(step)


def _is_answer(entry: AnyEntry) -> bool:
    return isinstance(entry, Resume) and entry.event_name == BUDGET


def _told(what: str, amount: float) -> str:
    if what != "max_cost_usd":
        return f"{amount:,} {what[4:]}"
    return f"${amount:,.2f}" if amount == 0 or amount >= 0.1 else f"${amount:.2g}"
