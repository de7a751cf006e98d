"""Reading, listing and conditionally writing objects, through all that a network does.

One rule makes a write safe: after any failure, a refused condition included, the object is read
back. If it holds the bytes that were sent, it was written and only the reply was lost. If it is as
it was, the write is sent again, and the condition lets only one of the two count. Anything else is
a conflict.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import StorageError
from .clients import asked, explain, kind_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore

#: Seconds for which a read, or a write, is tried again while the server or the network refuses.
READING = 6.0
WRITING = 20.0
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Version:
    """A state of an object. Two are the same if their ETags are; a listing knows only those."""

    tag: str
    number: str | None = field(default=None, compare=False)


#: Of an object that has been written and then changed by somebody else.
OVERTAKEN = Version("overtaken")


class Object(msgspec.Struct, frozen=True):
    """An object as it was found. ``data`` is None where only its version was looked at."""

    key: str
    version: Version
    modified: datetime
    size: int
    data: bytes | None = None


class Objects:
    """The objects of one bucket.

    Args:
        connect: Returns the client; raises `StorageError` where there can be none.
        place: The bucket's URL, for messages.
    """

    def __init__(self, connect: Callable[[], ObjectStore], place: str) -> None:
        self._connect = connect
        self._place = place
        self._scheme = place.partition(":")[0]

    def get(
        self, key: str, since: Version | None = None, patience: float = READING
    ) -> Object | None:
        """Return an object, without its data where it still is as in ``since``; None if missing.

        Raises:
            StorageError: The server refuses, or cannot be reached for ``patience`` seconds.
        """
        client = self._connect()
        import obstore

        options: Any = {"if_none_match": since.tag} if since is not None else None
        for again in _tries(patience):
            try:
                found = asked(obstore.get, client, key, options=options)
                return _object(found.meta, bytes(found.bytes()))
            except Exception as problem:
                kind, why = kind_of(problem), explain(problem, self._scheme)
            if kind == "missing":
                return None
            if kind == "unchanged" and since is not None:
                return Object(key, since, _LONG_AGO, 0)
            if kind == "refused" or not again:
                raise self._error("read", key, why)
        raise AssertionError("unreachable")

    def swap(
        self, key: str, expected: Version | None, data: bytes, patience: float = WRITING
    ) -> tuple[Version | None, Object | None]:
        """Write an object if it is as expected (None: if it is missing).

        Args:
            key: Its key.
            expected: What it must be now.
            data: Its new content, unlike any that anybody else could write.
            patience: Seconds for which it is tried again.

        Returns:
            Its new version, durable. Or None and what is there instead.

        Raises:
            StorageError: The server refuses, or cannot be reached for ``patience`` seconds: then
                it is not known whether the write arrived.
        """
        client = self._connect()
        import obstore

        mode: Any = "create"
        if expected is not None:
            mode = {"e_tag": expected.tag}
            if expected.number is not None:
                mode["version"] = expected.number
        began = time.monotonic()
        unknown = False
        for again in _tries(patience):
            try:
                put = asked(obstore.put, client, key, data, mode=mode, use_multipart=False)
                return Version(str(put["e_tag"]), put["version"]), None
            except Exception as problem:
                kind, why = kind_of(problem), explain(problem, self._scheme)
            # Nothing can be missing for a write that makes it, unless it is the bucket.
            if kind == "refused" or (kind == "missing" and expected is None):
                raise self._error("write", key, why, _UNKNOWN if unknown else _UNWRITTEN)
            unknown = True
            left = patience - (time.monotonic() - began)
            try:
                there = self.get(key, patience=max(left, 1.0))
            except StorageError as blind:
                raise self._error("write", key, blind.reason, _UNKNOWN) from None
            if there is not None and there.data is not None and there.data.startswith(data):
                return (there.version if there.size == len(data) else OVERTAKEN), None
            if (there.version if there is not None else None) != expected:
                return None, there
            if not again:
                # It was not there a moment ago, but may still be under way.
                raise self._error("write", key, why, _UNKNOWN)
        raise AssertionError("unreachable")

    def refuse_unconditional(self, key: str) -> bool:
        """Write on a condition that is never met: a server that does it all the same is refused.

        Returns:
            Whether the server was seen to keep to the condition; False where the weather hid it.

        Raises:
            StorageError: Two sessions could overwrite each other there.
        """
        client = self._connect()
        import obstore

        mode: Any = {"e_tag": '"never"', "version": "1"}
        try:
            asked(obstore.put, client, key, b"", mode=mode, use_multipart=False)
        except Exception as problem:
            kind = kind_of(problem)
            if kind != "refused":
                return kind != "weather"  # which the next request will meet as well
            why = explain(problem, self._scheme)
        else:
            why = (
                "the server ignores the condition of a conditional write (If-Match), so two "
                "sessions could overwrite each other: use a server that knows it"
            )
        raise self._error("write", key, why)

    def stamp(self, key: str, data: bytes) -> datetime:
        """Overwrite an object and return the server's time of it."""
        client = self._connect()
        import obstore

        for again in _tries(READING):
            try:
                asked(obstore.put, client, key, data, use_multipart=False)
                return asked(obstore.head, client, key)["last_modified"]
            except Exception as problem:
                kind, why = kind_of(problem), explain(problem, self._scheme)
            if kind == "refused" or not again:
                raise self._error("write", key, why)
        raise AssertionError("unreachable")

    def list(self, prefix: str, after: str = "") -> Iterator[Object]:
        """Yield the objects below a prefix in the order of their keys, a request a thousand.

        Args:
            prefix: With its ``/``; empty for all.
            after: Only keys greater than prefix and this.
        """
        client = self._connect()
        import obstore

        offset = f"{prefix}{after}" if after else None
        tries = _tries(READING)
        stream: Any = None
        while True:
            try:
                if stream is None:
                    stream = iter(
                        asked(obstore.list, client, prefix or None, offset=offset, chunk_size=1000)
                    )
                page = asked(next, stream, None)
            except Exception as problem:
                kind, why = kind_of(problem), explain(problem, self._scheme)
            else:
                if page is None:
                    return
                tries = _tries(READING)
                for meta in page:
                    yield _object(meta)
                    offset = meta["path"]
                continue
            if kind == "refused" or not next(tries):
                raise self._error("list", prefix, why)
            stream = None

    def _error(self, verb: str, key: str, why: str, after: str = "") -> StorageError:
        place = f"{self._place}/{key}"
        after = after or "Nothing was changed."
        return StorageError(f"cannot {verb} {place}: {why}. {after}", place=place, reason=why)


_UNWRITTEN = "Nothing was written."
_UNKNOWN = (
    "It is not known whether it was written. Start the run again: the next session sees what is "
    "there and goes on from it."
)


def _tries(patience: float) -> Iterator[bool]:
    """Yield whether one more try is left, waiting longer before each."""
    deadline = time.monotonic() + patience
    wait = 0.05
    while True:
        again = time.monotonic() < deadline
        yield again
        if not again:
            return
        time.sleep(wait * random.uniform(0.5, 1.0))
        wait = min(wait * 2, 2.0)


def _object(meta: Any, data: bytes | None = None) -> Object:
    version = Version(str(meta["e_tag"]), meta["version"])
    return Object(meta["path"], version, meta["last_modified"], meta["size"], data)
