"""``ctx.tool``: a step with side effects, and what happens when it may have acted already.

The dangerous crash is the one between acting and recording. So the intent, with an idempotency
key, is durable before the function runs; an intent without a result is in doubt, and is decided,
never guessed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import UNSET, Raw, UnsetType

from . import typed, values
from .branch import Branch
from .calls import Outcome, is_async
from .canonical import canonical, idempotency_key, same
from .clock import stamp_now
from .codehash import code_hash
from .entries import ErrorInfo, Intent, Payload, Resume, Step, Suspend
from .errors import InDoubtError, JournalValueError, ReplayMismatchError, Suspended
from .failures import told
from .options import Options
from .redact import redact
from .replay import check_name
from .schema import DOUBT_SCHEMA
from .session import Session
from .state import IN_DOUBT
from .steps import fill, perform, refuse_timeout, result
from .usage import Tally

ON_DOUBT = ("retry", "ask", "fail")


async def tool(
    session: Session,
    branch: Branch,
    options: Options,
    name: str,
    fn: Callable[..., Any],
    unnamed: tuple[Any, ...],
    args: dict[str, Any],
) -> Any:
    """See `Context.tool`."""
    with session.call(branch, "tool", name):
        if unnamed:
            raise JournalValueError(
                f"tool {name!r} takes its arguments by name, for the person who may have to decide "
                "about it: ctx.tool('name', fn, to=…). Nothing was recorded.",
                path="args",
                reason="not by name",
            )
        step_id = branch.names.take(name)
        session.cursor.ask(branch.path, step_id, "tool")
        recorded = session.cursor.steps.get(step_id)
        if recorded is not None:
            session.replayed += 1
            return result(recorded, options.returns)
        coroutine = is_async(fn)
        refuse_timeout(options, name, coroutine)
        intent, keyed = _intent(session, options, step_id, name, fn, args)
        doubt = session.cursor.intents.get(step_id)
        if doubt is not None:
            _refuse_another(session, doubt, intent)
        _refuse_reuse(session, intent)
        session.go_live(branch.path, f"tool {step_id!r}")
        entry = Step(session=session.number, step_id=step_id, name=intent.name, kind="tool")
        entry.code_hash = code_hash(fn)
        if doubt is not None and _settle(session, options, entry, doubt, keyed):
            written = session.record(entry)
        else:
            session.afford(step_id)
            intent.attempt = doubt.attempt + 1 if doubt is not None else 1
            written = session.record(intent)
            if written is not None:
                await written
            entry.started_at = stamp_now(session.clock)
            if keyed:
                args = {**args, "idempotency_key": intent.idempotency_key}
            done = partial(_fill, intent)
            await perform(session, entry, options, coroutine, fn, (), args, done)
            written = session.record(entry)
        if written is not None:
            await written
        return result(entry, options.returns)


def _intent(
    session: Session,
    options: Options,
    step_id: str,
    name: str,
    fn: Callable[..., Any],
    args: dict[str, Any],
) -> tuple[Intent, bool]:
    """Return the intent of a call, and whether its function is given the key.

    Raises:
        JournalValueError: An argument has no canonical form, or an option makes no sense here.
    """
    what = f"arguments of tool {step_id!r}"
    form = canonical(args, what)
    given = options.idempotency_key
    key = (
        idempotency_key(session.cursor.key_scope, step_id, name, form)
        if isinstance(given, UnsetType)
        else given
    )
    takes = "idempotency_key" not in args and _takes_key(fn)
    keyed = key is not None and takes
    if takes and key is None and _needs_key(fn):
        raise JournalValueError(
            f"tool {name!r}: its function needs idempotency_key=, which is None here. Leave the "
            "option out, or give the parameter a default. Nothing was recorded.",
            path="idempotency_key",
            reason="no idempotency key",
        )
    if options.retry is not None and not keyed:
        raise JournalValueError(
            f"tool {name!r}: retry= repeats a call that may have acted, so its function has to "
            "take idempotency_key= and the key must not be None. Nothing was recorded.",
            path="retry",
            reason="no idempotency key",
        )
    kept: Payload = UNSET
    if options.record_args:
        hidden = redact(args)
        shown = form if hidden == args else canonical(hidden, what)
        kept = values.encode(shown, what=what, limit=session.max_payload)
    intent = Intent(
        session=session.number,
        step_id=step_id,
        name=check_name(name),
        idempotency_key=key,
        attempt=1,
        args=kept,
    )
    return intent, keyed


def _takes_key(fn: Callable[..., Any]) -> bool:
    code = getattr(fn, "__code__", None)
    if code is not None and not hasattr(fn, "__wrapped__"):
        # A plain function says so itself; a signature takes as long as all else of a call.
        last = code.co_argcount + code.co_kwonlyargcount
        return "idempotency_key" in code.co_varnames[code.co_posonlyargcount : last]
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    # Not through **kwargs: what takes everything may well ignore it, and then act twice.
    found = parameters.get("idempotency_key")
    return found is not None and found.kind is not inspect.Parameter.POSITIONAL_ONLY


def _needs_key(fn: Callable[..., Any]) -> bool:
    found = inspect.signature(fn).parameters["idempotency_key"]
    return found.default is inspect.Parameter.empty


def _refuse_another(session: Session, doubt: Intent, intent: Intent) -> None:
    """Refuse to take another call for the one that may have acted.

    Raises:
        ReplayMismatchError: The arguments or the key are not the recorded ones.
    """
    differs = "idempotency key" if doubt.idempotency_key != intent.idempotency_key else ""
    if isinstance(doubt.args, Raw) and isinstance(intent.args, Raw):
        before, now = values.decode(doubt.args), values.decode(intent.args)
        differs = differs if same(before, now) else "arguments"
    if not differs:
        return
    raise ReplayMismatchError(
        f"run {session.run_id!r}: tool {intent.step_id!r} may have acted already (entry "
        f"{doubt.offset}), and is called with other {differs} now. Time, chance and what comes "
        "from outside belong in steps, so that a call is the same after a crash; nothing was "
        f"written. Put the code back, or settle what happened; a fork at {intent.step_id!r} would "
        "act again, under a key of its own.",
        run_id=session.run_id,
        offset=doubt.offset,
        asked=f"tool {intent.step_id!r} with other {differs}",
        recorded=intent.step_id,
    )


def _refuse_reuse(session: Session, intent: Intent) -> None:
    """Refuse a caller's key that stands for another call already.

    Raises:
        JournalValueError: It was used for another tool or other arguments.
    """
    if intent.idempotency_key is None:
        return
    first = session.cursor.keys.setdefault(intent.idempotency_key, intent)
    if first is intent:
        return
    before, now = first.args, intent.args
    known = isinstance(before, Raw) and isinstance(now, Raw)  # not kept is not another
    if first.name == intent.name and (not known or same(values.decode(before), values.decode(now))):
        return
    raise JournalValueError(
        f"run {session.run_id!r}: idempotency_key={intent.idempotency_key!r} of tool "
        f"{intent.step_id!r} stands for {first.step_id!r} with other arguments already; whoever "
        "honours it would not act. Give each call a key of its own. Nothing was recorded.",
        path="idempotency_key",
        reason="a key reused for other arguments",
    )


def _settle(session: Session, options: Options, entry: Step, doubt: Intent, keyed: bool) -> bool:
    """Decide what becomes of a call that may have acted.

    Returns:
        True when ``entry`` holds its result or error; False when it is to run (again).

    Raises:
        Suspended: A person has to decide.
    """
    answer = session.cursor.answers.get(entry.step_id)
    problem: JournalValueError | None = None
    if answer is not None and answer.offset > doubt.offset:
        problem = _answered(entry, answer, options)
        if problem is None:
            return entry.result is not UNSET or entry.error is not None
    elif _policy(options, keyed) == "retry":
        return False
    elif _policy(options, keyed) == "fail":
        entry.error = ErrorInfo(name="InDoubtError", message=_question(doubt))
        return True
    more = f"The last answer could not be used: {problem.reason}." if problem is not None else ""
    session.suspends.append(_ask(session, doubt, more))
    raise Suspended(session.run_id, IN_DOUBT)


def _policy(options: Options, keyed: bool) -> str:
    return options.on_doubt or ("retry" if keyed else "ask")


def _answered(entry: Step, answer: Resume, options: Options) -> JournalValueError | None:
    """Fill in what a person decided; return why it cannot be used, if so."""
    said = values.decode(answer.value, what=f"answer to {entry.step_id!r}")
    action = said.get("action") if isinstance(said, dict) else None
    if action == "record":
        encoded = values.encode(said.get("result"))
        try:
            typed.decode(encoded, options.returns, what=f"result of tool {entry.step_id!r}")
        except JournalValueError as problem:
            return problem
        entry.result = encoded
    elif action == "fail":
        who = f" ({answer.by})" if answer.by else ""
        error = said.get("error") or f"it was decided that this call failed{who}"
        entry.error = ErrorInfo(name="InDoubtError", message=str(error))
    elif action != "retry":
        reason = f"it is {said!r}, without an action record, retry or fail"
        return JournalValueError(reason, path="$.action", reason=reason)
    return None


def _ask(session: Session, doubt: Intent, more: str = "") -> Suspend:
    """Return the suspension by which a person is asked."""
    asked = f"{_question(doubt)} {more}".rstrip()
    context = {
        "tool": doubt.name,
        "args": values.decode(doubt.args),
        "key": doubt.idempotency_key,
        "attempt": doubt.attempt,
    }
    return Suspend(
        session=session.number,
        event_name=IN_DOUBT,
        step_id=doubt.step_id,
        prompt=asked,
        schema=values.encode(DOUBT_SCHEMA),
        context=values.encode(context),
    )


def _question(doubt: Intent) -> str:
    return (
        f"Tool {doubt.name!r} may have acted: attempt {doubt.attempt} began at {doubt.timestamp} "
        "and its result was never recorded. Look whether it happened."
    )


def _fill(
    intent: Intent,
    session: Session,
    entry: Step,
    tally: Tally,
    options: Options,
    outcome: Outcome,
) -> None:
    """Write what a tool did into its entry: a result that cannot be recorded is its error.

    Raises:
        Suspended: The function itself does not know whether it acted.
        BaseException: An interruption; the call stays in doubt.
    """
    if isinstance(outcome.error, InDoubtError) and options.on_doubt != "fail":
        session.suspends.append(_ask(session, intent, str(outcome.error)))
        raise Suspended(session.run_id, IN_DOUBT)
    try:
        fill(session, entry, tally, options, outcome)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise
    except JournalValueError as problem:
        if outcome.error is not None:
            raise  # the function's own refusal interrupts, as in a step
        entry.error = told(problem)
        entry.usage = tally.total(None)
