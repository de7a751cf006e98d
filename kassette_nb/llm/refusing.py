"""Transports that refuse: while a run is verified, its workflow reaches nothing over HTTP."""

from __future__ import annotations

from typing import Any

from ..errors import LiveForbidden
from ..scope import Scope, scope
from ..usage import running
from .call import stopping
from .request import public_url

HINT = (
    " What a workflow asks over HTTP by itself is not recorded. A model call is: is its client "
    "made with kb.llm.http_client, or kb.llm.recording() on? Put anything else into a step."
)


def verified() -> Scope | None:
    """Return where the code runs if that is the body of a workflow under verification."""
    here = scope.get()
    if here is None or here.session.over or not here.session.verifies:
        return None
    return here if running.get() is None else None


class SyncRefuser:
    """In the place of the transport of a client that blocks."""

    def __init__(self, here: Scope) -> None:
        self._here = here

    def handle_request(self, request: Any) -> Any:
        """Stop the verification here."""
        _refuse(self._here, request)


class AsyncRefuser(SyncRefuser):
    """In the place of that of an async client."""

    async def handle_async_request(self, request: Any) -> Any:
        """Stop the verification here."""
        _refuse(self._here, request)


def _refuse(here: Scope, request: Any) -> None:
    session, branch = here.session, here.branch
    asked = f"{request.method} {public_url(str(request.url))}"
    try:
        with stopping(session):
            session.go_live(branch.path, asked)
    except LiveForbidden as stopped:
        stopped.hint = HINT
        # Perhaps wrapped in a group before it reaches the branch.
        branch.closed = branch.closed or stopped
        raise
