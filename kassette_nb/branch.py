"""One sequential strand of a run: the workflow itself, or one branch of a parallel block."""

from __future__ import annotations

import asyncio
from typing import Any

from .replay import Names


class Branch:
    """Where ids are counted and calls are made one at a time.

    Args:
        path: The ids of the block keys that lead here, joined by ``/``; empty for the workflow.

    Attributes:
        names: Gives the ids.
        task: The one task that may call; set when it begins.
        in_flight: What is being called now, for the error of a second call.
        closed: What every call raises once this branch has suspended.
    """

    __slots__ = ("closed", "in_flight", "names", "task")

    def __init__(self, path: str = "") -> None:
        self.names = Names(path)
        self.task: asyncio.Task[Any] | None = None
        self.in_flight: object | None = None
        self.closed: BaseException | None = None

    @property
    def path(self) -> str:
        """The branch's path."""
        return self.names.branch
