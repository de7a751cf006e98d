"""Durable agent runs in plain files, and a debugger for them in the notebook.

A run is a journal: finished steps are recorded once and replayed ever after. `kassette` makes an
async function a workflow; `open` looks at the runs of a storage; ``%load_ext kassette_nb`` shows
them in Jupyter.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .budget import Budget
from .context import Context
from .declared import Workspace
from .decorator import kassette
from .entries import Usage
from .errors import KassetteError, StepFailedError, Suspended
from .results import RunResult
from .retry import Retry
from .storage import LocalStorage, MemoryStorage, Storage
from .usage import with_usage
from .workflow import Workflow

if TYPE_CHECKING:
    from . import dispatch as dispatch
    from .idempotence import idempotent
    from .notebook.compare import Comparison
    from .run import Run
    from .runs import Runs, compare
    from .runs import open as open
    from .storage.objects import ObjectStorage

__version__ = "0.1.0"
__all__ = [
    "Budget",
    "Comparison",
    "Context",
    "KassetteError",
    "LocalStorage",
    "MemoryStorage",
    "ObjectStorage",
    "Retry",
    "Run",
    "RunResult",
    "Runs",
    "StepFailedError",
    "Storage",
    "Suspended",
    "Usage",
    "Workflow",
    "Workspace",
    "compare",
    "idempotent",
    "kassette",
    "with_usage",
]

# An agent's process must start without paying for what only a notebook needs.
_LAZY = {
    "Comparison": "notebook.compare",
    "ObjectStorage": "storage.objects",
    "Run": "run",
    "Runs": "runs",
    "compare": "runs",
    "idempotent": "idempotence",
    "open": "runs",
}


def __getattr__(name: str) -> Any:
    if name in ("dispatch", "llm"):  # rooms of their own, whose names are not this one's
        return import_module(f".{name}", __name__)
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{module}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__", "dispatch", "errors", "llm", "open", "testing"})


def load_ipython_extension(ipython: Any) -> None:
    """Turn on the debugger: ``%load_ext kassette_nb``."""
    from .magics import load

    load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Turn it off again: ``%unload_ext kassette_nb``."""
    from .magics import unload

    unload(ipython)
