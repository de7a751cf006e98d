"""Runs, steps, entries and what sums them up, as pandas data frames.

Times are ``datetime64[ms, UTC]``, durations ``Float64`` seconds, money ``Float64`` US dollars,
counts ``Int64``, flags ``boolean``, texts ``string``; what was not recorded is missing (``<NA>``
or ``NaT``), never zero. So is a number that does not fit 64 bits, and an instant that nobody can
read. Control and direction characters in texts are spelled out (``\\x1b``).

Of a storage, rows are in the order of run ids. A damaged run is a row of `runs_frame`; in the
other frames it has no rows, a `UserWarning` names it, and ``frame.attrs["damaged"]`` maps its id
to the reason.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC
from typing import Any

import numpy as np
import pandas as pd

from . import summaries, tables
from .clock import instant, stamp
from .diff import Row
from .display import show
from .model import RunModel
from .tables import Table

_TEXT, _INSTANT, _COUNT, _REAL = "text", "instant", "count", "real"
_FLAG, _OBJECT = "flag", "object"
#: What the columns hold that are not text.
_KINDS = {
    **dict.fromkeys(("started", "updated", "finished", "ended", "timestamp", "asked", "answered",
                     "deadline"), _INSTANT),
    **dict.fromkeys(("session", "offset", "steps", "sessions", "entries", "calls", "failed",
                     "tokens", "input_tokens", "output_tokens", "cached_input_tokens",
                     "reasoning_tokens", "unpriced",
                     "source_offset", "answer_offset", "bytes", "pid", "row"), _COUNT),
    **dict.fromkeys(("cost_usd", "seconds", "first_token_seconds", "working_seconds",
                     "waiting_seconds"), _REAL),
    **dict.fromkeys(("overridden", "copied"), _FLAG),
    "value": _OBJECT,
}  # fmt: skip


def runs_frame(runs: Iterable[RunModel]) -> pd.DataFrame:
    """Return one row a run.

    Returns:
        ``run_id label state workflow version`` (string), ``waiting_on`` (string, step ids joined
        by a comma), ``steps`` (Int64, copied ones included), ``sessions`` (Int64, the run's own),
        ``tokens cost_usd unpriced`` (Int64, Float64, Int64: the run's own spend, and how many
        calls have no price), ``started updated`` (datetime64[ms, UTC]; a fork's first own
        session), ``working_seconds waiting_seconds`` (Float64: its own sessions, missing where an
        import recorded no times; what it waited for answers, until now where it still waits),
        ``source source_offset`` (string, Int64: a fork's source and the lines taken),
        ``result error damage`` (string). A damaged journal has only its id, the state ``damaged``
        and the reason in ``damage``.
    """
    return _frame(summaries.runs_table(runs))


def steps_frame(runs: Iterable[RunModel], *, values: bool = False) -> pd.DataFrame:
    """Return one row a recorded step, in journal order.

    Args:
        runs: The runs.
        values: Add a column ``value`` (object) with the decoded results.

    Returns:
        ``run_id step_id name kind`` (string), ``branch`` (string; missing outside parallel
        blocks), ``session offset`` (Int64), ``started finished`` (datetime64[ms, UTC];
        ``started`` is missing where it was not recorded, or the result is not the step's own),
        ``seconds`` (Float64), ``model`` (string; of a step that asked several, their names joined
        by a comma: its tokens and dollars are those of all, so group by it as by one of its own;
        ``run[step_id].conversations`` has the calls), ``input_tokens output_tokens
        cached_input_tokens reasoning_tokens`` (Int64; the last two are part of the first two),
        ``first_token_seconds cost_usd`` (Float64), ``error`` (string), ``overridden
        copied`` (boolean), ``code_hash`` (string), ``bytes`` (Int64, of the result's JSON),
        ``result`` (string, the beginning of that JSON; of a model call, what it answered).

    Raises:
        JournalValueError: With ``values``, a result cannot be read back; names the step.
    """
    return _frame(tables.steps_table(runs, values=values))


def entries_frame(runs: Iterable[RunModel]) -> pd.DataFrame:
    """Return one row a journal line.

    Returns:
        ``run_id`` (string), ``offset session`` (Int64), ``type`` (string), ``timestamp``
        (datetime64[ms, UTC]), ``step_id name by`` (string; the name of a step, tool, event or
        workflow), ``bytes`` (Int64, of the line), ``summary`` (string, the beginning of what the
        line carries).
    """
    return _frame(tables.entries_table(runs))


def sessions_frame(runs: Iterable[RunModel]) -> pd.DataFrame:
    """Return one row a session.

    Returns:
        ``run_id`` (string), ``session offset`` (Int64, its number and its first line),
        ``opened_by`` (string: start, resume, fork or cancel), ``by`` (string, whose answer opened
        it), ``started ended`` (datetime64[ms, UTC], its first and last line; the latter is missing
        where an import recorded no times), ``seconds``
        (Float64, between these), ``entries steps`` (Int64), ``last_type`` (string, the type of its
        last line), ``copied`` (boolean, a fork's source's), ``pid host`` (Int64, string).
    """
    return _frame(summaries.sessions_table(runs))


def suspensions_frame(runs: Iterable[RunModel]) -> pd.DataFrame:
    """Return one row a suspension: a question, a timer, a doubt, a budget.

    Returns:
        ``run_id step_id event`` (string), ``state`` (string: answered, waiting, expired, or
        closed where the run went on or ended without an answer), ``asked deadline answered``
        (datetime64[ms, UTC]), ``seconds`` (Float64, from question to answer), ``offset
        answer_offset`` (Int64), ``decision`` (string: approved, rejected, or what was answered),
        ``by note prompt`` (string), ``answer`` (string, the beginning of its JSON).
    """
    return _frame(summaries.suspensions_table(runs))


def usage_frame(runs: Iterable[RunModel]) -> pd.DataFrame:
    """Return one row a run and model, with what its calls spent.

    Returns:
        ``run_id model`` (string), ``copied`` (boolean: spent by the run that this one was forked
        from, so sum over ``~copied``), ``calls failed`` (Int64), ``input_tokens output_tokens
        cached_input_tokens reasoning_tokens`` (Int64, sums; missing where no call recorded any;
        the last two are part of the first two), ``cost_usd`` (Float64, of the calls with a price),
        ``unpriced`` (Int64, calls without one). Model calls that broke off are calls that failed,
        without a model and a price.
    """
    return _frame(summaries.usage_table(runs))


def comparison_frame(runs: Sequence[RunModel], rows: Sequence[Row], base: int) -> pd.DataFrame:
    """Return one row for each run and aligned step; see `Comparison.frame`."""
    return _frame(tables.comparison_table(runs, rows, base))


#: Durations, and the instants that they lie between.
_SECONDS = (("started", "finished"), ("started", "ended"), ("asked", "answered"))


def _frame(table: Table) -> pd.DataFrame:
    data: dict[str, Any] = {}
    for name, column in table.columns.items():
        kind = _KINDS.get(name, _TEXT)
        if kind in _MISSING and column.count(None) == len(column):
            data[name] = pd.Series(pd.NA, index=range(len(column)), dtype=_MISSING[kind])
        else:
            data[name] = _MAKERS[kind](column)
        for began, ended in _SECONDS:
            if name == ended and began in data:
                data["seconds"] = _between(data[began], data[ended])
    frame = pd.DataFrame(data)
    show("frame", frame)
    if table.damaged:
        frame.attrs["damaged"] = dict(table.damaged)
        names = ", ".join(sorted(table.damaged))
        warnings.warn(
            f"damaged runs are left out: {names}. Their reasons are in frame.attrs['damaged'] "
            "and in runs.frame().",
            stacklevel=4,
        )
    return frame


def _objects(column: list[Any]) -> Any:
    # One object a row: numpy would look into lists of equal length.
    return np.fromiter(column, dtype=object, count=len(column))


def _text(column: list[Any]) -> Any:
    return pd.array(column, dtype="string")


def _flag(column: list[Any]) -> Any:
    return pd.array(column, dtype="boolean")


def _count(column: list[Any]) -> Any:
    try:
        numbers = np.array(column, dtype="int64")
    except (TypeError, OverflowError):
        missing = [value is None or not -(2**63) <= value < 2**63 for value in column]
        kept = [0 if gone else value for value, gone in zip(column, missing, strict=True)]
        numbers, mask = np.array(kept, dtype="int64"), np.array(missing, dtype=bool)
    else:
        mask = np.zeros(len(column), dtype=bool)
    return pd.arrays.IntegerArray(numbers, mask)


def _real(column: list[Any]) -> Any:
    array = np.array([math.nan if value is None else _double(value) for value in column], "float64")
    return pd.arrays.FloatingArray(array, np.isnan(array))


def _double(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _instant(column: list[Any]) -> Any:
    """Return instants in UTC. The journal's own form is read by numpy, any other one by one."""
    texts = ["" if text is None else text for text in column]
    try:
        naive = _plain(texts)
    except ValueError:
        naive = _plain([_stamped(text) for text in texts])
    return pd.Series(pd.DatetimeIndex(naive).tz_localize("UTC"))


def _plain(texts: list[str]) -> Any:
    """Read instants of the form ``2026-05-08T14:21:00.000Z``; an empty text is none.

    Raises:
        ValueError: One is of another form.
    """
    given = np.array(texts, dtype="S25")
    letters = given.view("u1").reshape(len(texts), 25)
    usual = (letters[:, 10] == ord("T")) & (letters[:, 23] == ord("Z")) & (letters[:, 24] == 0)
    if not (usual | (letters[:, 0] == 0)).all():
        raise ValueError("not the journal's own form")
    return given.astype("S23").astype("datetime64[ms]")


def _stamped(text: str) -> str:
    try:
        return stamp(instant(text).astimezone(UTC)) if text else ""
    except (ValueError, OverflowError):
        return ""


def _between(began: Any, ended: Any) -> Any:
    seconds = (ended - began).dt.total_seconds()
    return pd.arrays.FloatingArray(seconds.to_numpy("float64"), seconds.isna().to_numpy())


#: Columns in which nothing was recorded are made at once.
_MISSING: dict[str, Any] = {_TEXT: "string", _COUNT: "Int64", _REAL: "Float64"}
_MAKERS: dict[str, Callable[[list[Any]], Any]] = {
    _TEXT: _text, _INSTANT: _instant, _COUNT: _count, _REAL: _real, _FLAG: _flag,
    _OBJECT: _objects,
}  # fmt: skip
