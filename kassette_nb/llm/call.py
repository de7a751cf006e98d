"""One model call that a workflow makes live: its attempts, its answer, and the line it becomes.

Nothing here knows of HTTP libraries; the transports tell it what they see.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Literal, Protocol
from urllib.parse import urljoin, urlsplit

import msgspec

from .. import values
from ..branch import Branch
from ..clock import stamp_now
from ..entries import INCOMPLETE, UNHEARD, ErrorInfo, Note, Step
from ..errors import (
    ConcurrentUseError,
    InterruptedRunError,
    KassetteError,
    PayloadTooLargeError,
    SessionStopped,
)
from ..session import Session
from .assemble import body_of
from .request import Request, public_url
from .spending import usage_of
from .wire import MESSAGE, Answer, Ending, kept_headers

State = Literal["asked", "streaming", "failed", "redirected", "incomplete", "settled"]
Written = Awaitable[None] | None
#: What the cure is, wherever a stream was not read to its end.
CURE = "Read streams to their end, make the same request again, or call the model inside a step."

#: The same where an exchange is larger than what the journal takes.
SMALLER = (
    "Raise it, @kassette(max_payload=…), or call the model inside a step that returns less, a path "
    "say."
)

#: Why a stream is not whole.
CUT = "it ended without its last event: the connection was cut"
CLOSED = "it was closed before its end"
LEFT = "it was left before its end"


class Stream(Protocol):
    """A stream whose connection can be closed."""

    def release(self) -> Awaitable[None] | None:
        """Close it; what is returned is to be awaited."""
        ...


@contextmanager
def stopping(session: Session) -> Iterator[None]:
    """Let what goes wrong in a run stop its session: an SDK would try again after an Exception."""
    try:
        yield
    except Exception as problem:
        session.close(problem)
        raise SessionStopped(session.closed or problem) from None


class ModelCall:
    """A live model call; see `kassette_nb.modelcalls.Unsettled`.

    Args:
        session: Whose it is.
        branch: Where it is made.
        caller: The task or thread that makes it.
        ordered: Whether it has its place in the order of the branch.
        step_id: Its id.
        request: What is asked.
        waits: Whether whoever makes it can wait on the session's loop for its line to be written.

    Raises:
        PayloadTooLargeError: The request is larger than what the journal takes.
    """

    def __init__(
        self,
        session: Session,
        branch: Branch,
        caller: object,
        ordered: bool,
        step_id: str,
        request: Request,
        waits: bool,
    ) -> None:
        values.refuse_larger(
            request.size, f"the request of {step_id!r}", session.max_payload, SMALLER
        )
        self.branch = branch
        self.caller = caller
        self.ordered = ordered
        self.step_id = step_id
        self.request = request
        self.attempt = 0
        self._session = session
        self._waits = waits
        self._state: State = "asked"
        self._started = stamp_now(session.clock)
        self._began = 0.0
        self._url = request.url
        self._target = ""
        self._failure = ErrorInfo(name="", message="")
        self._why = ""
        self._heard = 0.0
        self._answer = Answer(200, {}, [])
        self._ending = Ending("")
        #: What the reader reads, once the answer comes in pieces.
        self.stream: Stream | None = None
        # A thread may read a stream to its end while the session ends.
        self._lock = threading.RLock()

    def __str__(self) -> str:
        return f"model call {self.step_id!r}"

    @property
    def lost(self) -> bool:
        """Whether its last attempt broke off: another one is paid for anew."""
        return self._state == "incomplete"

    def is_for(self, request: Request) -> bool:
        """Tell whether a request is this call's next attempt, or where it was sent on to."""
        if self._state == "redirected" and request.url == self._target:
            return True
        return self._state != "streaming" and request.digest == self.request.digest

    def guard(self) -> AbstractContextManager[None]:
        """Let what goes wrong while it is recorded stop the session."""
        return stopping(self._session)

    def begin(self, url: str) -> None:
        """Take note that an attempt goes out now, or goes on to where it was sent."""
        self._url = public_url(url)
        if self._state != "redirected" or self._url != self._target:
            self.attempt += 1
        self._state, self._target = "asked", ""
        self._began = time.perf_counter()

    def gave_up(self) -> None:
        """See `Unsettled.gave_up`."""
        if self.caller is None:
            return
        self.caller = None
        self._heard = time.monotonic() - self._session.began
        self._session.models.gave_up(self)

    def tell_unheard(self) -> None:
        """See `Unsettled.tell_unheard`."""
        self._note(UNHEARD, {"after": round(self._heard, 3)})

    # ------------------------------------------------------------------- what comes back

    def succeeded(self, status: int, headers: Mapping[str, str], content: bytes) -> Written:
        """Record a complete answer. Durable on return, or when what is returned was awaited."""
        self._answer = Answer.whole(status, kept_headers(headers), content)
        return self._record()

    @property
    def content(self) -> bytes:
        """The body that the SDK is given: what a replay would give it."""
        return self._answer.content

    def failed(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        """Take note of an answer that is none: the SDK may try again."""
        target = headers.get("location")
        if 300 <= status < 400 and target:
            self._target = public_url(urljoin(self._url, target))
        self._answer = Answer.whole(status, kept_headers(headers), content)
        self._failure = ErrorInfo(
            name=f"HTTP {status}",
            message=_shortened(content),
            response=msgspec.Raw(msgspec.json.encode(self._answer.recorded())),
        )
        self._unsettled("redirected" if self._target else "failed")

    def broke(self, error: BaseException) -> None:
        """Take note of an attempt that ended without an answer."""
        self._failure = ErrorInfo(name=type(error).__name__, message=str(error)[:MESSAGE])
        self._unsettled("failed")

    def _unsettled(self, state: State) -> None:
        self._state = state
        if state == "failed":
            told = {
                "attempt": self.attempt,
                "error": self._failure.name,
                "message": self._failure.message,
            }
            self._note("attempt", told)
        self._session.models.add(self)

    # ---------------------------------------------------------------------------- a stream

    def opened(self, status: int, headers: Mapping[str, str]) -> None:
        """Take note that the answer comes in pieces."""
        self._answer = Answer(status, kept_headers(headers), [], [])
        self._ending = Ending(urlsplit(self.request.url).path)
        self._state = "streaming"
        self._session.models.add(self)

    def took(self, chunk: bytes) -> Written:
        """Take the next piece before the workflow sees it; record the call with the last one."""
        if self._state != "streaming":
            return None
        assert self._answer.times is not None, "opened() begins a list"
        self._answer.chunks.append(chunk)
        self._answer.times.append(round((time.perf_counter() - self._began) * 1000))
        if self._ending.feed(chunk):
            return self._finish()
        return None

    def ended(self) -> Written:
        """Take note that the server sends nothing more."""
        return self._ended(True, CUT)

    def closed(self) -> Written:
        """Take note that the workflow reads no further."""
        return self._ended(False, CLOSED)

    def cut(self, error: BaseException) -> None:
        """Take note that the stream broke."""
        with self._lock:
            if self._state == "streaming":
                self._incomplete(broken(error))

    def _ended(self, cleanly: bool, why: str) -> Written:
        with self._lock:
            if self._state != "streaming":
                return None
            if self._ending.ended(cleanly):
                return self._finish()
            self._incomplete(why)
            return None

    def _finish(self) -> Written:
        with self._lock:
            if self._state != "streaming":
                return None
            return self._record()

    def _incomplete(self, why: str) -> None:
        self._state = "incomplete"
        self._why = why = self._ending.why(why)
        self._session.models.add(self)
        self._lost(why, self._answer)

    def _lost(self, why: str, came: Answer) -> None:
        told = {
            "attempt": self.attempt,
            "reason": why,
            "request": self.request.payload(),
            "result": came.recorded(),
        }
        self._note(INCOMPLETE, told)

    # -------------------------------------------------------------------------- its line

    def settle(self, asked: str, did: str = "went on to") -> None:
        """Record the failure that the workflow has to do with; see `Unsettled.settle`."""
        with self._lock:
            run = f"run {self._session.run_id!r}"
            if self._state == "streaming":
                self._incomplete(f"the workflow {did} {asked} before its end")
                raise ConcurrentUseError(
                    f"{run}: the workflow {did} {asked} while the stream of {self} is still open. "
                    "What comes of it would not be recorded in order: read it to its end first (a "
                    "loop that is left by `break` leaves it open), or call the model inside a "
                    "step. The run is open; started again, it asks the model once more.",
                    run_id=self._session.run_id,
                    asked=asked,
                )
            if self._state == "incomplete":
                raise InterruptedRunError(
                    f"{run}: the workflow {did} {asked} while the stream of {self} is not whole "
                    f"({self._why}). What was read of it is kept as a note and not as an answer, "
                    f"so a replay could not hand it back. {CURE} The run is open; started again, "
                    "it asks the model once more.",
                    run_id=self._session.run_id,
                )
            self._session.models.remove(self)
            self.give_up()

    async def leave(self) -> None:
        """Close a stream that the workflow has left open."""
        with self._lock:
            if self._state == "streaming":
                self._incomplete(LEFT)
        if self.stream is not None:
            with suppress(Exception):  # the network's; nobody reads on
                closing = self.stream.release()
                if closing is not None:
                    await closing

    def give_up(self) -> None:
        """See `Unsettled.give_up`."""
        with self._lock:
            if self._state in ("failed", "redirected"):
                self._state = "settled"
                self._session.models.remove(self)
                self._session.record_now(self._entry(error=self._failure))

    def abandon(self) -> None:
        """Settle a call of another task before the session ends."""
        with self._lock:
            if self._state == "streaming":
                self._incomplete("nobody read it to its end before the run's session ended")
            self.give_up()
            self._session.models.remove(self)

    def _record(self) -> Written:
        """Write the call's line."""
        session, answer = self._session, self._answer
        self._state = "settled"
        session.models.remove(self)
        entry = self._entry()
        data = msgspec.json.encode(answer.recorded())
        try:
            values.refuse_larger(len(data), f"answer of {self}", session.max_payload, SMALLER)
        except PayloadTooLargeError as large:  # no answer for a replay, but paid for
            self._lost(f"its {large.size:,} bytes are more than max_payload", answer.beginning())
            raise
        entry.result = msgspec.Raw(data)
        usage = usage_of(self.request, body_of(answer))
        if usage is not None:
            usage.latency_ms = round((time.perf_counter() - self._began) * 1000)
            usage.first_token_ms = answer.times[0] if answer.times else None
            entry.usage = usage
        if self._waits:
            return session.record(entry)
        session.record_now(entry)
        return None

    def _entry(self, error: ErrorInfo | None = None) -> Step:
        return Step(
            session=self._session.number,
            step_id=self.step_id,
            name="llm",
            kind="llm",
            args=self.request.payload(),
            request=self.request.digest,
            started_at=self._started,
            error=error,
        )

    def _note(self, kind: str, told: dict[str, Any]) -> None:
        if self._session.closed is not None:
            return  # nothing is written any more, whatever its clean-up meets
        data = msgspec.Raw(msgspec.json.encode(told))
        note = Note(session=self._session.number, kind=kind, step_id=self.step_id, data=data)
        try:
            self._session.record_now(note)
        except KassetteError as problem:
            self._session.close(problem)


def broken(error: BaseException) -> str:
    """Return why a stream is not whole that an error has ended."""
    return f"it broke: {type(error).__name__}: {error}".rstrip(": ")


def _shortened(content: bytes) -> str:
    """Return what a provider says of its refusal."""
    try:
        told = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return content[:MESSAGE].decode(errors="replace")
    error = told.get("error", told) if isinstance(told, dict) else told
    message = error.get("message") if isinstance(error, dict) else error
    return str(message if message is not None else told)[:MESSAGE]
