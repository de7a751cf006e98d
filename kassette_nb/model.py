"""What views, frames and decisions need of a run and of a storage's runs.

They take these by Protocol and never import the classes, which import them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import UNSET, UnsetType

from .background import Background
from .entries import ErrorInfo
from .files import Files
from .journal import Journal
from .state import RunState
from .storage import Storage
from .values import JSON
from .verification import Verification
from .workflow import Workflow


class RunModel(Protocol):
    """One run; see `kassette_nb.run.Run`."""

    run_id: str
    storage: Storage
    verification: Verification | None

    @property
    def journal(self) -> Journal: ...

    @property
    def workflow(self) -> Workflow | None: ...

    @property
    def session(self) -> Background | None: ...

    @property
    def label(self) -> str | None: ...

    @property
    def error(self) -> ErrorInfo | None: ...

    @property
    def workspace(self) -> Files: ...

    def verify(self) -> Verification: ...

    def fold(self) -> RunState: ...

    def still(self, folded: RunState) -> AbstractContextManager[None]: ...

    def approve(
        self,
        *,
        by: str | None = None,
        note: str | None = None,
        event: str | None = None,
        start: bool = True,
    ) -> RunModel: ...

    def reject(
        self,
        *,
        by: str | None = None,
        note: str | None = None,
        event: str | None = None,
        start: bool = True,
    ) -> RunModel: ...

    def respond(
        self,
        value: JSON,
        *,
        by: str | None = None,
        note: str | None = None,
        event: str | None = None,
        start: bool = True,
    ) -> RunModel: ...

    def settle(
        self,
        action: str,
        value: JSON = None,
        *,
        by: str | None = None,
        note: str | None = None,
        event: str | None = None,
        attempt: int | None = None,
        start: bool = True,
    ) -> RunModel: ...

    def resume(self) -> RunModel: ...

    def retry(self, *, start: bool = False) -> RunModel: ...

    def cancel(self, *, reason: str | None = None) -> RunModel: ...

    def fork(
        self,
        at: str | int | None = None,
        *,
        override: Mapping[str, JSON] | None = None,
        answer: JSON | UnsetType = UNSET,
        start: bool = False,
        label: str | None = None,
        new_run_id: str | None = None,
        by: str | None = None,
        note: str | None = None,
    ) -> RunModel: ...


class RunsModel(Protocol):
    """The runs of one storage; see `kassette_nb.runs.Runs`."""

    storage: Storage

    def __getitem__(self, run_id: str) -> RunModel: ...

    def listed(self) -> Iterable[RunModel]:
        """Yield every listed run, damaged ones too, by id."""
        ...

    def forks_of(self, run_id: str) -> Iterable[RunModel]:
        """Yield the readable runs whose source is this one."""
        ...
