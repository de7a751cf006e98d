"""Answers that take another program or the user's code, given in a thread of their own."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable


class Aside:
    """Does one thing after the other while the kernel goes on, the newest first.

    Whoever walks through a list asks for much more than they stop at. The thread lives only while
    there is something to do.

    Args:
        failed: Told of what an answer raised, which no thread has anybody to tell.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._lock = threading.Lock()
        self._todo: list[Callable[[], None]] = []
        self._busy = False

    def do(self, answer: Callable[[], None]) -> None:
        """Have this done soon; returns at once."""
        context = contextvars.copy_context()  # which cell the page belongs to, for Jupyter
        with self._lock:
            self._todo.append(lambda: context.run(answer))
            if self._busy:
                return
            self._busy = True
        threading.Thread(target=self._work, name="kassette aside", daemon=True).start()

    def drop(self) -> None:
        """Forget what has not begun."""
        with self._lock:
            self._todo.clear()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._todo:
                    self._busy = False
                    return
                answer = self._todo.pop()
            try:
                answer()
            except BaseException as problem:  # the thread has others to answer
                with contextlib.suppress(Exception):  # the page may be gone
                    self._failed(problem)
