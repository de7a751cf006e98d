"""Sessions that go on while their caller does something else: on the kernel's loop, or in a thread.

Jupyter loses exceptions of bare tasks, and a task nobody refers to may be collected; so every
background session is kept here, with what became of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from . import display, printed
from .results import RunResult
from .storage import Storage

Session = Callable[[], Coroutine[Any, Any, RunResult]]


class Background:
    """A session that runs by itself; ``await`` it for its result.

    ``error`` is what interrupted it, once it is done.
    """

    def __init__(self, run_id: str = "", storage: Storage | None = None) -> None:
        self.run_id = run_id
        self.storage = storage
        self.result: RunResult | None = None
        self.error: BaseException | None = None
        self._done = threading.Event()
        self._task: asyncio.Task[None] | None = None

    def __await__(self) -> Generator[Any, None, RunResult]:
        return self.wait().__await__()

    def _ipython_display_(self) -> None:
        if not display.show("background", self):
            raise NotImplementedError

    def __repr__(self) -> str:
        told = self.result if self.done else "running"
        return f"<background session of {self.run_id!r}: {self.error or told}>"

    @property
    def done(self) -> bool:
        """Whether the session has settled."""
        return self._done.is_set()

    async def wait(self) -> RunResult:
        """Wait until the session has settled.

        Raises:
            BaseException: What interrupted it.
        """
        # The session may run on another thread's loop, which asyncio's own events cannot cross.
        while not self._done.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if self.error is not None:
            raise self.error
        assert self.result is not None, "a session without an error has a result"
        return self.result

    async def _drive(self, session: Session) -> None:
        try:
            self.result = await session()
        except BaseException as problem:
            self.error = problem
            if isinstance(problem, asyncio.CancelledError | KeyboardInterrupt):
                raise
        finally:
            self._done.set()


_sessions: dict[str, Background] = {}
_home: asyncio.AbstractEventLoop | None = None


def adopt() -> None:
    """Make the running loop the home of background sessions.

    A notebook's front end may deliver clicks in a thread beside the kernel's main one, so that
    they arrive while a cell blocks. What a click starts must still run on the kernel's loop: the
    agent's clients belong to it, and the other thread's loop can end at any time.
    """
    global _home
    if threading.current_thread() is threading.main_thread():
        with contextlib.suppress(RuntimeError):
            _home = asyncio.get_running_loop()


def home() -> asyncio.AbstractEventLoop | None:
    """Return the adopted loop, else the running one, else None."""
    if _home is not None and _home.is_running():
        return _home
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def call_home(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Call back on the loop: at once in its own thread, as soon as it is free from another."""
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is loop:
        callback()
    else:
        loop.call_soon_threadsafe(callback)


def start(
    place: str,
    session: Session,
    run_id: str = "",
    storage: Storage | None = None,
    *,
    thread: bool = False,
) -> Background:
    """Start a session: as a task of the home loop, else on a loop in a thread of its own.

    Args:
        place: The journal that it writes, as `Storage.locate` says; one session each.
        session: Called once, on the loop that the session runs on.
        run_id: Its run, for whoever gets the handle.
        storage: Where the run is, so that the handle can be shown as its panel.
        thread: Use a thread of its own also where there is a loop.
    """
    background = Background(run_id, storage)
    _sessions[place] = background

    async def drive() -> None:
        with printed.belongs_to(place):
            await background._drive(session)

    loop = None if thread else home()
    if loop is None:
        # Not a daemon: a script must not end in the middle of a paid call.
        threading.Thread(target=lambda: asyncio.run(drive()), name="kassette run").start()
        return background

    def begin() -> None:
        background._task = loop.create_task(drive())

    call_home(loop, begin)
    return background


def find(place: str) -> Background | None:
    """Return the newest background session of a journal in this process."""
    return _sessions.get(place)
