"""The other side of the contract: a function that acts once per idempotency key.

A service that honours keys needs nothing from here. This is for everything else on this machine:
a function of your own, a program, a file. What it did for which key is kept in SQLite.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from filelock import FileLock

from . import values
from .canonical import canonical, check_key, same
from .clock import SystemClock, stamp
from .errors import InDoubtError, JournalValueError

#: Calls with different keys seldom wait for each other, and the lock files stay few.
_STRIPES = 64
_TABLE = """
CREATE TABLE IF NOT EXISTS calls (
    key    TEXT PRIMARY KEY,
    tool   TEXT NOT NULL,
    args   TEXT NOT NULL,
    began  TEXT NOT NULL,
    result TEXT            -- JSON; NULL until the function has returned
)
"""


class IdempotentTool:
    """A plain function that acts once per key, in all processes of this machine.

    Args:
        fn: The function; a plain ``def``. If it has a parameter ``connection``, it is given the
            open SQLite transaction in which its result is kept: what it writes there happens
            exactly once. Any other effect happens at most once: where the process died in
            between, nobody knows, and the next call says so instead of acting.
        path: The SQLite file; made when first needed, and locks beside it.

    The call takes the function's arguments by name and ``idempotency_key``. Its result has to
    survive JSON and is the decoded one each time. A call that raises has not happened: the key is
    free again. One whose result JSON cannot carry stays in doubt: it did happen.

    Raises:
        TypeError: ``fn`` is async or has no plain parameters.
    """

    def __init__(self, fn: Callable[..., Any], path: str | os.PathLike[str]) -> None:
        if inspect.iscoroutinefunction(fn):
            raise TypeError(
                f"{fn!r} is async; an idempotent tool is a plain function, which runs in a thread"
            )
        self._fn = fn
        self._path = os.fspath(path)
        self._in_transaction = "connection" in inspect.signature(fn).parameters
        functools.update_wrapper(self, fn)
        self.__name__: str = getattr(fn, "__name__", type(fn).__name__)
        # What `inspect` and ctx.tool see: the function's parameters and the key.
        self.__signature__ = _with_key(fn)

    def __call__(self, *, idempotency_key: str, **args: Any) -> Any:
        """Act, or return what the call with this key returned.

        Args:
            idempotency_key: Names the call.
            args: The function's arguments.

        Returns:
            The decoded result, durable.

        Raises:
            JournalValueError: The key is empty, or was used with other arguments; an argument has
                no canonical form, or the result does not survive JSON.
            InDoubtError: A process died while it acted on this key: look, then `settle` it.
        """
        check_key(idempotency_key, optional=False)
        name = self.__name__
        form = canonical(args, f"arguments of {name!r}")
        with self._locked(idempotency_key) as database:
            known = database.execute(
                "SELECT tool, args, began, result FROM calls WHERE key = ?", (idempotency_key,)
            ).fetchone()
            if known is not None:
                return self._repeated(idempotency_key, form, *known)
            with _transaction(database):
                database.execute(
                    "INSERT INTO calls (key, tool, args, began) VALUES (?, ?, ?, ?)"
                    " ON CONFLICT (key) DO NOTHING",
                    (idempotency_key, name, _text(form), stamp(SystemClock().now())),
                )
                if self._in_transaction:
                    result = self._fn(**args, connection=database)
                    return self._keep(database, idempotency_key, result)
            try:
                result = self._fn(**args)
            except Exception:
                _forget(database, idempotency_key)
                raise
            return self._keep(database, idempotency_key, result)

    def settle(self, idempotency_key: str, result: Any = None) -> None:
        """Record that the call in doubt happened, with its result. Durable on return."""
        encoded = _text(result)
        with self._locked(idempotency_key) as database:
            database.execute(
                "UPDATE calls SET result = ? WHERE key = ? AND result IS NULL",
                (encoded, idempotency_key),
            )

    def forget(self, idempotency_key: str) -> None:
        """Record that the call in doubt did not happen: the next one acts. Durable on return."""
        with self._locked(idempotency_key) as database:
            _forget(database, idempotency_key)

    def _keep(self, database: sqlite3.Connection, key: str, result: Any) -> Any:
        encoded = _text(result, f"result of {self.__name__!r}")
        database.execute("UPDATE calls SET result = ? WHERE key = ?", (encoded, key))
        return msgspec.json.decode(encoded)

    def _repeated(
        self, key: str, form: Any, tool: str, args: str, began: str, result: str | None
    ) -> Any:
        if tool != self.__name__ or not same(msgspec.json.decode(args), form):
            raise JournalValueError(
                f"idempotency_key={key!r} was used for {tool!r} with other arguments at {began}; "
                "nothing was done. Give each call a key of its own.",
                path="idempotency_key",
                reason="a key reused for other arguments",
            )
        if result is None:
            raise InDoubtError(
                f"{tool!r} began at {began} with idempotency_key={key!r} and never came to its "
                f"end: it may have acted. Look, then say {tool}.settle(key, result) if it did, or "
                f"{tool}.forget(key) if it did not; until then every call with this key says so.",
                step_id=None,
                name="InDoubtError",
                message=f"{tool!r} may have acted at {began} with idempotency_key={key!r}; look, "
                f"then {tool}.settle(key, result) or {tool}.forget(key)",
            )
        return msgspec.json.decode(result)

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[sqlite3.Connection]:
        """Hold the key; the lock is the system's, freed when its holder dies."""
        stripe = int.from_bytes(hashlib.sha256(key.encode()).digest()[:2], "big") % _STRIPES
        with FileLock(f"{self._path}.{stripe:02d}.lock", is_singleton=True):
            database = sqlite3.connect(self._path, timeout=60, isolation_level=None)
            try:
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = FULL")
                database.execute(_TABLE)
                yield database
            finally:
                database.close()


def idempotent(
    path: str | os.PathLike[str],
) -> Callable[[Callable[..., Any]], IdempotentTool]:
    """Make a plain function act once per key: ``@idempotent("effects.db")``.

    Args:
        path: The SQLite file in which results are kept by key.

    Returns:
        A decorator; see `IdempotentTool`.
    """
    return lambda fn: IdempotentTool(fn, path)


def _forget(database: sqlite3.Connection, key: str) -> None:
    database.execute("DELETE FROM calls WHERE key = ? AND result IS NULL", (key,))


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def _text(value: Any, what: str = "result") -> str:
    return bytes(values.encode(value, what=what)).decode()


def _with_key(fn: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(fn)
    kept = [p for p in signature.parameters.values() if p.name != "connection"]
    key = inspect.Parameter("idempotency_key", inspect.Parameter.KEYWORD_ONLY)
    last = kept[-1:] if kept and kept[-1].kind is inspect.Parameter.VAR_KEYWORD else []
    return signature.replace(parameters=[*kept[: len(kept) - len(last)], key, *last])
