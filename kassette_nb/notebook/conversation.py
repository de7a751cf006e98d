"""A model call as a conversation: what is new since the previous call first.

A call that a transport recorded carries its request and its answer. A step of one's own that names
a model is read as well as can be from its arguments and its result.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from .. import values
from ..entries import Note, Payload, Step
from ..errors import JournalValueError
from ..llm import conversation as recorded
from ..llm.conversation import Message
from ..text import visible
from ..values import JSON
from .present import FIRST, Value, sized

#: Under what the messages of a request stand, what was said in an answer, and what either may be
#: wrapped in.
_MESSAGES = ("messages", "input", "contents", "prompt")
_ANSWERS = ("choices", "content", "output", "message", "candidates")
_WRAPPERS = ("request", "body", "json", "kwargs", "args", "response")


def conversation(entry: Step | Note, previous: Step | None, whole: bool) -> Value | None:
    """Return a model call as turns, or None where none can be made out.

    Args:
        entry: The call, or the note of one whose stream ended early.
        previous: The call before it on its branch: what it was sent is not new.
        whole: All of it, not only the first 20 kB.

    Returns:
        A value of format ``conversation``: ``turns`` have ``who``, ``text`` and ``new``; ``old``
        counts the turns that were sent before. ``text`` is the whole as plain text, to copy.
    """
    asked, said = _turns(entry)
    if not said and not asked:
        return None
    before: list[tuple[str, str]] = []
    if previous is not None:
        before = [turn for part in _turns(previous) for turn in part]
    old = 0
    while old < min(len(before), len(asked)) and before[old] == asked[old]:
        old += 1
    turns, left = [], None if whole else FIRST
    for number, (who, text) in reversed(list(enumerate(asked + said))):
        shown = text if left is None else text[: max(left, 0)]
        if left is not None:
            left -= len(shown)
        turns.append(
            {
                "who": visible(who),
                "text": visible(shown),
                "cut": len(text) - len(shown),
                "new": number >= old,
                "answer": number >= len(asked),
            }
        )
    turns.reverse()
    plain = "\n\n".join(f"{who}: {text}" for who, text in (asked + said)[old:])
    return {**sized("conversation", plain, whole), "turns": turns, "old": old}


def gist(entry: Step) -> str | None:
    """Return what the model said, as one text; None where it cannot be made out."""
    _, said = _turns(entry)
    return next((text for _, text in said if text.strip()), None)


def _turns(entry: Step | Note) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return what was sent and what came back, each as who and text."""
    if isinstance(entry, Note):
        found = recorded.broken_off(entry)
        if found is None:
            return [], []
    else:
        found = recorded.conversation(entry)
    if found is None:
        assert isinstance(entry, Step), "of a note something is known by now"
        answer = _unwrapped(_decoded(entry.result), _ANSWERS)
        found = recorded.read(_unwrapped(_decoded(entry.args), _MESSAGES), answer)
    said = [found.answer] if found.answer is not None else []
    return [_turn(message) for message in found.messages], [_turn(message) for message in said]


def _turn(message: Message) -> tuple[str, str]:
    calls = [f"→ {name}({given})" for name, given in message.calls]
    who = f"{message.role} {message.name}".rstrip()
    return who, "\n".join([*filter(None, [message.text]), *calls])


def _unwrapped(value: Any, names: tuple[str, ...]) -> JSON:
    """Return the object with one of these fields, out of what it may be wrapped in."""
    if isinstance(value, list):
        if value and all(isinstance(item, dict) and "role" in item for item in value):
            return {"messages": value}
        return next((found for item in value if (found := _unwrapped(item, names))), None)
    if isinstance(value, str):
        return {"content": value} if "content" in names else None
    if not isinstance(value, dict) or any(name in value for name in names):
        return value
    return next((found for n in _WRAPPERS if (found := _unwrapped(value.get(n), names))), None)


def _decoded(payload: Payload) -> JSON:
    if payload is UNSET:
        return None
    try:
        return values.decode(payload)
    except JournalValueError:
        return None
