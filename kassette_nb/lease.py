"""Who may append: taking a run's hold, with a moment's patience."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator

from .errors import RunBusyError
from .storage import Busy, Hold, Storage, beside

#: A viewer's probe or a session that is just ending holds a run for milliseconds, so a writer
#: tries for this long (in seconds) before it says that the run is busy.
PATIENCE = 1.0


def who() -> str:
    """Return this process as a person would look for it."""
    return f"process {os.getpid()} on {socket.gethostname()}"


async def acquire(storage: Storage, run_id: str, patience: float = PATIENCE) -> Hold:
    """Hold the run, waiting on the event loop for at most ``patience`` seconds.

    Raises:
        RunBusyError: Somebody else still holds it.
    """
    taken: list[Hold] = []

    def attempt() -> Hold | float:
        found = next(tries)
        if not isinstance(found, float):
            taken.append(found)
        return found

    tries = _tries(storage, run_id, patience)
    try:
        while isinstance(found := await beside(storage, attempt), float):  # noqa: ASYNC110
            await asyncio.sleep(found)
    except asyncio.CancelledError:
        for hold in taken:  # taken for a caller who is gone
            hold.release()
        raise
    return found


def acquire_blocking(storage: Storage, run_id: str, patience: float = PATIENCE) -> Hold:
    """Hold the run, blocking this thread for at most ``patience`` seconds.

    Raises:
        RunBusyError: Somebody else still holds it.
    """
    for wait in _tries(storage, run_id, patience):
        if isinstance(wait, float):
            time.sleep(wait)
        else:
            return wait
    raise AssertionError("unreachable")


def _tries(storage: Storage, run_id: str, patience: float) -> Iterator[Hold | float]:
    deadline = time.monotonic() + patience
    while True:
        try:
            yield storage.hold(run_id, who())
        except Busy as busy:
            if time.monotonic() >= deadline:
                dead = ""
                if busy.within is not None:
                    dead = f" If it has died, the run becomes free within {busy.within:g} s."
                raise RunBusyError(
                    f"run {run_id!r} is busy: {busy.holder} holds it. Wait until that session has "
                    f"settled, or stop it.{dead}",
                    run_id=run_id,
                    holder=busy.holder,
                ) from None
            yield 0.2 if storage.blocking else 0.02
