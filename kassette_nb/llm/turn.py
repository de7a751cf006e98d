"""How a request finds its place in a run: what is recorded for it, or its turn to go live."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..branch import Branch, current_task
from ..entries import Step
from ..errors import (
    InterruptedRunError,
    LiveForbidden,
    ReplayMismatchError,
    SessionStopped,
    Suspended,
)
from ..replay import MODEL_CALL
from ..scope import Scope
from ..session import Session
from .call import ModelCall
from .request import SHORT_DIGEST, Request, difference, recorded_request, unlike

#: Seconds that a call beside the branch waits for the branch to have replayed what it recorded.
PATIENCE = 30.0
#: The same where nothing may go live, so that replaying is all that the branch can do: since it
#: last did. Counted in pauses, since work that blocks the loop lets no time pass for the branch.
QUIET = 2.0
_PAUSE = 0.002
#: Seconds for which a call is waited for to be given up longer than it took at first.
GRACE = 5.0
#: So many recorded requests are compared with one that is new.
CANDIDATES = 50

Found = Step | ModelCall


@contextmanager
def in_order(here: Scope, request: Request, waits: bool) -> Iterator[Found]:
    """Give a request of the branch's own task its place in the branch's order.

    Yields:
        The recorded call, or one that may go live now. Inside, the branch takes no other call.

    Raises:
        ReplayMismatchError: Something else is recorded there.
        ConcurrentUseError, InterruptedRunError: The branch is in the middle of something.
        LiveForbidden, Suspended: It may not go live.
    """
    session, branch = _of(here)
    again = session.models.again(branch.task, request)
    if again is not None:
        session.models.remove(again)
    with session.call(branch, MODEL_CALL):
        if isinstance(again, ModelCall):
            if again.lost:
                session.afford(again.step_id)
            yield again
            return
        failed = _failed_before(session, branch, branch.task, request)
        if failed is not None:
            yield failed
            return
        step_id = branch.names.take("llm")
        session.cursor.ask(branch.path, step_id, MODEL_CALL)
        recorded = session.cursor.steps.get(step_id)
        if recorded is not None:
            if recorded.request != request.digest:
                raise _other_request(session.run_id, recorded, request)
            yield _replayed(session, branch, branch.task, request, recorded)
            return
        call = ModelCall(session, branch, branch.task, True, step_id, request, waits)
        session.go_live(branch.path, str(call))
        session.afford(step_id)
        yield call


def is_in_order(here: Scope) -> bool:
    """Tell whether the code runs in the task of its branch."""
    return current_task() is here.branch.task


def beside(here: Scope, request: Request, waits: bool) -> Found:
    """Return what a request of another task or thread finds: recorded, or a call to make.

    A call to make has to wait for its turn; see `turn_comes` and `turn_waits`.

    Raises:
        KassetteError, Suspended, LiveForbidden: The session or the branch has come to its end.
    """
    session, branch = _of(here)
    _refuse_closed(session, branch)
    caller = current_task() or threading.current_thread()
    again = session.models.again(caller, request)
    if isinstance(again, ModelCall):
        session.models.remove(again)
        if again.lost:
            _afford(again, session, branch)
        return again
    failed = _failed_before(session, branch, caller, request)
    if failed is not None:
        return failed
    session.models.settle_of(caller, MODEL_CALL)
    step_id, recorded = session.cursor.match(branch.path, request.digest[:SHORT_DIGEST])
    if recorded is not None:
        return _replayed(session, branch, caller, request, recorded)
    return ModelCall(session, branch, caller, False, step_id, request, waits)


async def turn_comes(call: ModelCall, here: Scope) -> None:
    """Wait until the branch has replayed all that it recorded, then go live.

    What a call beside the branch needs may be made before the branch has come as far as it came
    when it was recorded, and nothing may act before all that was recorded fits.
    """
    for pause in _pauses(call, here):
        await asyncio.sleep(pause)
    _go_live(call, here)


def turn_waits(call: ModelCall, here: Scope) -> None:
    """Do the same from a thread."""
    for pause in _pauses(call, here):
        time.sleep(pause)
    _go_live(call, here)


def goes_on(here: Scope) -> bool:
    """Tell whether a caller that is cancelled is so by the workflow's code, which goes on."""
    session, branch = _of(here)
    ending = session.closed or branch.closed or session.abandoned
    return not ending and session.models.accepts


async def nobody_hears(step_id: str, here: Scope) -> None:
    """Wait until whoever asks gives up, as it did when the call was recorded.

    What a workflow does without an answer it must do again, although the answer is there now.

    Raises:
        ReplayMismatchError: It does not, long after it did.
    """
    session, branch = _of(here)
    # A limit of the code's may count from any moment since its beginning.
    until = time.monotonic() + session.cursor.unheard[step_id] + GRACE
    session.models.silent += 1
    try:
        while time.monotonic() < until:
            await asyncio.sleep(_PAUSE * 10)
            _refuse_closed(session, branch)
    finally:
        session.models.silent -= 1
        session.models.failures.pop(current_task(), None)  # it had none that it could repeat
    raise ReplayMismatchError(
        f"run {session.run_id!r}: the code waits for the answer of model call {step_id!r}, but its "
        "caller was cancelled (by a time limit, say) before the answer came, and the workflow went "
        "on without it. The code has changed since, or something from outside had stopped it. Put "
        "the limit back, or fork the run before that and go on with the new code.",
        run_id=session.run_id,
        offset=None,
        asked=f"the answer of model call {step_id!r}",
        recorded="that its caller gave up",
    )


def _pauses(call: ModelCall, here: Scope) -> Iterator[float]:
    session, branch = _of(here)
    until, quiet, replayed = time.monotonic() + PATIENCE, 0.0, session.replayed
    while session.cursor.goes_on(branch.path) and time.monotonic() < until:
        yield _PAUSE
        if session.models.silent:  # the branch may wait for the code to give that up
            until = time.monotonic() + PATIENCE
        elif session.verifies:
            quiet = quiet + _PAUSE if session.replayed == replayed else 0.0
            replayed = session.replayed
            if quiet > QUIET:
                return
        _refuse_closed(session, branch)


def _go_live(call: ModelCall, here: Scope) -> None:
    session, branch = _of(here)
    try:
        session.go_live(branch.path, str(call))
        session.afford(call.step_id)
    except ReplayMismatchError as unfit:
        raise _with_nearest(session, call, unfit) from None
    except (LiveForbidden, Suspended) as problem:
        if isinstance(problem, LiveForbidden):
            problem.hint = _nearest(session, call)
        # Outside of a guard, and perhaps wrapped in a group before it reaches the branch.
        branch.closed = branch.closed or problem
        raise


def _afford(call: ModelCall, session: Session, branch: Branch) -> None:
    try:
        session.afford(call.step_id)
    except Suspended as spent:
        branch.closed = branch.closed or spent
        raise


def _with_nearest(
    session: Session, call: ModelCall, unfit: ReplayMismatchError
) -> ReplayMismatchError:
    return ReplayMismatchError(
        f"{unfit}{_nearest(session, call)}",
        run_id=unfit.run_id,
        offset=unfit.offset,
        asked=unfit.asked,
        recorded=unfit.recorded,
    )


def _nearest(session: Session, call: ModelCall) -> str:
    """Return how a call matched by its request differs from the recorded one most like it.

    A changed request has another id, so that nothing is recorded in its place; what the code has
    not asked for so far tells what it was before.
    """
    stem = call.step_id.rpartition("@")[0]
    left = [i for i in session.cursor.unasked() if i.rpartition("@")[0] == stem][:CANDIDATES]
    if not left:
        return ""
    asked = call.request.recorded()
    requests = {i: recorded_request(session.cursor.steps[i]) for i in left}
    nearest = min(left, key=lambda step_id: unlike(requests[step_id], asked))
    return (
        f" Recorded and not asked for so far is {nearest!r} (entry "
        f"{session.cursor.steps[nearest].offset}), the most like it. From what is recorded (-) to "
        f"what is asked now (+):\n{difference(requests[nearest], asked)}"
    )


def _refuse_closed(session: Session, branch: Branch) -> None:
    closed = session.closed or branch.closed
    if closed is not None:
        raise closed.with_traceback(None)
    if not session.models.accepts:
        # The workflow has returned; nobody is there to hear that something went wrong.
        raise SessionStopped(
            InterruptedRunError(
                f"run {session.run_id!r} is ending; the model was not called.",
                run_id=session.run_id,
            )
        )


def _replayed(
    session: Session, branch: Branch, caller: object, request: Request, entry: Step
) -> Step:
    session.replayed += 1
    if entry.error is not None:
        session.models.failures[caller] = (request.digest, _taken(branch), entry)
    return entry


def _failed_before(
    session: Session, branch: Branch, caller: object, request: Request
) -> Step | None:
    """Return the failure that the same caller has just been handed back for the same request."""
    found = session.models.failures.get(caller)
    if found is None:
        return None
    digest, taken, entry = found
    if digest == request.digest and taken == _taken(branch) and isinstance(entry, Step):
        return entry
    del session.models.failures[caller]
    return None


def _taken(branch: Branch) -> int:
    """Return how many ids a branch has given: another number, and it has gone on meanwhile."""
    return sum(branch.names.counts.values())


def _of(here: Scope) -> tuple[Session, Branch]:
    return here.session, here.branch


def _other_request(run_id: str, entry: Step, request: Request) -> ReplayMismatchError:
    changes = difference(recorded_request(entry), request.recorded())
    return ReplayMismatchError(
        f"run {run_id!r}: model call {entry.step_id!r} asks something else than entry "
        f"{entry.offset} recorded, so its answer was not given for it; nothing was written. From "
        f"what is recorded (-) to what is asked now (+):\n{changes}\nPut the request back, or fork "
        f"the run at {entry.step_id!r} and go on with the new one.",
        run_id=run_id,
        offset=entry.offset,
        asked=f"model call {entry.step_id!r} with another request",
        recorded=entry.step_id,
    )
