"""Streams that are watched on their way to the SDK, and streams played back from a journal."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from functools import cache
from typing import Any, Literal

from .call import ModelCall
from .inside import Inside
from .wire import Answer


class Live:
    """A response's stream, whose every piece is told before the reader gets it.

    Some SDKs iterate once more, to drain what is left: the second time goes on where the first
    one stopped.
    """

    def __init__(self, response: Any, encoded: bool, sink: ModelCall | Inside) -> None:
        self._response = response
        self._encoded = encoded
        self._sink = sink
        self._chunks: Any = None
        self._over = False


class SyncStream(Live):
    """For a client that blocks."""

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._over:
            raise StopIteration
        if self._chunks is None:
            chunks = self._response.iter_bytes() if self._encoded else self._response.stream
            self._chunks = iter(chunks)
        try:
            chunk: bytes = next(self._chunks)
        except StopIteration:
            self._over = True
            with self._sink.guard():
                self._sink.ended()
            raise
        except BaseException as error:
            self._over = True
            self._sink.cut(error)
            raise
        with self._sink.guard():
            self._sink.took(chunk)
        return chunk

    def close(self) -> None:
        self._over = True
        try:
            with self._sink.guard():
                self._sink.closed()
        finally:
            self.release()

    def release(self) -> None:
        """Close the connection."""
        self._response.close()


class AsyncStream(Live):
    """For an async client."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._over:
            raise StopAsyncIteration
        if self._chunks is None:
            chunks = self._response.aiter_bytes() if self._encoded else self._response.stream
            self._chunks = chunks.__aiter__()
        try:
            chunk: bytes = await self._chunks.__anext__()
        except StopAsyncIteration:
            self._over = True
            with self._sink.guard():
                written = self._sink.ended()
                if written is not None:
                    await written
            raise
        except BaseException as error:
            self._over = True
            self._sink.cut(error)
            raise
        with self._sink.guard():
            written = self._sink.took(chunk)
            if written is not None:
                await written
        return chunk

    async def aclose(self) -> None:
        self._over = True
        try:
            with self._sink.guard():
                written = self._sink.closed()
                if written is not None:
                    await written
        finally:
            await self.release()

    async def release(self) -> None:
        """Close the connection."""
        await self._response.aclose()


class Replayed:
    """The pieces of a recorded stream, at once or in their recorded time."""

    def __init__(self, answer: Answer, paced: bool) -> None:
        self._pieces = iter(zip(answer.chunks, _pauses(answer, paced), strict=True))

    def __iter__(self) -> Iterator[bytes]:
        for chunk, pause in self._pieces:
            if pause:
                time.sleep(pause)
            yield chunk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk, pause in self._pieces:
            if pause:
                await asyncio.sleep(pause)
            yield chunk

    def close(self) -> None:
        """Nothing is held."""

    async def aclose(self) -> None:
        """Nothing is held."""


def _pauses(answer: Answer, paced: bool) -> list[float]:
    if not paced or not answer.times:
        return [0.0] * len(answer.chunks)
    times = [0, *answer.times]
    return [max(0, after - before) / 1000 for before, after in itertools.pairwise(times)]


@cache
def stream_class(library: Any, kind: Literal["sync", "async", "replayed"]) -> Any:
    """Return the class that httpx, or httpx2, takes for a stream of its own."""
    own = {"sync": SyncStream, "async": AsyncStream, "replayed": Replayed}[kind]
    bases = {
        "sync": (library.SyncByteStream,),
        "async": (library.AsyncByteStream,),
        "replayed": (library.SyncByteStream, library.AsyncByteStream),
    }[kind]
    return type(own.__name__, (own, *bases), {})
