"""What is recorded under an id, and whether the code still asks for what is recorded. Pure.

Ids depend on the branch and on how often a name was used there, so on every branch the recorded
ids have an order of their own: the one in which they were first written. The cursor hands results
back as long as the code asks in that order, and lets a branch go live only when nothing recorded
on it is left over. Anything else means that the code has changed since.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import msgspec

from .entries import UNHEARD, AnyEntry, Foreign, Intent, Note, Payload, Resume, Start, Step, Suspend
from .errors import JournalValueError, ReplayMismatchError
from .state import BUDGET, Events

#: What a recorded model call is to a cursor: no step of the workflow can take its place.
MODEL_CALL = "model call"
_LAST = 1 << 62
#: What no name has: the signs that ids are built with, and what UTF-8 cannot carry.
_RESERVED = re.compile(r"[#/@\ud800-\udfff]")


class _Branch:
    """The ids recorded directly on one branch, in the order of their first entries."""

    __slots__ = ("asked", "ids", "kinds", "next", "order")

    def __init__(self) -> None:
        #: Offset of the first entry by id; and what it is, where it is no step.
        self.ids: dict[str, int] = {}
        self.kinds: dict[str, str] = {}
        self.order: list[str] = []
        self.asked: set[str] = set()
        self.next = 0

    def left_over(self) -> tuple[int, str] | None:
        """Return the first recorded id that the code has not asked for, with its offset."""
        order, asked = self.order, self.asked
        while self.next < len(order):
            name = order[self.next]
            if name not in asked:
                return self.ids[name], name
            self.next += 1
        return None


class Cursor:
    """Everything recorded in a journal, by id.

    Args:
        run_id: The run, for errors.
        lines: The verified entries.
    """

    def __init__(self, run_id: str, lines: list[AnyEntry]) -> None:
        self.run_id = run_id
        self.steps: dict[str, Step] = {}
        #: Recorded model calls outside the order of branches that nobody has asked for yet.
        self._unasked: dict[str, None] = {}
        #: How often each of them has been asked for, by what is common to interchangeable ones.
        self._asked: dict[str, int] = {}
        #: Those that their callers gave up, and after how many seconds of their session.
        self.unheard: dict[str, float] = {}
        self._events = Events()
        self._root = _Branch()
        self._branches: dict[str, _Branch] = {"": self._root}
        #: The newest attempt of each tool that this run may have to answer for.
        self.intents: dict[str, Intent] = {}
        #: The first use of each idempotency key.
        self.keys: dict[str, Intent] = {}
        opening = lines[0] if lines else None
        self.key_scope = run_id
        scope_from = 0
        if isinstance(opening, Start):
            self.key_scope = opening.key_scope or run_id
            scope_from = opening.scope_from or 0
        root, steps = self._root.ids, self.steps
        for entry in lines:
            if type(entry) is Step:
                step_id = entry.step_id
                steps[step_id] = entry
                if "/" in step_id or "@" in step_id:
                    self._note(step_id, entry.offset, MODEL_CALL if entry.request else "step")
                elif step_id not in root:
                    root[step_id] = entry.offset
                    if entry.request is not None:
                        self._root.kinds[step_id] = MODEL_CALL
            elif isinstance(entry, Suspend):
                step_id = self._events.suspended(entry)
                if entry.event_name != BUDGET:  # asked for by no call of the workflow
                    self._note(step_id, entry.offset, "suspend")
            elif isinstance(entry, Resume):
                self._events.resumed(entry)
            elif isinstance(entry, Intent):
                self._note(entry.step_id, entry.offset, "tool")
                if entry.idempotency_key is not None:
                    self.keys.setdefault(entry.idempotency_key, entry)
                if entry.offset >= scope_from:
                    self.intents[entry.step_id] = entry
            elif isinstance(entry, Note) and entry.kind == UNHEARD and entry.step_id:
                self.unheard[entry.step_id] = _after(entry.data)
        for branch in self._branches.values():
            branch.order = list(branch.ids)

    @property
    def answers(self) -> dict[str, Resume]:
        """The recorded answers by the step id of their suspension."""
        return self._events.answers

    @property
    def suspends(self) -> dict[str, Suspend]:
        """The first suspension recorded under each step id."""
        return self._events.suspends

    def answered(self, entry: Resume) -> None:
        """Take the answer that opens this session."""
        self._events.resumed(entry)

    def ask(self, branch: str, step_id: str, kind: str) -> None:
        """Take note that the code on ``branch`` asks for ``step_id``.

        Args:
            branch: The path of the branch; empty for the workflow itself.
            step_id: The whole id.
            kind: ``"step"``, ``"tool"``, ``"suspend"``, ``"parallel"`` or `MODEL_CALL`: what the
                code takes it for. A finished tool is a step like any other.

        Raises:
            ReplayMismatchError: Something recorded before it was not asked for, or it is recorded
                as something else.
        """
        recorded = self._branches.get(branch)
        if recorded is not None and recorded.next < len(recorded.order):
            self.ask_block(branch, {step_id: kind})

    def ask_block(self, branch: str, kinds: Mapping[str, str]) -> None:
        """Take note that the code asks for several ids at once: a parallel block's keys.

        Args:
            branch: The path of the branch that the block stands on.
            kinds: What the code takes each whole id for.

        Raises:
            ReplayMismatchError: See `ask`.
        """
        recorded = self._branches.get(branch)
        if recorded is None or recorded.next >= len(recorded.order):
            return  # nothing is recorded here that could differ
        skip = len(branch) + 1 if branch else 0
        names = {step_id[skip:]: kind for step_id, kind in kinds.items()}
        recorded.asked.update(names)
        limit = min((recorded.ids.get(name, _LAST) for name in names), default=_LAST)
        if limit == _LAST and all(kind == "parallel" for kind in kinds.values()):
            return  # branches that record nothing leave no trace; one that acts asks for itself
        left = recorded.left_over()
        if left is not None and left[0] < limit:
            kind, step_id = next((kind, step_id) for step_id, kind in kinds.items())
            raise self._mismatch(f"{kind} {step_id!r}", branch, *left)
        for step_id, kind in kinds.items():
            name = step_id[skip:]
            offset = recorded.ids.get(name)
            found = recorded.kinds.get(name, "step")
            same = found != MODEL_CALL and kind in ("step", "tool")
            settled = same and step_id in self.steps
            if offset is not None and found != kind and not settled:
                raise self._mismatch(f"{kind} {step_id!r}", branch, offset, name, found)

    def go_live(self, branch: str, asked: str) -> None:
        """Check that nothing recorded is left over, before the branch acts or returns.

        Not on the branch, and not on those that it stands on either: what is recorded behind a
        parallel block says that the block was over.

        Raises:
            ReplayMismatchError: Something is.
        """
        for path in _paths(branch):
            self.end(path, asked)

    def recall(self, names: Names, name: str) -> Step | None:
        """Take the next id of ``name`` if the journal has just that step there, and return it.

        The short way through a replay that fits: the same as `Names.take` and `ask`. Where
        anything is out of the ordinary it takes nothing and returns None.
        """
        branch = names.branch
        recorded = self._branches.get(branch)
        if recorded is None or recorded.next >= len(recorded.order):
            return None
        counts = names.counts
        count = counts.get(name)
        own = name if count is None else f"{name}#{count + 1}"
        if own != recorded.order[recorded.next] or (count is None and "#" in name):
            return None
        step = self.steps.get(f"{branch}/{own}" if branch else own)
        if step is not None and step.request is None:
            recorded.next += 1
            counts[name] = 1 if count is None else count + 1
            return step
        return None

    def match(self, branch: str, digest: str) -> tuple[str, Step | None]:
        """Return the id of a model call made outside the order of a branch, and what is recorded.

        Requests that are the same are interchangeable, and told apart by who asked first: not by
        who was answered first, as they stand in the journal. A failure is recorded only when the
        workflow has to do with it, and whoever asked first may wait longest.

        Args:
            branch: The path of the branch.
            digest: The start of the request's hash.
        """
        stem = f"{branch}/llm@{digest}" if branch else f"llm@{digest}"
        count = self._asked[stem] = self._asked.get(stem, 0) + 1
        step_id = stem if count == 1 else f"{stem}#{count}"
        self._unasked.pop(step_id, None)
        return step_id, self.steps.get(step_id)

    def unasked(self) -> list[str]:
        """Return the recorded model calls outside any order that the code has not asked for."""
        return list(self._unasked)

    def end(self, branch: str, asked: str) -> None:
        """Check that nothing recorded on this one branch is left over.

        Raises:
            ReplayMismatchError: Something is.
        """
        recorded = self._branches.get(branch)
        left = recorded.left_over() if recorded else None
        if left is not None:
            raise self._mismatch(asked, branch, *left)

    def goes_on(self, branch: str) -> bool:
        """Tell whether something is recorded behind what the branch has asked for so far."""
        found = (self._branches.get(path) for path in _paths(branch))
        return any(recorded is not None and recorded.left_over() for recorded in found)

    def _note(self, step_id: str, offset: int, kind: str) -> None:
        if "@" in step_id:  # a model call matched by its request, outside the order of branches
            self._unasked[step_id] = None
            return
        branch = ""
        parts = step_id.split("/")
        for depth, part in enumerate(parts, 1):
            known = self._branches.get(branch)
            if known is None:
                known = self._branches[branch] = _Branch()
            if part not in known.ids:
                known.ids[part] = offset
                if depth < len(parts):
                    known.kinds[part] = "parallel"
                elif kind != "step":
                    known.kinds[part] = kind
            branch = f"{branch}/{part}" if branch else part

    def _mismatch(
        self, asked: str, branch: str, offset: int, left: str, kind: str | None = None
    ) -> ReplayMismatchError:
        recorded = f"{branch}/{left}" if branch else left
        kind = kind or self._branches[branch].kinds.get(left, "step")
        hint = ""
        if kind == MODEL_CALL and not asked.startswith(MODEL_CALL):
            hint = (
                " Or the model is asked, but not recorded: is its client made with "
                "kb.llm.http_client, or kb.llm.recording() on?"
            )
        return ReplayMismatchError(
            f"run {self.run_id!r}: the code asks for {asked}, but entry {offset} recorded the "
            f"{kind} {recorded!r} there. The code has changed since, or it does not decide the "
            "same way each time (time, chance and what comes from outside belong in steps); "
            f"nothing was written. Put the code back, or fork the run at {recorded!r} and go on "
            f"with the new code.{hint}",
            run_id=self.run_id,
            offset=offset,
            asked=asked,
            recorded=recorded,
        )


def refuse_foreign(run_id: str, lines: Iterable[AnyEntry]) -> None:
    """Refuse a journal with entries that cannot be replayed.

    Raises:
        ReplayMismatchError: There is one; names its offset and type.
    """
    for entry in lines:
        if type(entry) is Foreign:
            raise ReplayMismatchError(
                f"run {run_id!r} cannot be replayed: entry {entry.offset} {entry.reason}. It can "
                "be viewed, compared and exported; fork it before that entry to go on.",
                run_id=run_id,
                offset=entry.offset,
                asked="replay",
                recorded=entry.type,
            )


def _after(data: Payload) -> float:
    try:
        return max(0.0, msgspec.json.decode(data, type=_Unheard).after)  # type: ignore[arg-type]
    except (msgspec.DecodeError, TypeError):  # somebody else's note
        return 0.0


class _Unheard(msgspec.Struct):
    after: float = 0.0


def _paths(branch: str) -> Iterator[str]:
    """Yield the path of a branch and of those that it stands on."""
    while branch:
        yield branch
        branch = branch.rpartition("/")[0]
    yield ""


class Names:
    """Counts the uses of names on one branch: the n-th use of ``plan`` is ``plan#n``."""

    def __init__(self, branch: str = "") -> None:
        self.branch = branch
        self.counts: dict[str, int] = {}

    def take(self, name: str) -> str:
        """Return the id of the next use of ``name`` here.

        Raises:
            JournalValueError: The name cannot be part of an id.
        """
        name = check_name(name)
        self.counts[name] = self.counts.get(name, 0) + 1
        return self.newest(name)

    def newest(self, name: str) -> str:
        """Return the id of the newest use of ``name`` here."""
        count = self.counts.get(name, 1)
        own = name if count == 1 else f"{name}#{count}"
        return f"{self.branch}/{own}" if self.branch else own


@lru_cache(maxsize=4096)
def check_name(name: object) -> str:
    """Return a step, event or branch name in its canonical spelling (Unicode NFC).

    Raises:
        JournalValueError: It is no text, empty, or contains ``#``, ``/``, ``@``.
    """
    if not isinstance(name, str) or not name or _RESERVED.search(name):
        raise JournalValueError(
            f"{name!r} is not a name for a step or an event: use a text without '#', '/' and '@', "
            "which ids are built with, and without halves of characters (lone surrogates), which "
            "no file can hold. Nothing was recorded.",
            path="name",
            reason="not a name",
        )
    return name if name.isascii() else unicodedata.normalize("NFC", name)
