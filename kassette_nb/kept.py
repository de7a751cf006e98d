"""Where the snapshots of a storage's runs are kept, and what to say where they are not."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from .entries import AnyEntry, Resume, Start
from .errors import WorkspaceError
from .snapshots import Snapshots
from .storage import Storage
from .told import tell

#: Where the snapshots of a storage that is not a directory go; by default the user's data folder.
VARIABLE = "KASSETTE_WORKSPACES"


def home(storage: Storage) -> Path:
    """Return where the snapshots of a storage's runs are kept, and the trees of its forks."""
    if storage.url.startswith("file:") and os.path.isabs(storage.place):
        return Path(storage.place) / ".workspaces"
    given = os.environ.get(VARIABLE)
    base = Path(given) if given else Path.home() / ".local" / "share" / "kassette_nb"
    return base / hashlib.sha256(storage.place.encode()).hexdigest()[:16]


def check_kept(
    storage: Storage,
    run_id: str,
    commit: str | None,
    entries: Sequence[AnyEntry] = (),
    asked: str = "fork",
) -> None:
    """Refuse what needs a snapshot that is not here.

    Args:
        storage: Where the run is.
        run_id: The run.
        commit: The snapshot; None for a run without a workspace.
        entries: The run's journal, which says whose machine ran it.
        asked: What was to be done with the run, for the message.

    Raises:
        WorkspaceError: It is not in the repository; says where that should be.
    """
    if commit is not None and not Snapshots(home(storage)).has(commit):
        raise WorkspaceError(
            f"cannot {asked} run {run_id!r} with its files: snapshot {commit[:12]} is not in "
            f"{Snapshots(home(storage)).repository}. {kept_where(storage, entries)} Nothing was "
            "written."
        )


def kept_where(storage: Storage, entries: Sequence[AnyEntry]) -> str:
    """Say where snapshots are that are not here."""
    if storage.url.startswith("file:"):
        return "Bring that directory back from where the run was recorded."
    hosts = [e.host for e in entries if isinstance(e, Start | Resume) and e.host]
    host = f", {hosts[-1]}" if hosts else ""
    return (
        f"The files are kept on the machine that ran it{host}, not in the storage: do it there, "
        f"or bring that directory here. For runs to come, let {VARIABLE} name a directory that "
        "all machines share."
    )


_said: set[str] = set()


def say_where(storage: Storage, workflow: str) -> None:
    """Warn once per workflow that its files do not go where other machines find its runs."""
    if not storage.blocking or os.environ.get(VARIABLE) or workflow in _said:
        return
    _said.add(workflow)
    tell(
        f"workflow {workflow!r} keeps files, and they stay on this machine, in {home(storage)}: "
        f"another one cannot go on with its runs in {storage.url}. Let {VARIABLE} name a directory "
        "that all machines share.",
        storage.url,
    )
