"""What a model was asked that it was not asked before. Pure.

A conversation carries all that was said in it, so that after one difference every later request
differs, though nothing else was done differently. What a call adds to the ones before it is what
two runs are compared by.
"""

from __future__ import annotations

from typing import Any

from ..entries import Step
from ..values import JSON
from .request import recorded_request

#: Where providers' requests carry what was said.
SAID = ("messages", "input", "contents")
#: Other in any two runs, though all that was said is the same; and where a provider is to cache.
_IDS = ("id", "call_id", "tool_call_id", "tool_use_id", "previous_response_id", "cache_control")
#: So many earlier calls are looked at: those of two agents may alternate.
EARLIER = 8


class History:
    """The model calls of one run, in their order."""

    def __init__(self) -> None:
        self._earlier: list[list[JSON]] = []

    def requested(self, step: Step) -> JSON:
        """Return what a recorded model call was asked besides what was said before it.

        Ids in what was said are left out: they differ between any two runs.

        Returns:
            Model, settings and tools as in the request, and the new messages in the place of all.
            The whole request where it cannot be read.
        """
        request = recorded_request(step)
        body = request.get("body")
        if not isinstance(body, dict):
            return request or step.request
        new: JSON = _bare(self._new(body))
        return new

    def given(self, arguments: JSON) -> JSON:
        """Return a step's arguments with only what is new in a conversation among them."""
        if not isinstance(arguments, dict):
            return arguments
        talks = [key for key, value in arguments.items() if _is_talk(value)]
        return self._new(arguments, talks) if talks else arguments

    def _new(self, body: dict[str, Any], keys: Any = SAID) -> dict[str, JSON]:
        found = dict(body)
        for key in keys:
            said = body.get(key)
            if isinstance(said, list):
                known = max((_common(said, known) for known in self._earlier), default=0)
                self._earlier = [*self._earlier[1 - EARLIER :], said]
                found[key] = [_plain(item) for item in said[known:]]
        return found


def _is_talk(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict) and isinstance(item.get("role"), str) for item in value)
    )


def _common(said: list[JSON], known: list[JSON]) -> int:
    for number, (ours, theirs) in enumerate(zip(said, known, strict=False)):
        if ours != theirs:
            return number
    return min(len(said), len(known))


def _plain(item: JSON) -> JSON:
    """Return a message without its ids and those of its parts; what a tool is given stays whole."""
    if not isinstance(item, dict):
        return item
    return {
        key: [_bare(part) for part in value] if isinstance(value, list) else value
        for key, value in _bare(item).items()
    }


def _bare(part: Any) -> Any:
    return {k: v for k, v in part.items() if k not in _IDS} if isinstance(part, dict) else part
