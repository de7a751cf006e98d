"""All journals of a storage, read at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from .errors import KassetteError
from .journal import Journal, find
from .storage import Storage, Token

T = TypeVar("T")
R = TypeVar("R")
#: How many journals are read side by side where each takes network time.
AT_ONCE = 16


def read_all(
    storage: Storage, known: Mapping[str, Journal | None] | None = None
) -> Iterator[tuple[str, Journal | KassetteError]]:
    """Read every run of a storage, by id; many at once where each takes network time.

    Args:
        storage: Where they are.
        known: Journals that were read before, by run: not read again where they are the same.

    Yields:
        The run's id, and its journal or what is wrong with it. Runs that vanish meanwhile are
        left out.
    """

    def look(listed: tuple[str, Token]) -> Journal | KassetteError | None:
        run_id, token = listed
        before = known.get(run_id) if known is not None else None
        if before is not None and before.token == token:
            return before
        try:
            return find(storage, run_id, before)
        except KassetteError as problem:
            return problem

    listed = list(storage.tokens())
    for (run_id, _), found in zip(listed, many(storage, look, listed), strict=True):
        if found is not None:
            yield run_id, found


def many(storage: Storage, call: Callable[[T], R], each: Iterable[T]) -> Iterator[R]:
    """Call for each; side by side where the storage takes network time."""
    if not storage.blocking:
        yield from map(call, each)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(AT_ONCE, "kassette read") as pool:
        yield from pool.map(call, each)
