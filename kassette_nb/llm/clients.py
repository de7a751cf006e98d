"""Clients whose model calls are recorded: made here, or made by anybody while `recording`."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from .refusing import AsyncRefuser, SyncRefuser, verified
from .request import Request
from .spending import looks_like_a_model
from .transport import AsyncRecorder, Recorder, SyncRecorder, Wanted

_LIBRARIES = ("httpx", "httpx2")


def http_client(sdk: ModuleType, /, *, paced: bool = False, **options: Any) -> Any:
    """Return an HTTP client for an SDK; the model calls that a workflow makes with it are recorded.

    ``OpenAI(http_client=http_client(openai))``. A call made by the workflow itself is a step of
    kind ``llm``: live once, replayed without the network ever after. One made inside a step
    passes through, and its usage is added to the step. Outside of workflows it is an ordinary
    client. All that the workflow asks with it is recorded, a list of models as well.

    Args:
        sdk: The SDK's module (its own defaults for limits and timeouts are kept), or ``httpx`` or
            ``httpx2`` itself, for an SDK that takes a client of those.
        paced: Replay streams in their recorded time instead of at once.
        options: For the client: ``timeout``, ``proxy``, ``transport`` …

    Returns:
        A client of the library that the SDK uses.

    Raises:
        TypeError: The module has no such client; says what to give instead.
    """
    client = _class(sdk, "DefaultHttpxClient", "Client")(**options)
    return _wrapped(client, SyncRecorder, paced)


def async_http_client(sdk: ModuleType, /, *, paced: bool = False, **options: Any) -> Any:
    """Return an async HTTP client for an SDK: ``AsyncOpenAI(http_client=…)``; see `http_client`.

    Args:
        sdk: As there.
        paced: As there.
        options: As there.
    """
    client = _class(sdk, "DefaultAsyncHttpxClient", "AsyncClient")(**options)
    return _wrapped(client, AsyncRecorder, paced)


def _class(sdk: ModuleType, *names: str) -> Any:
    if not isinstance(sdk, ModuleType):
        raise TypeError(
            f"http_client takes the SDK's module, not {type(sdk).__name__!r}: "
            "OpenAI(http_client=http_client(openai))"
        )
    found = next((getattr(sdk, name) for name in names if hasattr(sdk, name)), None)
    if found is None:
        raise TypeError(
            f"{sdk.__name__!r} has no HTTP client of its own. Give the library that it uses, "
            "http_client(httpx) or http_client(httpx2), or use `with recording():`"
        )
    return found


def _wrapped(client: Any, recorder: type[Recorder], paced: bool) -> Any:
    # Wrapped when it is made, not given as transport=: that would switch proxies off.
    if not hasattr(client, "_transport") or not isinstance(getattr(client, "_mounts", None), dict):
        raise TypeError(
            f"{type(client).__name__} of {type(client).__module__!r} is not a client of httpx or "
            "httpx2 as they are known here"
        )
    client._transport = recorder(client._transport, paced=paced)
    client._mounts = {
        pattern: None if inner is None else recorder(inner, paced=paced)
        for pattern, inner in client._mounts.items()
    }
    return client


# ------------------------------------------------------------------- clients made by others

_wanted: ContextVar[tuple[Wanted, bool] | None] = ContextVar("kassette recording", default=None)
_lock = threading.Lock()
_users = 0
_found: list[tuple[Any, Any, Any]] = []


class recording:  # it reads as a verb: with recording():
    """Record the model calls of every client of httpx and httpx2, whoever made it.

    It holds for the code inside the ``with`` and for tasks and threads that it starts, also for
    workflows started there; put it into the workflow's own function, so that whoever continues or
    verifies its runs records and replays, too. Other code of the process is not touched, and
    afterwards the libraries are as they were. Without ``with`` it does nothing, and says so.

    Args:
        hosts: Record all calls to these hosts (``"api.openai.com"``), and only these; by default
            what looks like a call to a model: JSON that is posted, names a model and gives it
            something to read.
        paced: Replay streams in their recorded time instead of at once.

    Raises:
        TypeError: ``hosts`` is one text.
    """

    def __init__(self, hosts: Iterable[str] | None = None, *, paced: bool = False) -> None:
        self._used = True  # what is refused here is told already
        if isinstance(hosts, str):
            raise TypeError(f"hosts takes several names: recording([{hosts!r}])")
        names = None if hosts is None else frozenset(host.lower() for host in hosts)

        def wanted(request: Request) -> bool:
            if names is None:
                return looks_like_a_model(request)
            return urlsplit(request.url).hostname in names

        self._asked = wanted, paced
        self._tokens: list[Token[tuple[Wanted, bool] | None]] = []
        self._used = False

    def __enter__(self) -> None:
        self._used = True
        _install()
        self._tokens.append(_wanted.set(self._asked))

    def __exit__(self, *problem: object) -> None:
        _wanted.reset(self._tokens.pop())
        _remove()

    def __del__(self) -> None:
        if not self._used:
            warnings.warn(
                "kb.llm.recording() was called without `with`, so nothing was recorded: write "
                "`with kb.llm.recording(): …` inside the workflow's function",
                RuntimeWarning,
                stacklevel=2,
            )


@contextmanager
def refusing() -> Iterator[None]:
    """Refuse what a workflow under verification asks over HTTP and nobody records.

    Only of libraries that are loaded: a click on an answer should not wait for others.
    """
    _install(loaded=True)
    try:
        yield
    finally:
        _remove()


def _install(*, loaded: bool = False) -> None:
    global _users
    with _lock:
        _users += 1
        patched = {client.__module__.partition(".")[0] for client, *_ in _found}
        for name in _LIBRARIES:
            if name in patched or (loaded and name not in sys.modules):
                continue
            if name in sys.modules or find_spec(name) is not None:
                library = import_module(name)
                mock = library.MockTransport
                _patch(library.Client, SyncRecorder, SyncRefuser, mock)
                _patch(library.AsyncClient, AsyncRecorder, AsyncRefuser, mock)


def _patch(
    client: Any, recorder: type[Recorder], refuser: type[SyncRefuser], mock: type[Any]
) -> None:
    original = client._transport_for_url

    def transport_for_url(self: Any, url: Any) -> Any:
        inner = original(self, url)
        if isinstance(inner, Recorder):
            return inner
        here = verified()
        if here is not None and not isinstance(inner, mock):  # which reaches nobody
            inner = refuser(here)
        asked = _wanted.get()
        return inner if asked is None else recorder(inner, *asked)

    client._transport_for_url = transport_for_url
    _found.append((client, transport_for_url, original))


def _remove() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users:
            return
        for client, ours, original in _found:
            # Somebody else's patch around ours stays; ours does nothing by itself.
            if client.__dict__.get("_transport_for_url") is ours:
                client._transport_for_url = original
        _found.clear()
