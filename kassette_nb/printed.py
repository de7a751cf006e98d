"""What an agent prints while its run goes on in the background, delivered to whoever shows the run.

A print belongs to the code that makes it, not to the cell that happens to run: whoever follows a
run gets its lines. Where nobody does, a print goes where it always went. Imports nothing of the
package.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TextIO

#: Takes whole lines, without their newlines, in the thread that prints.
Deliver = Callable[[list[str]], None]
#: Lines of a run that are kept for whoever comes to show it later.
KEPT = 1_000

#: The journal, as `Storage.locate` says, whose background session this code belongs to.
_here: ContextVar[str | None] = ContextVar("kassette_printed", default=None)
_lock = threading.RLock()
_followers: dict[str, list[Deliver]] = {}
_kept: dict[str, deque[str]] = {}
_open: dict[tuple[str, str], str] = {}
_proxies: dict[str, _Proxy] = {}


@contextlib.contextmanager
def belongs_to(place: str) -> Iterator[None]:
    """Let what is printed inside, in its tasks and in its threads, belong to a run."""
    token = _here.set(place)
    try:
        yield
    finally:
        for name in ("stdout", "stderr"):
            _finish(place, name)
        _here.reset(token)


def follow(place: str, deliver: Deliver) -> Callable[[], None]:
    """Deliver a run's lines from now on, instead of printing them.

    Args:
        place: The run's journal, as `Storage.locate` says.
        deliver: Called with whole lines, in the thread that prints; what it raises is dropped.

    Returns:
        A function that ends it.
    """
    with _lock:
        _followers.setdefault(place, []).append(deliver)

    def stop() -> None:
        with _lock:
            others = _followers.get(place, [])
            if deliver in others:
                others.remove(deliver)
            if not others:
                _followers.pop(place, None)

    return stop


def lines(place: str) -> list[str]:
    """Return the newest lines of a run, at most 1,000, that were delivered in this process."""
    with _lock:
        return list(_kept.get(place, ()))


def install() -> None:
    """Put a proxy in the place of ``sys.stdout`` and ``sys.stderr``."""
    remove()
    for name in ("stdout", "stderr"):
        _proxies[name] = _Proxy(name, getattr(sys, name))
        setattr(sys, name, _proxies[name])


def remove() -> None:
    """Put back what `install` replaced; one that was wrapped since then is only passed through."""
    for name, proxy in list(_proxies.items()):
        proxy.active = False
        if getattr(sys, name) is proxy:
            setattr(sys, name, proxy.stream)
        del _proxies[name]


class _Proxy:
    """A stream that looks at whose code writes to it; all else is the stream's own."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name = name
        self.stream = stream
        self.active = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write a text, as `io.TextIOBase.write`."""
        place = _here.get() if self.active else None
        if place is None or place not in _followers:
            return self.stream.write(text)
        _write(place, self._name, text)
        return len(text)

    def writelines(self, texts: list[str]) -> None:
        """Write several texts."""
        for text in texts:
            self.write(text)


def _write(place: str, name: str, text: str) -> None:
    with _lock:
        *whole, rest = (_open.pop((place, name), "") + text).split("\n")
        if rest:
            _open[place, name] = rest
        if whole:
            _deliver(place, whole)


def _finish(place: str, name: str) -> None:
    """Deliver the last line of a session that ended without a newline."""
    with _lock:
        rest = _open.pop((place, name), "")
        if rest:
            _deliver(place, [rest])


def _deliver(place: str, whole: list[str]) -> None:
    _kept.setdefault(place, deque(maxlen=KEPT)).extend(whole)
    for deliver in list(_followers.get(place, ())):
        # A view that fails must not fail the agent's print.
        with contextlib.suppress(Exception):
            deliver(whole)
