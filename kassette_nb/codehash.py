"""Which code recorded a step: a hash of its function, independent of where it stands."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import CodeType
from typing import Any

#: By identity, with the code to keep it alive: its own hash reads all of it.
_known: dict[int, tuple[CodeType, str]] = {}


def code_hash(fn: Callable[..., Any]) -> str | None:
    """Return 16 hex digits for the function's code, or None for what has no Python code.

    Moving a function or changing a comment leaves the hash as it is; another Python version
    changes it.
    """
    known = _known.get(id(getattr(fn, "__code__", None)))
    if known is not None:
        return known[1]
    code = getattr(getattr(fn, "__func__", fn), "__code__", None)
    if not isinstance(code, CodeType):
        return None
    digest = hashlib.sha256()
    _feed(digest, code)
    known = _known[id(code)] = (code, digest.hexdigest()[:16])
    return known[1]


def _feed(digest: Any, code: CodeType) -> None:
    digest.update(code.co_code)
    digest.update(repr((code.co_names, code.co_varnames[: code.co_argcount])).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _feed(digest, constant)
        else:
            digest.update(_stable(constant).encode())


def _stable(constant: object) -> str:
    if isinstance(constant, frozenset):  # the order of a set of strings differs by process
        return f"frozenset({sorted(map(repr, constant))})"
    return repr(constant)
