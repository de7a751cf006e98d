"""Where journals live: a directory, or this process's memory."""

from __future__ import annotations

import os

from ..errors import StorageError
from .base import Busy, Conflict, Hold, Storage, Token, check_run_id
from .local import LocalStorage
from .memory import MemoryStorage

__all__ = [
    "Busy",
    "Conflict",
    "Hold",
    "LocalStorage",
    "MemoryStorage",
    "Storage",
    "Token",
    "check_run_id",
    "open_storage",
]

#: Where runs go when nobody says otherwise.
VARIABLE = "KASSETTE_STORAGE"
DEFAULT = "file:.kassette"

_memories: dict[str, MemoryStorage] = {}


def open_storage(where: Storage | str | os.PathLike[str] | None = None) -> Storage:
    """Return the storage that a URL, a path or a storage means.

    Args:
        where: A storage (returned as it is), ``"file:path"``, ``"memory:name"`` or a plain path.
            None means ``$KASSETTE_STORAGE``, else ``file:.kassette``.

    Raises:
        StorageError: The URL's scheme is not known.
    """
    if where is None:
        where = os.environ.get(VARIABLE) or DEFAULT
    if isinstance(where, os.PathLike):
        return LocalStorage(where)
    if not isinstance(where, str):
        return where
    scheme, colon, rest = where.partition(":")
    if not colon or len(scheme) == 1:  # one letter: a Windows drive
        return LocalStorage(where)
    if scheme == "file":
        return LocalStorage(rest.removeprefix("//") or ".")
    if scheme == "memory":
        return _memories.setdefault(rest, MemoryStorage(rest))
    raise StorageError(
        f"cannot open {where!r}: unknown scheme {scheme!r}. Use a path, 'file:path' or "
        "'memory:name'.",
        place=where,
        reason=f"unknown scheme {scheme!r}",
    )
