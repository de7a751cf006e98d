"""Runs that were imported from another agent: to be viewed and compared, never replayed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from .entries import AnyEntry, Note, Step
from .errors import KassetteError

#: The kind of the note that an import writes behind its opening line.
IMPORTED = "imported"


class _Told(msgspec.Struct):
    format: str = ""


def agent_of(entries: Sequence[AnyEntry]) -> str | None:
    """Return whose run a journal was made of; None for one that a workflow recorded."""
    note = entries[1] if len(entries) > 1 else None
    if not isinstance(note, Note) or note.kind != IMPORTED:
        return None
    try:
        told = msgspec.json.decode(note.data, type=_Told) if note.data is not UNSET else _Told()
    except msgspec.DecodeError:
        told = _Told()
    return told.format.removesuffix(" trajectory") or "another agent"


def reason(entries: Sequence[AnyEntry]) -> str | None:
    """Return why a journal cannot be replayed if it was imported, else None."""
    agent = agent_of(entries)
    return None if agent is None else f"imported from {agent}, cannot be replayed"


def refuse(run_id: str, entries: Sequence[AnyEntry]) -> None:
    """Refuse to execute or fork an imported run.

    Raises:
        KassetteError: It is one.
    """
    why = reason(entries)
    if why is not None:
        raise KassetteError(
            f"run {run_id!r} was {why}: it can be viewed and compared. Nothing was written."
        )


def timed(entries: Sequence[AnyEntry]) -> bool:
    """Tell whether it is known how long a run worked: an import may have recorded no times."""
    return agent_of(entries) is None or any(
        isinstance(entry, Step) and entry.started_at is not None for entry in entries
    )
