"""``ctx.step`` and the recorded values of time and chance."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from msgspec import UNSET, Raw

from . import retry, typed, values
from .branch import Branch
from .calls import Outcome, ThreadCall, awaited, is_async, settle
from .clock import instant, stamp_now
from .codehash import code_hash
from .entries import Note, Payload, Step, Usage
from .errors import InDoubtError, JournalValueError, KassetteError, StepFailedError
from .failures import describe, told
from .options import Options
from .redact import redact
from .replay import check_name
from .session import Session
from .usage import Tally, WithUsage, running
from .values import JSON

#: Arguments are kept for people to read; larger ones (bytes of JSON) would make a journal grow
#: with the square of a conversation's length.
ARGS_LIMIT = 8 * 1024
#: Writes what a function did into its entry; see `fill`.
Fill = Callable[[Session, Step, Tally, Options, Outcome], None]


async def step(
    session: Session,
    branch: Branch,
    options: Options,
    name: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """See `Context.step`."""
    with session.call(branch, "step", name):
        step_id = branch.names.take(name)
        session.cursor.ask(branch.path, step_id, "step")
        return await settled(session, branch, options, step_id, name, fn, args, kwargs)


async def settled(
    session: Session,
    branch: Branch,
    options: Options,
    step_id: str,
    name: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    block: bool = False,
) -> Any:
    """Return what is recorded under ``step_id``, or run ``fn`` and record it."""
    recorded = session.cursor.steps.get(step_id)
    if recorded is not None:
        session.replayed += 1
        return result(recorded, options.returns)
    coroutine = is_async(fn)
    refuse_timeout(options, name, coroutine)
    if branch.path not in session.live:
        session.go_live(branch.path, f"step {step_id!r}")
    session.afford(step_id)
    entry = Step(
        session=session.number,
        step_id=step_id,
        name=check_name(name),
        kind="step",
        started_at=stamp_now(session.clock),
        args=_readable(fn, args, kwargs) if options.record_args and (args or kwargs) else UNSET,
        code_hash=code_hash(fn),
        parallel=block,
    )
    await perform(session, entry, options, coroutine, fn, args, kwargs, fill)
    written = session.record(entry)
    if written is not None:
        await written
    return result(entry, options.returns)


def refuse_timeout(options: Options, name: str, coroutine: bool) -> None:
    """Refuse to limit the time of a plain function.

    Raises:
        JournalValueError: ``timeout`` is set, and the function runs in a thread.
    """
    if options.timeout is not None and not coroutine:
        raise JournalValueError(
            f"step {name!r}: timeout= works for async functions only; a thread cannot be stopped. "
            "Nothing was recorded.",
            path="timeout",
            reason="not an async function",
        )


async def perform(
    session: Session,
    entry: Step,
    options: Options,
    coroutine: bool,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fill: Fill,
) -> None:
    """Call a step's function and fill in what it did; the caller records the entry.

    A thread whose caller is interrupted meanwhile fills in and records its entry itself.

    Raises:
        BaseException: An interruption, or a value that cannot be recorded.
    """
    tally = Tally(session)
    outer = running.get()
    running.set(tally)
    try:
        if not coroutine:
            done = partial(fill, session, entry, tally, options)
            outcome = await _threaded(session, entry, partial(fn, *args, **kwargs), options, done)
        elif options.retry is None and options.timeout is None:
            outcome = await settle(fn, *args, **kwargs)
        else:
            call = partial(fn, *args, **kwargs)
            outcome = await settle(_awaited, session, entry, call, options)
    finally:
        running.set(outer)
    if tally.open:
        await tally.release()
    fill(session, entry, tally, options, outcome)


async def value(session: Session, branch: Branch, name: str, make: Callable[[], JSON]) -> JSON:
    """Return a value of the moment that is recorded once (kind ``value``)."""
    with session.call(branch, f"{name}()"):
        step_id = branch.names.take(name)
        session.cursor.ask(branch.path, step_id, "step")
        recorded = session.cursor.steps.get(step_id)
        if recorded is not None:
            session.replayed += 1
            return result(recorded)
        session.go_live(branch.path, f"{name}() as {step_id!r}")
        entry = Step(
            session=session.number,
            step_id=step_id,
            name=name,
            kind="value",
            result=values.encode(make()),
        )
        written = session.record(entry)
        if written is not None:
            await written
        return result(entry)


async def now(session: Session, branch: Branch) -> datetime:
    """See `Context.now`."""
    return instant(await value(session, branch, "now", lambda: stamp_now(session.clock)))


async def chance(session: Session, branch: Branch) -> float:
    """See `Context.random`."""
    drawn: float = await value(session, branch, "random", random.random)
    return drawn


async def unique(session: Session, branch: Branch) -> str:
    """See `Context.uuid`."""
    made: str = await value(session, branch, "uuid", lambda: str(uuid.uuid4()))
    return made


def result(entry: Step, declared: Any = None) -> Any:
    """Return what a recorded step hands to the workflow.

    Raises:
        StepFailedError: Its function raised.
    """
    if entry.error is not None:
        failed = InDoubtError if entry.error.name == "InDoubtError" else StepFailedError
        raise failed(
            f"{entry.kind or 'step'} {entry.step_id!r} failed: "
            f"{entry.error.name}: {entry.error.message}",
            step_id=entry.step_id,
            name=entry.error.name,
            message=entry.error.message,
        )
    if declared is None:
        return values.decode(entry.result, what=entry.step_id)
    return typed.decode(entry.result, declared, what=f"result of step {entry.step_id!r}")


async def _awaited(session: Session, entry: Step, call: Callable[[], Any], options: Options) -> Any:
    async def attempt() -> Any:
        if options.timeout is None:
            return await call()
        scope = asyncio.timeout(options.timeout)
        try:
            async with scope:
                return await call()
        except TimeoutError:
            if scope.expired():
                raise TimeoutError(f"no result within {options.timeout} s") from None
            raise

    if options.retry is None:
        return await attempt()
    return await retry.attempts(options.retry, attempt, _teller(session, entry))


async def _threaded(
    session: Session,
    entry: Step,
    call: Callable[[], Any],
    options: Options,
    fill: Callable[[Outcome], None],
) -> Outcome:
    if options.retry is not None:
        teller = _teller(session, entry)
        call = partial(retry.attempts_blocking, options.retry, call, teller)

    def late(outcome: Outcome) -> None:
        # Its caller was interrupted, but what it did is done and paid for.
        try:
            if asyncio.iscoroutine(outcome.value):
                outcome.value.close()  # nobody awaits it any more, so it has done nothing
                return
            fill(outcome)
            session.record_now(entry)
        except BaseException as problem:
            session.close(problem)
        finally:
            session.leave()

    thread = ThreadCall(session.workers, late)
    session.enter()
    outcome = await thread.run(call)
    session.leave()
    if asyncio.iscoroutine(outcome.value):  # a lambda around an async function
        return await settle(awaited, outcome.value)
    return outcome


def fill(session: Session, entry: Step, tally: Tally, options: Options, outcome: Outcome) -> None:
    """Write what a function did into its step's entry.

    Raises:
        BaseException: An interruption, or a value that cannot be recorded.
    """
    error = outcome.error
    spent: Usage | None = None
    if error is None:
        returned = outcome.value
        if isinstance(returned, WithUsage):
            returned, spent = returned.value, returned.usage
            if spent.model is not None and entry.kind == "step":
                entry.kind = "llm"
        what = f"result of {entry.kind} {entry.step_id!r}"
        entry.result = typed.encode(returned, options.returns, what=what, limit=session.max_payload)
    elif isinstance(error, (KeyboardInterrupt, asyncio.CancelledError, *session.transient)) or (
        isinstance(error, KassetteError) and not isinstance(error, StepFailedError)
    ):
        raise error  # an interruption, weather, or a refusal of ours: nothing this step did
    else:
        entry.error = told(error)
    tally.left()
    entry.usage = tally.total(spent)
    if tally.seen and entry.kind == "step":
        entry.kind = "llm"
    if tally.calls:
        entry.calls = values.encode(tally.calls)


def _teller(session: Session, entry: Step) -> retry.Failed:
    def failed(number: int, error: BaseException) -> None:
        told = {
            "attempt": number,
            "error": describe(error).name,
            "message": describe(error).message,
        }
        session.record_now(
            Note(
                session=session.number,
                kind="attempt",
                step_id=entry.step_id,
                data=values.encode(told),
            )
        )

    return failed


def _readable(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Payload:
    """Return the arguments by name for people to read, or nothing where JSON cannot carry them."""
    code = getattr(fn, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code else ()
    if hasattr(fn, "__self__"):
        names = names[1:]
    named = {
        names[index] if index < len(names) else str(index): value
        for index, value in enumerate(args)
    }
    try:
        payload: Raw = values.encode(redact({**named, **kwargs}), limit=ARGS_LIMIT)
    except (JournalValueError, RecursionError):
        return UNSET
    return payload
