"""Model calls made inside a step: they pass through, and the step is told what they spent."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from contextlib import AbstractContextManager, nullcontext
from urllib.parse import urlsplit

import msgspec

from ..usage import Tally
from ..values import JSON
from .assemble import body_of
from .call import CLOSED, CUT, LEFT, Stream, broken
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
        #: What the reader reads.
        self.stream: Stream | None = None

    def guard(self) -> AbstractContextManager[None]:
        """Nothing is recorded here: the step is, when its function has returned."""
        return nullcontext()

    def opened(self, streamed: bool) -> None:
        """Take note whether the answer comes in pieces that somebody waits for."""
        self._answer.times = [] if streamed else None
        self._tally.open.append(self)

    def took(self, chunk: bytes) -> None:
        """Take the next piece."""
        self._answer.chunks.append(chunk)
        if self._answer.times is not None:
            self._answer.times.append(self._elapsed())
            if self._ending.feed(chunk):
                self._tell(None)

    def ended(self) -> None:
        """Tell the step what was spent, once."""
        whole = self._answer.times is None or self._ending.ended(True)
        self._tell(None if whole else CUT)

    def closed(self) -> None:
        """Take note that nobody reads further: what came is told."""
        self._stopped(CLOSED)

    def cut(self, error: BaseException) -> None:
        """Take note that the answer broke off."""
        self._tell(broken(error))

    def left(self) -> None:
        """Take note that the step's function has come to its end."""
        self._stopped(LEFT)

    def release(self) -> Awaitable[None] | None:
        """Close the connection of a stream that nobody reads any more."""
        return self.stream.release() if self.stream is not None else None

    def _stopped(self, why: str) -> None:
        whole = self._answer.times is not None and self._ending.ended(False)
        self._tell(None if whole else why)

    def _tell(self, incomplete: str | None) -> None:
        if self._done:
            return
        self._done = True
        if self in self._tally.open:
            self._tally.open.remove(self)
        body = body_of(self._answer)
        usage = usage_of(self.request, body)
        if usage is None:
            return
        if incomplete is not None:
            incomplete = self._ending.why(incomplete)
            # What is counted in the pieces that came is not what is paid for.
            usage.output_tokens = usage.reasoning_tokens = usage.cost_usd = None
        usage.latency_ms = self._elapsed()
        usage.first_token_ms = self._answer.times[0] if self._answer.times else None
        self._tally.seen.append(usage)
        told: dict[str, JSON] = {
            "request": _limited(self.request.recorded()),
            "answer": _limited(body),
            "usage": msgspec.to_builtins(usage),
            "incomplete": incomplete,
        }
        self._tally.calls.append({key: value for key, value in told.items() if value is not None})

    def _elapsed(self) -> int:
        return round((time.perf_counter() - self._began) * 1000)


def _limited(value: JSON) -> JSON:
    return value if len(msgspec.json.encode(value)) <= LIMIT else None
