"""Where journals live: a directory, an object store, or this process's memory."""

from __future__ import annotations

import os

from ..errors import StorageError
from .base import Busy, Conflict, Hold, Storage, Token, check_run_id
from .beside import beside, settled
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
    "beside",
    "check_run_id",
    "open_storage",
    "settled",
]

#: Where runs go when nobody says otherwise.
VARIABLE = "KASSETTE_STORAGE"
DEFAULT = "file:.kassette"

#: Schemes of object stores (`kassette_nb.storage.objects`).
OBJECTS = ("s3", "gs", "az")

_memories: dict[str, MemoryStorage] = {}


def open_storage(where: Storage | str | os.PathLike[str] | None = None) -> Storage:
    """Return the storage that a URL, a path or a storage means.

    Args:
        where: A storage (returned as it is), a plain path, ``"file:path"``, ``"memory:name"``,
            ``"s3://bucket/prefix"``, ``"gs://bucket/prefix"`` or ``"az://container/prefix"``.
            None means ``$KASSETTE_STORAGE``, else ``file:.kassette``.

    Raises:
        StorageError: The URL's scheme is not known, or it holds more than names.
    """
    if where is None:
        where = os.environ.get(VARIABLE) or DEFAULT
    if isinstance(where, os.PathLike):
        _refuse_url(os.fspath(where))
        return LocalStorage(where)
    if not isinstance(where, str):
        return where
    scheme, colon, rest = where.partition(":")
    if not colon or len(scheme) == 1:  # one letter: a Windows drive
        return LocalStorage(where)
    scheme = scheme.lower()
    if scheme == "file":
        _refuse_url(rest.removeprefix("//"))
        return LocalStorage(rest.removeprefix("//") or ".")
    if scheme == "memory":
        return _memories.setdefault(rest, MemoryStorage(rest))
    if scheme in OBJECTS:
        from .objects import ObjectStorage  # an agent on a laptop's disk does not load it

        return ObjectStorage(where)
    # The rest of it is not repeated: it may hold a password.
    raise StorageError(
        f"cannot open a storage: unknown scheme {scheme!r}. Use a path, 'file:path', "
        "'memory:name', 's3://bucket/prefix', 'gs://bucket/prefix' or 'az://container/prefix'.",
        place=scheme,
        reason=f"unknown scheme {scheme!r}",
    )


def _refuse_url(path: object) -> None:
    """Refuse what would become a local directory named after an object store.

    Raises:
        StorageError: It is a URL; a path of it has lost one of its slashes, too.
    """
    scheme = str(path).partition(":/")[0].lower()
    if ":/" in str(path) and scheme in OBJECTS:
        raise StorageError(
            f"{path!s} as a path would be a local directory of that name. Give the URL of an "
            f"object store as it is, as a string: '{scheme}://bucket/prefix'.",
            place=scheme,
            reason="a URL given as a path",
        )
