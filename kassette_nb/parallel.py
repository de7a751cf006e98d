"""``ctx.parallel``: branches side by side, each with ids, a ctx and an order of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from .branch import Branch
from .calls import Outcome
from .entries import Suspend
from .errors import JournalValueError, LiveForbidden, Suspended
from .options import Options
from .scope import Scope, scope
from .session import Session
from .steps import settled

Make = Callable[[Branch], Any]


async def parallel(
    session: Session,
    branch: Branch,
    options: Options,
    branches: Mapping[str, Callable[..., Any]],
    context: Make,
) -> dict[str, Any]:
    """See `Context.parallel`; ``context`` makes a branch's ctx."""
    if not isinstance(branches, Mapping):
        raise JournalValueError(
            f"ctx.parallel takes functions by key, not a {type(branches).__name__}: "
            "ctx.parallel({'left': fn, 'right': other}). Nothing was recorded.",
            path="branches",
            reason="not a mapping",
        )
    with session.call(branch, f"parallel {', '.join(map(repr, branches))}"):
        # All ids first, in declared order: which branch runs first must not matter.
        takes = {key: takes_ctx(fn, key) for key, fn in branches.items()}
        ids = {key: branch.names.take(key) for key in branches}
        kinds = {ids[key]: "parallel" if takes[key] else "step" for key in branches}
        session.cursor.ask_block(branch.path, kinds)
        strands = []
        for key, fn in branches.items():
            if takes[key]:
                strand = Branch(ids[key])
                work = _branch(session, strand, fn, context(strand))
            else:
                work = _step(session, branch, options, ids[key], key, fn)
            strands.append(work)
        outcomes = await _all(session, strands)
        _order(session.suspends, list(ids.values()))
        if session.closed is not None:
            raise session.closed.with_traceback(None)
        for outcome in outcomes:
            if isinstance(outcome.error, Suspended | LiveForbidden):
                raise outcome.error.with_traceback(None)
        for outcome in outcomes:
            if outcome.error is not None:
                break
        else:
            return {key: outcome.value for key, outcome in zip(branches, outcomes, strict=True)}
    # Raised outside the guard: a branch's own exception is the workflow's to handle.
    raise outcome.error


def _order(suspends: list[Suspend], ids: list[str]) -> None:
    """Put the questions of a block's branches in declared order, whichever came first."""

    def rank(entry: Suspend) -> int | None:
        own = entry.step_id or ""
        return next((n for n, i in enumerate(ids) if own == i or own.startswith(f"{i}/")), None)

    places = [n for n, entry in enumerate(suspends) if rank(entry) is not None]
    inside = sorted((suspends[n] for n in places), key=lambda entry: rank(entry) or 0)
    for place, entry in zip(places, inside, strict=True):
        suspends[place] = entry


async def _branch(
    session: Session, branch: Branch, fn: Callable[..., Awaitable[Any]], ctx: Any
) -> Outcome:
    branch.task = asyncio.current_task()
    scope.set(Scope(session, branch))
    outcome = await _outcome(_called(fn, ctx))
    if branch.closed is not None and (
        outcome.error is None or isinstance(outcome.error, BaseExceptionGroup)
    ):
        return Outcome(error=branch.closed)  # it swallowed its own suspension, or wrapped it
    if session.closed is None and not isinstance(outcome.error, Suspended | LiveForbidden):
        try:
            session.cursor.end(branch.path, f"the end of branch {branch.path!r}")
        except BaseException as problem:
            session.close(problem)
            return Outcome(error=problem)
    return outcome


async def _step(
    session: Session,
    branch: Branch,
    options: Options,
    step_id: str,
    key: str,
    fn: Callable[..., Any],
) -> Outcome:
    lone = Branch(branch.path)
    lone.task = asyncio.current_task()

    async def run() -> Any:
        with session.call(lone, "step", key):
            return await settled(session, branch, options, step_id, key, fn, (), {}, block=True)

    return await _outcome(run())


async def _outcome(work: Awaitable[Any]) -> Outcome:
    try:
        return Outcome(value=await work)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as problem:
        return Outcome(error=problem)


async def _called(fn: Callable[..., Any], ctx: Any) -> Any:
    made = fn(ctx)
    return await made if inspect.isawaitable(made) else made


async def _all(session: Session, strands: list[Any]) -> list[Outcome]:
    """Run all to their end; a cancelled caller cancels them, and still waits until they settle."""
    tasks = [asyncio.create_task(strand) for strand in strands]
    session.strands += len(tasks) - 1 if tasks else 0
    cancelled: asyncio.CancelledError | None = None
    try:
        while pending := [task for task in tasks if not task.done()]:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError as stop:
                cancelled = stop
                for task in pending:
                    task.cancel()
    finally:
        session.strands -= len(tasks) - 1 if tasks else 0
    outcomes = [_taken(task) for task in tasks]
    if cancelled is not None:
        raise cancelled
    for outcome in outcomes:
        if isinstance(outcome.error, asyncio.CancelledError) and session.closed is None:
            raise outcome.error  # a branch cancelled itself: an interruption like any other
    return outcomes


def _taken(task: asyncio.Task[Outcome]) -> Outcome:
    if task.cancelled():
        return Outcome(error=asyncio.CancelledError())
    problem = task.exception()
    return task.result() if problem is None else Outcome(error=problem)


def takes_ctx(fn: Callable[..., Any], key: str) -> bool:
    """Tell a branch (a parameter without a default gets the ctx) from a single step.

    Raises:
        JournalValueError: It needs more than the ctx.
    """
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature is a step
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.default is p.empty]
    needed = [p for p in needed if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not needed:
        return False
    if len(needed) > 1 or needed[0].kind not in positional:
        raise JournalValueError(
            f"branch {key!r} needs {', '.join(p.name for p in needed)}; a branch takes its ctx or "
            "nothing. Bind the rest with functools.partial. Nothing was recorded.",
            path=key,
            reason="too many parameters",
        )
    return True
