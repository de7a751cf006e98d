"""What is recorded under an id, and whether the code still asks for what is recorded. Pure.

Ids depend on the branch and on how often a name was used there, so on every branch the recorded
ids have an order of their own: the one in which they were first written. The cursor hands results
back as long as the code asks in that order, and lets a branch go live only when nothing recorded
on it is left over. Anything else means that the code has changed since.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field

from .entries import AnyEntry, Foreign, Intent, Resume, Step, Suspend
from .errors import JournalValueError, ReplayMismatchError
from .state import Events

_LAST = 1 << 62


@dataclass(slots=True)
class _Branch:
    """The ids recorded directly on one branch, in the order of their first entries."""

    order: list[tuple[int, str]] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    next: int = 0

    def left_over(self) -> tuple[int, str] | None:
        """Return the first recorded id that the code has not asked for, with its offset."""
        while self.next < len(self.order) and self.order[self.next][1] in self.asked:
            self.next += 1
        return self.order[self.next] if self.next < len(self.order) else None


class Cursor:
    """Everything recorded in a journal, by id.

    Args:
        run_id: The run, for errors.
        lines: The verified entries.
    """

    def __init__(self, run_id: str, lines: list[AnyEntry]) -> None:
        self.run_id = run_id
        self.steps: dict[str, Step] = {}
        self.blocked: Foreign | None = None
        self._events = Events()
        self._branches: dict[str, _Branch] = {}
        for entry in lines:
            if isinstance(entry, Step):
                self.steps[entry.step_id] = entry
                self._note(entry.step_id, entry.offset, "step")
            elif isinstance(entry, Suspend):
                self._note(self._events.suspended(entry), entry.offset, "suspend")
            elif isinstance(entry, Resume):
                self._events.resumed(entry)
            elif isinstance(entry, Intent):
                self._note(entry.step_id, entry.offset, "tool")
            elif isinstance(entry, Foreign):
                self.blocked = self.blocked or entry

    @property
    def answers(self) -> dict[str, Resume]:
        """The recorded answers by the step id of their suspension."""
        return self._events.answers

    @property
    def suspends(self) -> dict[str, Suspend]:
        """The first suspension recorded under each step id."""
        return self._events.suspends

    def ask(self, branch: str, step_id: str, kind: str) -> None:
        """Take note that the code on ``branch`` asks for ``step_id``.

        Args:
            branch: The path of the branch; empty for the workflow itself.
            step_id: The whole id.
            kind: ``"step"`` or ``"suspend"``: what the code takes it for.

        Raises:
            ReplayMismatchError: Something recorded before it was not asked for, or it is recorded
                as something else.
        """
        recorded = self._branches.get(branch)
        if recorded is None:
            return
        name = step_id[len(branch) + 1 :] if branch else step_id
        recorded.asked.add(name)
        limit = recorded.offsets.get(name, _LAST)
        left = recorded.left_over()
        if left is not None and left[0] < limit:
            raise self._mismatch(f"{kind} {step_id!r}", branch, *left)
        found = recorded.kinds.get(name, kind)
        if found != kind:
            raise self._mismatch(f"{kind} {step_id!r}", branch, limit, name, found)

    def go_live(self, branch: str, asked: str) -> None:
        """Check that nothing recorded on ``branch`` is left over, before it acts or returns.

        Raises:
            ReplayMismatchError: Something is.
        """
        recorded = self._branches.get(branch)
        left = recorded.left_over() if recorded else None
        if left is not None:
            raise self._mismatch(asked, branch, *left)

    def check_replayable(self) -> None:
        """Refuse a journal with entries that cannot be replayed.

        Raises:
            ReplayMismatchError: There is one; names its offset and type.
        """
        if self.blocked is not None:
            raise ReplayMismatchError(
                f"run {self.run_id!r} cannot be replayed: entry {self.blocked.offset} "
                f"{self.blocked.reason}. It can be viewed, compared and exported; fork it before "
                f"that entry to go on.",
                run_id=self.run_id,
                offset=self.blocked.offset,
                asked="replay",
                recorded=self.blocked.type,
            )

    def _note(self, step_id: str, offset: int, kind: str) -> None:
        if "@" in step_id:  # a model call matched by its request, outside the order of branches
            return
        branch = ""
        parts = step_id.split("/")
        for depth, part in enumerate(parts, 1):
            known = self._branches.setdefault(branch, _Branch())
            if part not in known.offsets:
                known.offsets[part] = offset
                known.kinds[part] = kind if depth == len(parts) else "parallel"
                known.order.append((offset, part))
            branch = f"{branch}/{part}" if branch else part

    def _mismatch(
        self, asked: str, branch: str, offset: int, left: str, kind: str | None = None
    ) -> ReplayMismatchError:
        recorded = f"{branch}/{left}" if branch else left
        kind = kind or self._branches[branch].kinds[left]
        return ReplayMismatchError(
            f"run {self.run_id!r}: the code asks for {asked}, but entry {offset} recorded the "
            f"{kind} {recorded!r} there. The code has changed since; nothing was written. Put the "
            f"code back, or fork the run at {recorded!r} and go on with the new code.",
            run_id=self.run_id,
            offset=offset,
            asked=asked,
            recorded=recorded,
        )


class Names:
    """Counts the uses of names on one branch: the n-th use of ``plan`` is ``plan#n``."""

    def __init__(self, branch: str = "") -> None:
        self.branch = branch
        self._counts: dict[str, int] = {}

    def take(self, name: str) -> str:
        """Return the id of the next use of ``name`` here.

        Raises:
            JournalValueError: The name cannot be part of an id.
        """
        name = check_name(name)
        count = self._counts[name] = self._counts.get(name, 0) + 1
        own = name if count == 1 else f"{name}#{count}"
        return f"{self.branch}/{own}" if self.branch else own


def check_name(name: object) -> str:
    """Return a step, event or branch name in its canonical spelling (Unicode NFC).

    Raises:
        JournalValueError: It is no text, empty, or contains ``#``, ``/``, ``@``.
    """
    if not isinstance(name, str) or not name or any(c in name for c in "#/@"):
        raise JournalValueError(
            f"{name!r} is not a name for a step or an event: use a text without '#', '/' and '@', "
            "which ids are built with. Nothing was recorded.",
            path="name",
            reason="not a name",
        )
    return name if name.isascii() else unicodedata.normalize("NFC", name)
