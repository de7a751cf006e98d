"""Where a journal is cut for a fork: at a step, behind an overridden one, or behind a question."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from . import values
from .entries import AnyEntry, Failure, Intent, Resume, Step, Suspend, Terminal
from .errors import KassetteError, ReplayMismatchError
from .journal import Journal
from .state import Events
from .values import JSON

Fields = dict[str, Raw]
Overrides = dict[str, JSON]


def prefix(source: Journal, at: str | int | None, override: Overrides) -> tuple[list[bytes], int]:
    """Return the lines that a fork begins with, and how many of the source's they stand for.

    Raises:
        ReplayMismatchError, KassetteError: There is no such place.
    """
    if not override:
        if at is None and isinstance(source.entries[-1], Failure):
            # The natural way on from a failure: the step that failed, else the code behind it.
            at = source.entries[-1].step_id or len(source.entries) - 1
        if at is None:
            raise refused(source, "say where to fork: at=<step id or offset>, or override=")
        cut = _find(source, at)
        return [source.line(n) for n in range(max(cut, 1))], max(cut, 1)
    if len(override) > 1:
        raise refused(source, "override takes exactly one step; what follows it runs again")
    ((step_id, value),) = override.items()
    entry = next((e for e in source.entries if isinstance(e, Step) and e.step_id == step_id), None)
    if entry is None:
        raise _unknown(source, step_id)
    cut = entry.offset + 1
    if at is not None and at not in (step_id, cut):
        raise refused(
            source,
            f"override={{{step_id!r}: …}} ends the prefix right behind that step (offset {cut}), "
            f"so at={at!r} cannot be kept; leave it out",
        )
    result = values.encode(value, what=f"override of {step_id!r}")
    changed = fields_of(source.line(entry.offset))
    changed.pop("error", None)
    changed["result"] = result
    changed["overridden"] = Raw(b"true")
    lines = [source.line(n) for n in range(entry.offset)]
    return [*lines, msgspec.json.encode(changed) + b"\n"], cut


def _find(source: Journal, at: str | int) -> int:
    entries = source.entries
    last = len(entries) - 1 if isinstance(entries[-1], Terminal) else len(entries)
    if isinstance(at, bool) or not isinstance(at, int):
        for entry in entries:
            if at in _ids(entry):
                return entry.offset
        raise _unknown(source, at)
    if not 0 <= at <= last:
        raise refused(source, f"at={at} is not an offset of it (0 to {last})")
    return at


def _ids(entry: AnyEntry) -> tuple[str, ...]:
    if isinstance(entry, Step | Intent):
        return (entry.step_id,)
    if isinstance(entry, Suspend):
        return (entry.step_id or entry.event_name,)
    return ()


def behind_question(source: Journal, event: str) -> int:
    """Return the offset behind the last group that asks this question, still unanswered."""
    events, found, step_id = Events(), None, None
    for entry in source.entries:
        if isinstance(entry, Suspend):
            asked = events.suspended(entry)
            if event in (asked, entry.event_name) and asked not in events.answers:
                found, step_id = entry.offset + 1, asked
            elif found == entry.offset and source.entries[found - 1].session == entry.session:
                found += 1  # asked together
        elif isinstance(entry, Resume) and events.resumed(entry) == step_id:
            break
    if found is None:
        raise _unknown(source, event)
    return found


def fields_of(line: bytes) -> Fields:
    """Return a line's fields undecoded, so that unknown ones and numbers are kept as they are."""
    return msgspec.json.decode(line, type=Fields)


def _unknown(source: Journal, step_id: object) -> ReplayMismatchError:
    known = [i for entry in source.entries for i in _ids(entry)]
    near = ", ".join(dict.fromkeys(known[-12:])) or "none"
    return ReplayMismatchError(
        f"run {source.run_id!r} has no step {step_id!r} recorded to fork at (the newest: {near}). "
        "Nothing was written.",
        run_id=source.run_id,
        offset=None,
        asked=str(step_id),
        recorded="nothing",
    )


def refused(source: Journal, reason: str) -> KassetteError:
    """Return the error of a fork that cannot be made."""
    return KassetteError(f"cannot fork run {source.run_id!r}: {reason}. Nothing was written.")
