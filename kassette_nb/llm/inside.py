"""Model calls made inside a step: they pass through, and the step is told what they spent."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from urllib.parse import urlsplit

import msgspec

from ..usage import Tally
from ..values import JSON
from .assemble import body_of
from .request import Request
from .spending import usage_of
from .wire import Answer, Ending

#: Larger requests and answers (bytes of JSON) are not kept in a step: a journal would grow with
#: the square of a conversation's length.
LIMIT = 64 * 1024


class Inside:
    """Watches one model call of a running step.

    Args:
        tally: Of the step.
        request: What is asked.
    """

    def __init__(self, tally: Tally, request: Request) -> None:
        self.request = request
        self._tally = tally
        self._began = time.perf_counter()
        self._answer = Answer(200, {}, [])
        self._ending = Ending(urlsplit(request.url).path)
        self._done = False

    def guard(self) -> AbstractContextManager[None]:
        """Nothing is recorded here: the step is, when its function has returned."""
        return nullcontext()

    def opened(self, streamed: bool) -> None:
        """Take note whether the answer comes in pieces that somebody waits for."""
        self._answer.times = [] if streamed else None

    def took(self, chunk: bytes) -> None:
        """Take the next piece."""
        self._answer.chunks.append(chunk)
        if self._answer.times is not None:
            self._answer.times.append(self._elapsed())
            if self._ending.feed(chunk):
                self.ended()

    def ended(self) -> None:
        """Tell the step what was spent, once."""
        if self._done:
            return
        self._done = True
        body = body_of(self._answer)
        usage = usage_of(self.request, body)
        if usage is None:
            return
        usage.latency_ms = self._elapsed()
        usage.first_token_ms = self._answer.times[0] if self._answer.times else None
        self._tally.seen.append(usage)
        told: dict[str, JSON] = {
            "request": _limited(self.request.recorded()),
            "answer": _limited(body),
            "usage": msgspec.to_builtins(usage),
        }
        self._tally.calls.append({key: value for key, value in told.items() if value is not None})

    def closed(self) -> None:
        """Take note that nobody reads further: what came is what was spent."""
        self.ended()

    def cut(self, error: BaseException) -> None:
        """Take note that the answer broke off; the same."""
        self.ended()

    def _elapsed(self) -> int:
        return round((time.perf_counter() - self._began) * 1000)


def _limited(value: JSON) -> JSON:
    return value if len(msgspec.json.encode(value)) <= LIMIT else None
