"""``@kassette``: an async function becomes a workflow."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import overload

from . import values
from .arguments import Arguments
from .budget import Budget
from .clock import Clock, SystemClock
from .declared import Workspace
from .definition import Body, Definition
from .storage import Storage
from .values import JSON
from .workflow import Workflow, registry


@overload
def kassette(fn: Body, /) -> Workflow: ...


@overload
def kassette(
    *,
    name: str | None = None,
    version: str | None = None,
    fingerprint: str | None = None,
    budget: Budget | None = None,
    storage: Storage | str | os.PathLike[str] | None = None,
    max_payload: int = values.MAX_PAYLOAD,
    transient: tuple[type[BaseException], ...] = (),
    clock: Clock | None = None,
    workspace: Workspace | str | os.PathLike[str] | None = None,
    outcome: Callable[[JSON], JSON] | None = None,
) -> Callable[[Body], Workflow]: ...


def kassette(
    fn: Body | None = None,
    /,
    *,
    name: str | None = None,
    version: str | None = None,
    fingerprint: str | None = None,
    budget: Budget | None = None,
    storage: Storage | str | os.PathLike[str] | None = None,
    max_payload: int = values.MAX_PAYLOAD,
    transient: tuple[type[BaseException], ...] = (),
    clock: Clock | None = None,
    workspace: Workspace | str | os.PathLike[str] | None = None,
    outcome: Callable[[JSON], JSON] | None = None,
) -> Workflow | Callable[[Body], Workflow]:
    """Make an async function a durable workflow.

    Args:
        fn: The function; its first parameter is the ctx, the others are recorded as its input.
        name: What journals call it; by default the function's name.
        version: Raise it when the shape of the code changes: runs of another version are refused.
        fingerprint: Names what runs depend on beside the code; see `Workflow.with_options`.
        budget: What each run may spend; the count survives crashes. See `Budget`.
        storage: A storage, a URL (``"file:.kassette"``, ``"s3://bucket/prefix"``,
            ``"memory:"``) or a path; by default ``$KASSETTE_STORAGE``, else ``file:.kassette``.
        max_payload: The largest value to record, in bytes of JSON.
        transient: Exceptions that are only weather: they interrupt the session instead of failing
            the step or the run.
        clock: Stamps the entries; for tests.
        workspace: The directory that the agent works in: its files are kept with every step, and
            a fork gets a directory of its own. In the workflow it is ``ctx.workspace``.
        outcome: Turns a result into what a comparison ranks by: a number, more is better, or
            whether the attempt succeeded.

    Returns:
        The workflow, or a decorator that makes it.

    Raises:
        TypeError: The function cannot be a workflow, or an option is not what it has to be; says
            why.
        WorkspaceError: ``workspace`` is no path.
    """

    declared = Workspace.of(workspace)

    def decorate(fn: Body) -> Workflow:
        if not inspect.iscoroutinefunction(fn):
            raise TypeError(f"{fn!r} must be an async def to be a workflow")
        if budget is not None and not isinstance(budget, Budget):
            raise TypeError(f"budget={budget!r} is not a Budget(…), as in Budget(max_cost_usd=1)")
        _check_outcome(outcome)
        called = name or fn.__name__
        definition = Definition(
            fn,
            called,
            Arguments(fn, called),
            clock or SystemClock(),
            version=version,
            fingerprint=fingerprint,
            budget=budget,
            max_payload=max_payload,
            transient=transient,
            workspace=declared,
            outcome=outcome,
        )
        workflow = registry[called] = Workflow(definition, storage)
        return workflow

    return decorate if fn is None else decorate(fn)


def _check_outcome(given: object) -> None:
    if given is not None and (not callable(given) or inspect.iscoroutinefunction(given)):
        raise TypeError(
            f"outcome={given!r} is no plain function: it takes the result and returns what "
            "attempts are ranked by, as in outcome=lambda result: result['passed']"
        )
