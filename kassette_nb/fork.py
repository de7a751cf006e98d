"""A new run from a prefix of another's journal. The source is never touched."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec import Raw

from . import answers, imported, state, values
from .clock import SystemClock, stamp_now
from .cut import behind_question, fields_of, prefix, refused
from .entries import (
    UNHEARD,
    Failure,
    Intent,
    Note,
    Resume,
    Source,
    Step,
    Suspend,
    encode,
)
from .errors import KassetteError, RunBusyError
from .journal import Journal, parse, read
from .lease import acquire_blocking
from .state import BUDGET, Events
from .storage import Conflict, Storage, check_run_id
from .values import JSON


def fork(
    storage: Storage,
    run_id: str,
    *,
    at: str | int | None = None,
    override: Mapping[str, JSON] | None = None,
    new_run_id: str | None = None,
    label: str | None = None,
    same_effects: bool = False,
    params: Mapping[str, JSON] | None = None,
    check: Callable[[Journal], None] | None = None,
    declared: bool | None = None,
    draft: bool = False,
) -> str:
    """Make a new run whose journal begins with the entries before ``at``.

    Args:
        storage: Where the source is and the fork goes.
        run_id: The source, in any state.
        at: A step id (its first entry is the first one left out) or an offset. Of a failed run
            it may be left out: the step that failed, else all that is recorded, runs again.
        override: ``{step_id: value}`` for one step: the prefix ends right behind it, and the
            fork has this value recorded in place of its result.
        new_run_id: The new run's id; by default ``<run_id>.2``, ``.3`` …
        label: A name for people.
        same_effects: Inherit the source's idempotency keys: the fork is the same logical
            execution. By default a fork has keys of its own.
        params: Other values for arguments of the workflow. Recorded steps keep their results;
            what runs live sees these.
        check: Called with the new journal before anything is written; what it raises is raised.
        declared: Whether the code that goes on declares a workspace; None: nobody knows.
        draft: Only look whether the fork could be made; write nothing and return no id.

    Returns:
        The new run's id. Its journal is durable and complete. Where the source has a workspace,
        the fork has a directory of its own with the files as they were at the cut.

    Raises:
        UnknownRunError: There is no such run.
        ReplayMismatchError: ``at`` or ``override`` names nothing that is recorded.
        JournalValueError: The overriding value cannot be recorded.
        WorkspaceError: The files at that point were not kept; names the nearest that were.
        KassetteError: ``new_run_id`` exists already, or ``at`` and ``override`` contradict.
    """
    source = read(storage, run_id)
    imported.refuse(run_id, source.entries)
    lines, cut = prefix(source, at, dict(override or {}))
    lines[0] = _opening(source, cut, label, same_effects, dict(params or {}))
    if check is not None:
        check(parse(run_id, b"".join(lines), None, storage.locate(run_id)))
    if draft:
        return ""
    scope = not same_effects
    return _with_files(storage, source, cut, lines, new_run_id, declared, own_scope=scope)


def fork_answered(
    storage: Storage,
    run_id: str,
    event: str,
    value: JSON,
    *,
    by: str | None = None,
    note: str | None = None,
    new_run_id: str | None = None,
    label: str | None = None,
    declared: bool | None = None,
    check: Callable[[Journal], None] | None = None,
) -> str:
    """Make a new run in which a question of this one has another answer.

    Args:
        storage: Where the source is and the fork goes.
        run_id: The source, in any state.
        event: The question's step id or its event's name, answered or not.
        value: The answer in the fork.
        by: Who answers.
        note: Why, for the record.
        new_run_id, label, check, declared: See `fork`.

    Returns:
        The new run's id. Its journal, the answer with it, is durable and complete.

    Raises:
        UnknownRunError, ReplayMismatchError: There is no such run, or no such question in it.
        JournalValueError: The answer does not fit the question.
        WorkspaceError: The files at that point were not kept; names the nearest that were.
        KassetteError: ``new_run_id`` exists already.
    """
    source = read(storage, run_id)
    imported.refuse(run_id, source.entries)
    cut = behind_question(source, event)
    clock = SystemClock()
    folded = state.fold(source.entries[:cut], clock.now(), held=False)
    answer = answers.answer(run_id, folded, event, value, by, note)
    answer.session = source.entries[cut - 1].session + 1
    answer.offset = cut
    answer.timestamp = stamp_now(clock)
    lines = [*(source.line(n) for n in range(cut)), encode(answer)]
    lines[0] = _opening(source, cut, label, False, {})
    if check is not None:
        check(parse(run_id, b"".join(lines), None, storage.locate(run_id)))
    return _with_files(storage, source, cut, lines, new_run_id, declared, own_scope=True)


def _with_files(
    storage: Storage,
    source: Journal,
    cut: int,
    lines: list[bytes],
    new_run_id: str | None,
    declared: bool | None,
    *,
    own_scope: bool,
) -> str:
    """Publish a fork's journal, and give it a directory of its own where its source has one."""
    run_id = source.run_id
    from . import kept, noted, places

    commit = noted.at_cut(run_id, source.entries, cut)
    kept.check_kept(storage, run_id, commit, source.entries)
    places.check_declared(run_id, commit, declared)
    made = _publish(storage, run_id, lines, new_run_id, own_scope=own_scope)
    if commit is not None:
        places.make_tree(storage, made, commit, places.origin(storage, run_id, source.entries))
    return made


def retry(storage: Storage, run_id: str) -> str:
    """Make a new run from a failed one: all its lines but the ending, without the failure.

    The failing step's line and the later ones of its branch become notes, so that they run
    again; what its siblings recorded is kept. The new run has the same idempotency keys: a call
    that may have acted must carry the key that it had.

    Args:
        storage: Where the source is and the new run goes.
        run_id: The failed run.

    Returns:
        The new run's id. Its journal is durable and complete; the failed run stays on record.

    Raises:
        UnknownRunError: There is no such run.
        KassetteError: It has not failed, or no step is known to have failed.
    """
    source = read(storage, run_id)
    imported.refuse(run_id, source.entries)
    ending = source.entries[-1]
    if not isinstance(ending, Failure):
        raise refused(
            source,
            "only a failed run can be retried; settle() decides a doubt, fork(at=…) runs a step "
            "again",
        )
    failed = next(
        (e for e in source.entries if isinstance(e, Step) and e.step_id == ending.step_id), None
    )
    if failed is None:
        how = (
            "start its fork() with a larger budget: with_options(budget=…)"
            if ending.error.name == "BudgetExceededError"
            else "change the code and use fork(at=…)"
        )
        raise refused(
            source, f"no step of it failed, its own code raised {ending.error.name}; {how}"
        )
    aside = _set_aside(source, failed)
    lines = [_noted(source, n) if n in aside else source.line(n) for n in range(ending.offset)]
    lines[0] = _opening(source, ending.offset, source.opening.label, True, {})
    return _publish(storage, run_id, lines, None, own_scope=False)


def _set_aside(source: Journal, failed: Step) -> set[int]:
    """Return the offsets of the failed step and of what came after it on its way."""
    events = Events()
    branch = failed.step_id.rpartition("/")[0]
    above = [branch[:n] for n in range(len(branch)) if branch[n] == "/"] + [""]
    found = set()
    for entry in source.entries:
        if isinstance(entry, Suspend):
            step_id = events.suspended(entry)
        elif isinstance(entry, Resume):
            step_id = events.resumed(entry)
        elif isinstance(entry, Step | Intent):
            step_id = entry.step_id
        elif isinstance(entry, Note) and entry.kind == UNHEARD:  # perhaps for this failure
            step_id = str(entry.step_id)
        else:
            continue
        if isinstance(entry, Suspend | Resume) and entry.event_name == BUDGET:
            continue  # of the run as a whole: what was decided about it stands
        # What a person decided about the failed call was about that call: its next attempt is
        # asked about anew.
        decided = isinstance(entry, Suspend | Resume) and step_id == failed.step_id
        if entry.offset < failed.offset and not decided:
            continue
        own = not branch or step_id.startswith(f"{branch}/")
        # A model call of another task is matched by what it asks, wherever it stands.
        sibling = isinstance(entry, Step) and (
            entry.parallel or ("@" in step_id and entry is not failed)
        )
        if own or (step_id.rpartition("/")[0] in above and not sibling):
            found.add(entry.offset)
    return found


def _noted(source: Journal, number: int) -> bytes:
    entry = source.entries[number]
    note = Note(
        session=entry.session,
        offset=entry.offset,
        timestamp=entry.timestamp,
        kind="retried",
        step_id=getattr(entry, "step_id", None),
        data=Raw(source.line(number).rstrip(b"\n")),
    )
    return encode(note)


def _publish(
    storage: Storage, run_id: str, lines: list[bytes], new_run_id: str | None, *, own_scope: bool
) -> str:
    for name in _names(run_id, new_run_id):
        line = _with(lines[0], keyScope=name) if own_scope else lines[0]
        if storage.blocking:
            # The same fork made twice at once is two runs: its line must be unlike the other's.
            line = _with(line, writeId=secrets.token_hex(8))
        try:
            hold = acquire_blocking(storage, name)
        except RunBusyError:
            if new_run_id is not None:
                raise
            continue  # that fork is there, and at work
        try:
            storage.create(name, b"".join([line, *lines[1:]]))
            from . import places

            places.clear(storage, name)
            return name
        except Conflict:
            if new_run_id is not None:
                raise KassetteError(
                    f"run {new_run_id!r} exists already in {storage.place}; choose another id. "
                    "Nothing was written."
                ) from None
        finally:
            hold.release()
    raise AssertionError("unreachable")


def _names(run_id: str, given: str | None) -> Iterable[str]:
    if given is not None:
        return [check_run_id(given)]
    stem = run_id[:120]
    return (f"{stem}.{n}" for n in itertools.count(2))


def _opening(
    source: Journal, cut: int, label: str | None, same_effects: bool, params: dict[str, JSON]
) -> bytes:
    first = source.opening
    fields = fields_of(source.line(0))
    fields["source"] = Raw(msgspec.json.encode(Source(run_id=source.run_id, from_offset=cut)))
    fields.pop("label", None)
    if label is not None:
        if not isinstance(label, str):
            raise refused(source, f"label={label!r} is no text")
        fields["label"] = values.encode(label, what="label")
    if params:
        metadata = values.decode(first.metadata, what="arguments")
        fields["metadata"] = values.encode({**metadata, **params}, what="arguments")
    if same_effects:
        fields["keyScope"] = Raw(msgspec.json.encode(first.key_scope or source.run_id))
        # Cut within what the source had copied itself, what follows is the fork's own already.
        fields["scopeFrom"] = Raw(b"%d" % min(first.scope_from or 0, cut))
    else:
        fields["scopeFrom"] = Raw(b"%d" % cut)
    return msgspec.json.encode(fields) + b"\n"


def _with(line: bytes, **fields: JSON) -> bytes:
    changed = fields_of(line)
    changed.update({key: values.encode(value) for key, value in fields.items()})
    return msgspec.json.encode(changed) + b"\n"
