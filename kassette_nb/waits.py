"""``ctx.suspend`` and ``ctx.sleep``: waiting without a process."""

from __future__ import annotations

import math
from datetime import timedelta

from . import values
from .branch import Branch
from .clock import instant, stamp
from .entries import Step, Suspend
from .errors import JournalValueError, Suspended
from .redact import redact
from .replay import check_name
from .schema import check_schema
from .session import Session
from .state import RESERVED_EVENTS
from .steps import result
from .values import JSON

#: Sleeps up to this many seconds wait in the process; longer ones suspend the run.
SHORT = 30.0


async def suspend(
    session: Session,
    branch: Branch,
    event: str,
    prompt: str | None,
    schema: JSON,
    context: JSON,
    timeout: float | None,  # noqa: ASYNC109  # outlives the process
) -> JSON:
    """See `Context.suspend`."""
    with session.call(branch, "suspend", event):
        if event in RESERVED_EVENTS:
            raise JournalValueError(
                f"the event name {event!r} is reserved for the runtime; use another one.",
                path="event",
                reason="a reserved name",
            )
        step_id = branch.names.take(event)
        session.cursor.ask(branch.path, step_id, "suspend")
        recorded = session.cursor.answers.get(step_id)
        if recorded is not None:
            session.replayed += 1
            return values.decode(recorded.value, what=f"answer to {step_id!r}")
        asked = session.cursor.suspends.get(step_id)
        if asked is None:
            check_schema(schema, step_id)
        deadline = asked.deadline if asked is not None else None
        if asked is None and timeout is not None:
            deadline = stamp(session.clock.now() + timedelta(seconds=_seconds("timeout", timeout)))
        entry = Suspend(
            session=session.number,
            event_name=check_name(event),
            step_id=step_id,
            prompt=prompt,
            schema=session.optional(schema, f"schema of {step_id!r}"),
            context=session.optional(redact(context), f"context of {step_id!r}"),
            deadline=deadline,
        )
        session.go_live(branch.path, f"suspend {step_id!r}")
        answer = session.cursor.answers.get(step_id)
        if answer is not None:
            return values.decode(answer.value, what=f"answer to {step_id!r}")
        session.suspends.append(entry)
        raise Suspended(session.run_id, event)


async def sleep(session: Session, branch: Branch, seconds: float, short: float) -> None:
    """See `Context.sleep`."""
    with session.call(branch, "sleep"):
        step_id = branch.names.take("sleep")
        session.cursor.ask(branch.path, step_id, "step")
        entry = session.cursor.steps.get(step_id)
        if entry is None:
            wake = session.clock.now() + timedelta(seconds=_seconds("seconds", seconds))
            session.go_live(branch.path, f"sleep as {step_id!r}")
            entry = Step(
                session=session.number,
                step_id=step_id,
                name="sleep",
                kind="sleep",
                result=values.encode(stamp(wake)),
            )
            written = session.record(entry)
            if written is not None:
                await written
        else:
            session.replayed += 1
            if session.cursor.goes_on(branch.path):
                return  # something is recorded behind it: it was over
        try:
            wake = instant(str(result(entry)))
        except ValueError:
            raise JournalValueError(
                f"sleep {step_id!r} was recorded without a wake time; nothing was written.",
                path="$",
                reason="no wake time",
            ) from None
        left = (wake - session.clock.now()).total_seconds()
        if left <= 0:
            return
        if left > short:
            session.go_live(branch.path, f"sleep {step_id!r}")
            session.suspends.append(
                Suspend(
                    session=session.number,
                    event_name="timer",
                    step_id=step_id,
                    deadline=stamp(wake),
                )
            )
            raise Suspended(session.run_id, "timer")
        session.wait(f"sleep {step_id!r}")
        await session.clock.sleep(left)


def _seconds(what: str, value: object) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:  # type: ignore[arg-type, operator]
        raise JournalValueError(
            f"{what}={value!r} is not a number of seconds, 0 or more. Nothing was recorded.",
            path=what,
            reason="not a number of seconds",
        )
    return float(value)  # type: ignore[arg-type]  # checked above
