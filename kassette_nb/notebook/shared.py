"""What compared runs have in common by descent: the steps that one copied from another.

Told by the steps themselves and not by the runs' sources, since the run between two of them may
not be compared, or be gone: a copied step keeps the moments at which it was recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..entries import Step
from ..model import RunModel
from ..state import RunState

#: Which step it is, wherever it was copied to: its id, when it ended and when it began.
Origin = tuple[str, str, str]


class Shared:
    """The common descent of several runs.

    Args:
        runs: The runs.
        states: What their journals mean.

    Attributes:
        related: Whether all of them come from one another or from one source.
        prefix: The copied steps that none of them has made itself, each once.
    """

    def __init__(self, runs: Sequence[RunModel], states: Sequence[RunState]) -> None:
        made = [{_origin(step) for step in _own(folded)} for folded in states]
        copied = [{_origin(step): step for step in _copied(folded)} for folded in states]
        own: set[Origin] = set().union(*made)
        everywhere: set[Origin] = set().union(*copied)
        prefix = {at: step for steps in copied for at, step in steps.items() if at not in own}
        self.prefix: list[Step] = list(prefix.values())
        marks: list[set[object]] = []
        for run, folded, ours, theirs in zip(runs, states, made, copied, strict=True):
            marks.append({run.run_id, *_source(folded), *theirs, *(ours & everywhere)})
        self.related = _one_family(marks)


def _origin(step: Step) -> Origin:
    return step.step_id, step.timestamp, str(step.started_at)


def _own(folded: RunState) -> list[Step]:
    return [step for step in folded.steps if step.offset >= folded.copied]


def _copied(folded: RunState) -> list[Step]:
    return [step for step in folded.steps if step.offset < folded.copied]


def _source(folded: RunState) -> list[str]:
    source = folded.opening.source
    return [source.run_id] if source is not None else []


def _one_family(marks: Sequence[set[object]]) -> bool:
    """Tell whether sets hang together, each by something that it shares with another."""
    families: list[set[object]] = []
    for mark in marks:
        apart = [other for other in families if not other & mark]
        families = [*apart, mark.union(*(other for other in families if other & mark))]
    return len(families) == 1
