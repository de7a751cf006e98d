"""Where the running code belongs: its session and its branch.

A context variable, so it follows the code into tasks and into `asyncio.to_thread`: that is how a
model call that some library makes finds the run it is made for.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any


class Scope:
    """A session with the branch that the code runs on."""

    __slots__ = ("branch", "session")

    def __init__(self, session: Any, branch: Any) -> None:
        # A `Session` and a `Branch`, which stand above this module.
        self.session = session
        self.branch = branch


#: None outside of workflows.
scope: ContextVar[Scope | None] = ContextVar("kassette scope", default=None)
