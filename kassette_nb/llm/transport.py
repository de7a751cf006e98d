"""Transports for httpx and httpx2 that record the model calls of workflows.

One class serves both libraries: which one it is shows in the requests that it is given.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from ..entries import Step
from ..scope import Scope, scope
from ..usage import Tally, running
from .call import ModelCall, stopping
from .inside import Inside
from .request import Request, request_of, without_keys
from .spending import looks_like_a_model
from .streams import AsyncStream, stream_class
from .turn import beside, goes_on, in_order, is_in_order, nobody_hears, turn_comes, turn_waits
from .wire import is_stream, recorded_answer

Wanted = Callable[[Request], bool]
#: The body reaches the SDK decoded and in one piece; these spoke of how it travelled.
_TRAVEL = frozenset({"content-encoding", "content-length", "transfer-encoding"})


class Recorder:
    """What both transports have in common.

    Args:
        inner: The transport that really sends.
        wanted: Tells which requests are model calls; by default all are.
        paced: Whether a replayed stream takes its recorded time.
    """

    def __init__(self, inner: Any, wanted: Wanted | None = None, paced: bool = False) -> None:
        self._inner = inner
        self._wanted = wanted
        self._paced = paced

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._inner!r}>"

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # half made, by copy or pickle
            raise AttributeError(name)
        return getattr(self._inner, name)  # pools and the like that some code looks at

    def _asked(self, request: Any) -> Request | None:
        content_type = request.headers.get("content-type", "")
        found = request_of(request.method, str(request.url), content_type, request.content)
        return found if self._wanted is None or self._wanted(found) else None

    def _whole(self, request: Any, response: Any, content: bytes) -> Any:
        headers = [p for p in response.headers.multi_items() if p[0].lower() not in _TRAVEL]
        return _library(request).Response(
            response.status_code,
            headers=headers,
            content=content,
            extensions=response.extensions,
        )


class SyncRecorder(Recorder):
    """Records the calls of a client that blocks."""

    def __enter__(self) -> SyncRecorder:
        self._inner.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        self._inner.__exit__(*problem)

    def close(self) -> None:
        """Close the transport that really sends."""
        self._inner.close()

    def handle_request(self, request: Any) -> Any:
        """Answer a request: from the journal, or live and then recorded."""
        here = _here()
        if here is None:
            return self._inner.handle_request(request)
        request.read()
        asked = self._asked(request)
        if asked is None:
            return self._inner.handle_request(request)
        tally = running.get()
        if tally is not None:
            return self._pass(request, asked, tally)
        with stopping(here.session):
            if is_in_order(here):
                with in_order(here, asked, waits=False) as found:
                    made = self._made(request, found)
            else:
                here.session.enter()
                try:
                    found = beside(here, asked, waits=False)
                    if isinstance(found, ModelCall) and not found.attempt:
                        turn_waits(found, here)
                    made = self._made(request, found)
                finally:
                    here.session.leave()
        if isinstance(made, Exception):
            raise made
        return made

    def _made(self, request: Any, found: Step | ModelCall) -> Any:
        """Return the response, or the exception that is to be raised outside of the guard."""
        if isinstance(found, Step):
            return replayed(request, found, self._paced)
        request.headers["accept-encoding"] = "identity"
        found.begin(str(request.url))
        try:
            response = self._inner.handle_request(request)
            if _streams(found.request, response):
                found.opened(response.status_code, response.headers)
                return _streamed(request, response, found)
            content = response.read()
        except Exception as error:
            found.broke(error)
            return error
        if response.is_success:
            found.succeeded(response.status_code, response.headers, content)
        else:
            found.failed(response.status_code, response.headers, without_keys(request, content))
        return self._whole(request, response, found.content)

    def _pass(self, request: Any, asked: Request, tally: Tally) -> Any:
        request.headers["accept-encoding"] = "identity"
        watch = Inside(tally, asked)
        response = self._inner.handle_request(request)
        return _streamed(request, response, watch) if _tells(asked, response) else response


class AsyncRecorder(Recorder):
    """Records the calls of an async client."""

    async def __aenter__(self) -> AsyncRecorder:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *problem: Any) -> None:
        await self._inner.__aexit__(*problem)

    async def aclose(self) -> None:
        """Close the transport that really sends."""
        await self._inner.aclose()

    async def handle_async_request(self, request: Any) -> Any:
        """Answer a request: from the journal, or live and then recorded."""
        here = _here()
        if here is None:
            return await self._inner.handle_async_request(request)
        await request.aread()
        asked = self._asked(request)
        if asked is None:
            return await self._inner.handle_async_request(request)
        tally = running.get()
        if tally is not None:
            return await self._pass(request, asked, tally)
        with stopping(here.session):
            if is_in_order(here):
                with in_order(here, asked, waits=True) as found:
                    made = await self._made(request, found)
            else:
                made = await self._beside(request, asked, here)
        if isinstance(made, Exception):
            raise made
        return made

    async def _beside(self, request: Any, asked: Request, here: Scope) -> Any:
        session = here.session
        home = asyncio.get_running_loop() is session.models.loop
        session.enter()
        try:
            found = beside(here, asked, waits=home)
            if home and found.step_id in session.cursor.unheard:
                await nobody_hears(found.step_id, here)
            if isinstance(found, Step):
                return await self._made(request, found)
            if not found.attempt:
                await turn_comes(found, here)
            if not home:
                return await self._made(request, found)
            # Whoever asked may be cancelled; what is paid for is recorded all the same.
            task = session.models.spawn(self._made(request, found))
            try:
                with session.models.awaited(found):
                    return await asyncio.shield(task)
            except asyncio.CancelledError:
                task.add_done_callback(_close_orphan)
                if goes_on(here):
                    found.gave_up()
                raise
        finally:
            session.leave()

    async def _made(self, request: Any, found: Step | ModelCall) -> Any:
        """Return the response, or the exception that is to be raised outside of the guard."""
        if isinstance(found, Step):
            return replayed(request, found, self._paced)
        request.headers["accept-encoding"] = "identity"
        found.begin(str(request.url))
        try:
            response = await self._inner.handle_async_request(request)
            if _streams(found.request, response):
                found.opened(response.status_code, response.headers)
                return _streamed(request, response, found)
            content = await response.aread()
        except Exception as error:
            found.broke(error)
            return error
        if response.is_success:
            written = found.succeeded(response.status_code, response.headers, content)
            if written is not None:
                await written
        else:
            found.failed(response.status_code, response.headers, without_keys(request, content))
        return self._whole(request, response, found.content)

    async def _pass(self, request: Any, asked: Request, tally: Tally) -> Any:
        request.headers["accept-encoding"] = "identity"
        watch = Inside(tally, asked)
        response = await self._inner.handle_async_request(request)
        return _streamed(request, response, watch) if _tells(asked, response) else response


def replayed(request: Any, entry: Step, paced: bool) -> Any:
    """Return the recorded answer as the SDK's library has it, or the recorded error."""
    library = _library(request)
    error = entry.error
    if error is not None and error.response is UNSET:
        kind: Any = getattr(library, error.name, library.TransportError)
        if not (isinstance(kind, type) and issubclass(kind, library.TransportError)):
            kind = library.TransportError
        return kind(error.message, request=request)
    answer = recorded_answer(entry.result if error is None else error.response, entry.step_id)
    headers = dict(answer.headers)
    if error is not None:
        headers["x-should-retry"] = "false"  # it was the last attempt that was recorded
    if answer.times is None:
        return library.Response(answer.status, headers=headers, content=answer.content)
    stream = stream_class(library, "replayed")(answer, paced)
    return library.Response(answer.status, headers=headers, stream=stream)


def _here() -> Scope | None:
    here = scope.get()
    return None if here is None or here.session.over else here


def _library(request: Any) -> Any:
    return sys.modules[type(request).__module__.partition(".")[0]]


def _streams(asked: Request, response: Any) -> bool:
    stream = asked.streams or is_stream(response.headers.get("content-type", ""))
    return bool(stream and response.is_success)


def _tells(asked: Request, response: Any) -> bool:
    """Tell whether an answer is a model's, or may say what it spent."""
    json = "json" in response.headers.get("content-type", "")
    return bool(response.is_success and (json or looks_like_a_model(asked))) or _streams(
        asked, response
    )


def _close_orphan(task: asyncio.Task[Any]) -> None:
    """Close a stream that nobody waits for any more."""
    if task.cancelled() or task.exception() is not None:
        return
    stream = getattr(task.result(), "stream", None)
    if isinstance(stream, AsyncStream):
        closing = asyncio.ensure_future(stream.aclose())
        _closing.add(closing)
        closing.add_done_callback(_closing.discard)


#: Kept, since the loop itself holds its tasks weakly.
_closing: set[asyncio.Future[None]] = set()


def _streamed(request: Any, response: Any, sink: ModelCall | Inside) -> Any:
    """Return the response with its stream watched."""
    library = _library(request)
    waits = isinstance(response.stream, library.AsyncByteStream)
    headers = response.headers.multi_items()
    encoded = "content-encoding" in response.headers
    if encoded:  # although asked not to
        headers = [pair for pair in headers if pair[0].lower() not in _TRAVEL]
    if isinstance(sink, Inside):
        sink.opened(_streams(sink.request, response))
    stream = stream_class(library, "async" if waits else "sync")(response, encoded, sink)
    sink.stream = stream
    return library.Response(
        response.status_code, headers=headers, stream=stream, extensions=response.extensions
    )
