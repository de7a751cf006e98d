"""A request to a model, as it is recorded and recognised: method, URL, body; never headers."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from email.message import Message
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
from msgspec import Raw

from .. import values
from ..entries import Step
from ..errors import JournalValueError
from ..redact import HIDDEN, secret
from ..values import JSON

#: Characters of the hash that stand in the id of a call outside the order of a branch.
SHORT_DIGEST = 16
#: A difference is shown up to so many lines and so many characters a line.
LINES, WIDTH = 40, 200
#: Query parameters that are a key by another name.
_KEY_HEADERS = frozenset({"x-goog-api-key", "api-key", "proxy-authorization"})
_QUERY_KEYS = frozenset({"key", "sig", "signature", "token", "subscription-key", "code"})


class Request(msgspec.Struct, frozen=True):
    """What is asked of a model.

    Attributes:
        method: In capitals.
        url: Without user, password and the values of query parameters that are keys.
        body: JSON where it was JSON, else ``{"bytes": n, "sha256": …}``; None for an empty one.
            Texts under the names of secrets are hidden.
        digest: SHA-256 of all this in a canonical form, hexadecimal.
        size: Bytes of that form.
    """

    method: str
    url: str
    body: JSON
    digest: str
    size: int = 0

    @property
    def streams(self) -> bool:
        """Whether it asks for its answer in pieces."""
        asked = isinstance(self.body, dict) and self.body.get("stream") is True
        return asked or "stream" in urlsplit(self.url).path.rpartition("/")[2].lower()

    @property
    def model(self) -> str | None:
        """The model that is asked for: in the body, or in a URL such as ``models/name:verb``."""
        if isinstance(self.body, dict) and isinstance(self.body.get("model"), str):
            return str(self.body["model"])
        found = re.search(r"/models/([^/:]+):", self.url)
        return found[1] if found else None

    def recorded(self) -> JSON:
        """Return it as it stands in a journal."""
        return {"method": self.method, "url": self.url, "body": self.body}

    def payload(self) -> Raw:
        """Return its JSON for a journal."""
        return Raw(msgspec.json.encode(self.recorded()))


def request_of(method: str, url: str, content_type: str, content: bytes) -> Request:
    """Return a request as it is recorded.

    Args:
        method: Of the HTTP request.
        url: The same.
        content_type: The header; empty where there is none.
        content: The whole body.
    """
    shown = public_url(url)
    body = _body(content_type, content)
    known = msgspec.json.encode([method.upper(), shown, body], order="sorted")
    digest = hashlib.sha256(known).hexdigest()
    return Request(method.upper(), shown, body, digest, len(known))


def public_url(url: str) -> str:
    """Return a URL without user and password, and with the values of keys hidden."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    query = parts.query
    if query:
        pairs = parse_qsl(query, keep_blank_values=True)
        hidden = [(n, HIDDEN if n.lower() in _QUERY_KEYS or secret(n) else v) for n, v in pairs]
        query = urlencode(hidden, safe="[]")
    return urlunsplit((parts.scheme, host, parts.path, query, ""))


def without_keys(request: Any, content: bytes) -> bytes:
    """Return a provider's refusal without the keys that it repeats.

    Args:
        request: The HTTP request, with its headers and URL.
        content: What came back.
    """
    told = [v for n, v in request.headers.items() if secret(n) or n.lower() in _KEY_HEADERS]
    query = parse_qsl(urlsplit(str(request.url)).query)
    told += [v for n, v in query if n.lower() in _QUERY_KEYS or secret(n)]
    for text in told:
        for key in {text, text.rpartition(" ")[2]}:  # "Bearer …"
            if len(key) >= 8:
                content = content.replace(key.encode(), HIDDEN.encode())
    return content


def recorded_request(entry: Step) -> dict[str, Any]:
    """Return the request that a recorded model call answers; empty where it cannot be read."""
    try:
        found = values.decode(entry.args)
    except JournalValueError:
        return {}
    return found if isinstance(found, dict) else {}


def difference(recorded: JSON, asked: JSON) -> str:
    """Return the difference of two requests as a unified diff, shortened for a message."""
    old, new = (json.dumps(v, indent=1, ensure_ascii=False).split("\n") for v in (recorded, asked))
    start = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
    start = max(0, start - 3)  # conversations begin alike; the search for an alignment is slow
    lines = [*difflib.unified_diff(old[start:], new[start:], lineterm="", n=2)][2:]
    shown = [line if len(line) <= WIDTH else f"{line[:WIDTH]}…" for line in lines[:LINES]]
    if len(lines) > LINES:
        shown.append(f"… {len(lines) - LINES} more lines")
    return "\n".join(shown)


def unlike(one: JSON, other: JSON) -> int:
    """Return how many characters of two requests lie between their common beginning and end."""
    a, b = (json.dumps(v, ensure_ascii=False, sort_keys=True) for v in (one, other))
    begins = _alike(a, b)
    return len(a) + len(b) - 2 * (begins + _alike(a[begins:][::-1], b[begins:][::-1]))


def _alike(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _body(content_type: str, content: bytes) -> JSON:
    if not content:
        return None
    kind = content_type.partition(";")[0].strip().lower()
    if kind in ("", "application/json") or kind.endswith("+json"):
        try:
            return _canonical(msgspec.json.decode(content))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            pass  # not JSON after all: known by its bytes
    if kind.startswith("multipart/"):
        header = Message()
        header["content-type"] = content_type
        boundary = header.get_param("boundary")
        if isinstance(boundary, str):  # drawn by chance for each request
            content = content.replace(boundary.encode(), b"boundary")
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _canonical(value: Any, hide: bool = False) -> Any:
    """Return a body with 1.0 as 1 and secrets hidden; the order of keys is left to the hash."""
    kind = type(value)
    if kind is dict:
        return {
            key: HIDDEN
            if type(item) is str and (hide or secret(key))
            else _canonical(item, hide or key == "headers")
            for key, item in value.items()
        }
    if kind is list:
        return [_canonical(item, hide) for item in value]
    if kind is float and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def compact(content: bytes) -> Raw | None:
    """Return a text that is JSON on one line, with its numbers spelt as they are; else None."""
    try:
        msgspec.json.decode(content)
        return Raw(msgspec.json.format(content, indent=-1))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
