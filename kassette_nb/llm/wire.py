"""Answers as they come over the wire: pieces of a stream, its end, and both in a journal."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ..entries import Payload
from ..errors import JournalValueError
from ..redact import secret
from .request import compact

#: These say how the bytes came, or are nobody's business; the rest is kept for the SDK.
_DROPPED = re.compile(
    r"(set-cookie2?|content-encoding|content-length|transfer-encoding|connection|keep-alive"
    r"|trailer|upgrade|www-authenticate|proxy-.*|authentication-info)\Z",
    re.IGNORECASE,
)
#: Characters of a provider's error, or of an answer that is too large, that a note keeps.
MESSAGE = 500
_STREAMS = frozenset(
    {
        "text/event-stream",
        "application/x-ndjson",
        "application/stream+json",
        "application/vnd.amazon.eventstream",
    }
)
#: Events after which a provider sends nothing more.
_LAST_EVENTS = frozenset(
    {b"message_stop", b"response.completed", b"response.incomplete", b"response.failed"}
)
_LAST_TYPE = re.compile(
    rb'"type"\s*:\s*"(?:message_stop|response\.(?:completed|incomplete|failed))"'
)
_REASON = re.compile(rb'"(?:finish_reason|finishReason|stop_reason)"\s*:\s*"|"done"\s*:\s*true')
#: Paths whose streams end with a mark: one that just ends there was cut.
_MARKED = re.compile(r"/(chat/completions|completions|responses|messages)/?\Z")


class Answer(msgspec.Struct):
    """A complete answer: what a transport gives to an SDK.

    Attributes:
        status: The HTTP status.
        headers: Of the response, as far as they are kept.
        chunks: Its body in the pieces in which it came.
        times: When each piece of a stream came, in milliseconds after the request; None for an
            answer that came whole.
    """

    status: int
    headers: dict[str, str]
    chunks: list[bytes]
    times: list[int] | None = None

    @property
    def content(self) -> bytes:
        """The whole body."""
        return self.chunks[0] if len(self.chunks) == 1 else b"".join(self.chunks)

    @classmethod
    def whole(cls, status: int, headers: dict[str, str], content: bytes) -> Answer:
        """Return an answer that came in one piece, in the spelling in which a journal has it.

        JSON loses its blanks there. Who reads the text of an answer must not read another one on
        a replay, so the live reader is given this one.
        """
        body = compact(content)
        return cls(status, headers, [content if body is None else bytes(body)])

    def beginning(self) -> Answer:
        """Return its first characters, for people, where it is too large to be kept."""
        text = self.content[:MESSAGE].decode(errors="ignore").encode()
        times = None if self.times is None else self.times[:1]
        return Answer(self.status, self.headers, [text], times)

    def recorded(self) -> dict[str, Any]:
        """Return it as it stands in a journal: JSON as JSON, a stream as text with its cuts."""
        kept: dict[str, Any] = {"status": self.status}
        content = self.content
        body = compact(content) if self.times is None else None
        if body is not None:
            kept["body"] = body
        elif (text := _text(content)) is not None:
            kept["text"] = text
        else:
            kept["base64"] = base64.b64encode(content).decode()
        if self.times is not None:
            kept["sizes"] = [len(chunk) for chunk in self.chunks]
            kept["times"] = self.times
        kept["headers"] = self.headers  # last: a person looks for the body
        return kept


class _Recorded(msgspec.Struct):
    status: int = 200
    headers: dict[str, str] = {}
    body: Payload = msgspec.UNSET
    text: str | None = None
    base64: str | None = None
    sizes: list[int] | None = None
    times: list[int] | None = None


_decoder = msgspec.json.Decoder(_Recorded)


def recorded_answer(payload: Payload, step_id: str) -> Answer:
    """Return the answer that a journal holds.

    Raises:
        JournalValueError: The payload is none: put in by hand, or by another program.
    """
    try:
        kept = _decoder.decode(payload)  # type: ignore[arg-type]  # UNSET raises TypeError
    except (msgspec.DecodeError, UnicodeError, TypeError, RecursionError) as problem:
        raise JournalValueError(
            f"the result of model call {step_id!r} is not a provider's answer ({problem}). An "
            'override of one keeps its form, {"status": 200, "headers": …, "body": …}: change the '
            "text inside. Nothing was written.",
            path="$",
            reason=str(problem),
        ) from None
    if kept.body is not msgspec.UNSET:
        content = bytes(kept.body)
    elif kept.base64 is not None:
        content = base64.b64decode(kept.base64)
    else:
        content = (kept.text or "").encode()
    if kept.sizes is None:
        return Answer(kept.status, kept.headers, [content])
    # A result put in by hand need not have the old one's cuts.
    sizes = kept.sizes if sum(kept.sizes) == len(content) else [len(content)]
    times = kept.times if kept.times and len(kept.times) == len(sizes) else [0] * len(sizes)
    return Answer(kept.status, kept.headers, [*_cut(content, sizes)], times)


def kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a response that may stand in a journal."""
    return {
        name.lower(): value
        for name, value in headers.items()
        if not _DROPPED.match(name) and not secret(name)
    }


def is_stream(content_type: str) -> bool:
    """Tell whether an answer of this type comes in pieces that somebody waits for."""
    return content_type.partition(";")[0].strip().lower() in _STREAMS


class Ending:
    """Watches a stream for its end.

    Args:
        path: Of the URL: some streams say when they are over, and are cut if they do not.
    """

    def __init__(self, path: str) -> None:
        self.complete = False
        #: What the provider says in the stream of why it breaks it off; empty if it does not.
        self.refusal = ""
        self._marked = _MARKED.search(path) is not None
        self._reason = False
        self._named = False
        self._last = False
        self._rest = b""

    def feed(self, chunk: bytes) -> bool:
        """Take the next piece; tell whether the stream has said that it is over."""
        if self.complete:
            return True
        lines = (self._rest + chunk if self._rest else chunk).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line in (b"", b"\r"):
                if self._last:
                    self.complete = True
                    return True
                self._named = False
                continue
            if line.startswith(b"data:"):
                data = line[5:].strip()
                told = data == b"[DONE]" or self._named
                if told or (_LAST_TYPE.search(data) and _type(data) in _LAST_EVENTS):
                    self._last = True
                elif b'"error"' in data:
                    self.refusal = self.refusal or _refusal(data)
            elif line.startswith(b'{"error"'):  # of a stream of JSON lines
                self.refusal = self.refusal or _refusal(line)
            elif line.startswith(b"event:") and line[6:].strip() in _LAST_EVENTS:
                self._named = True  # its data is still to come
            if not self._reason and _REASON.search(line):
                self._reason = True
        return False

    def why(self, seen: str) -> str:
        """Return why the stream is not whole: what the provider said, else what was seen."""
        return f"the provider broke it off: {self.refusal}" if self.refusal else seen

    def ended(self, cleanly: bool) -> bool:
        """Tell whether what came so far is the whole answer, now that nothing more comes.

        Args:
            cleanly: The server ended it, not the reader.
        """
        if _REASON.search(self._rest):
            self._reason = True
        if self._rest.strip() == b"data: [DONE]" or self._last:
            self.complete = True  # the last empty line is missing
        return self.complete or self._reason or (cleanly and not self._marked)


def events(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a stream: of server-sent events, or of lines."""
    sent = content.lstrip().startswith((b"data:", b"event:", b"id:", b"retry:", b":"))
    if not sent:
        yield from _objects(content.split(b"\n"))
        return
    data: list[bytes] = []
    for line in [*content.replace(b"\r\n", b"\n").split(b"\n"), b""]:
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            yield from _objects([b"\n".join(data)])
            data = []


def _objects(texts: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for text in texts:
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def _type(data: bytes) -> bytes:
    found = next(_objects([data]), {}).get("type")
    return found.encode() if isinstance(found, str) else b""


def _refusal(data: bytes) -> str:
    """Return what an event says that went wrong, if that is what it says."""
    told = next(_objects([data]), {})
    error = told.get("error") or (told if told.get("type") == "error" else None)
    if not isinstance(error, dict):
        return str(error or "")[:MESSAGE]
    kind = error.get("code" if error is told else "type")
    words = [str(part) for part in (kind, error.get("message")) if part]
    return (": ".join(words) or msgspec.json.encode(error).decode())[:MESSAGE]


def _text(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _cut(content: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    start = 0
    for size in sizes:
        yield content[start : start + size]
        start += size
