"""A model call as a conversation: what is new since the previous call first.

Model calls are recorded in their providers' own forms. What is taken from them is only who said
what; everything else stands under Arguments and Entry.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from .. import values
from ..entries import Payload, Step
from ..errors import JournalValueError
from ..text import visible
from ..values import JSON
from .present import FIRST, Value, sized

Turn = dict[str, Any]


def conversation(entry: Step, previous: Step | None, whole: bool) -> Value | None:
    """Return a model call as turns, or None where none can be made out.

    Args:
        entry: The call.
        previous: The call before it on its branch: what it was sent is not new.
        whole: All of it, not only the first 20 kB.

    Returns:
        A value of format ``conversation``: ``turns`` have ``who``, ``text`` and ``new``; ``old``
        counts the turns that were sent before. ``text`` is the whole as plain text, to copy.
    """
    asked, said = _asked(_decoded(entry.args)), _said(_decoded(entry.result))
    if not said and not asked:
        return None
    before: list[tuple[str, str]] = []
    if previous is not None:
        before = _asked(_decoded(previous.args)) + _said(_decoded(previous.result))
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
                "who": who,
                "text": visible(shown),
                "cut": len(text) - len(shown),
                "new": number >= old,
                "answer": number >= len(asked),
            }
        )
    turns.reverse()
    plain = "\n\n".join(f"{who}: {text}" for who, text in (asked + said)[old:])
    return {**sized("conversation", plain, whole), "turns": turns, "old": old}


def gist(payload: Payload) -> str | None:
    """Return what the model said, as one text; None where it cannot be made out."""
    said = _said(_decoded(payload))
    return next((text for _, text in said if text.strip()), None)


def _asked(request: JSON) -> list[tuple[str, str]]:
    """Return the messages of a request: in ``messages``, ``input`` or ``contents``, at any depth
    that a request is wrapped in."""
    if isinstance(request, list):
        if request and all(isinstance(item, dict) and "role" in item for item in request):
            return [_turn(item) for item in request if isinstance(item, dict)]
        return next(filter(None, map(_asked, request)), [])
    if not isinstance(request, dict):
        return []
    turns = []
    system = request.get("system") or request.get("instructions")
    if system:
        turns.append(("system", _text(system)))
    for name in ("messages", "input", "contents"):
        found = request.get(name)
        if isinstance(found, str):
            return [*turns, ("user", found)]
        if isinstance(found, list) and found:
            return [*turns, *(_turn(item) for item in found)]
    for name in ("request", "body", "json", "kwargs", "args"):
        inner = _asked(request.get(name))
        if inner:
            return inner
    prompt = request.get("prompt")
    return [("user", prompt)] if isinstance(prompt, str) else []


def _said(response: JSON) -> list[tuple[str, str]]:
    """Return what the model said."""
    if isinstance(response, str):
        return [("assistant", response)]
    if not isinstance(response, dict):
        return []
    for name in ("response", "body", "message"):
        inner = _said(response.get(name)) if isinstance(response.get(name), dict) else []
        if inner:
            return inner
    for name in ("choices", "candidates"):
        found = response.get(name)
        if isinstance(found, list) and found and isinstance(found[0], dict):
            first = found[0]
            message = first.get("message") or first.get("content")
            return _said(message) if isinstance(message, dict) else []
    output = response.get("output")
    if isinstance(output, list):
        return [_turn(item) for item in output]
    if "content" in response or "tool_calls" in response or "parts" in response:
        return [_turn(response, "assistant")]
    return []


def _turn(item: JSON, who: str = "user") -> tuple[str, str]:
    if not isinstance(item, dict):
        return who, _text(item)
    role = item.get("role")
    kind = item.get("type")
    who = role if isinstance(role, str) else kind if isinstance(kind, str) else who
    name = item.get("name")
    text = _text(item.get("content", item.get("parts")))
    calls = item.get("tool_calls")
    if isinstance(calls, list):
        text = "\n".join(filter(None, [text, *map(_call, calls)]))
    if not text and kind in ("function_call", "function_call_output"):
        text = _call(item) if kind == "function_call" else _text(item.get("output"))
    return (f"{who} {name}" if isinstance(name, str) and role else who), text


def _text(content: JSON) -> str:
    """Return the words of a content in any of its forms; other parts by their kind."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(filter(None, map(_text, content)))
    if not isinstance(content, dict):
        return msgspec.json.encode(content).decode()
    for name in ("text", "thinking", "refusal"):
        if isinstance(content.get(name), str):
            return str(content[name])
    kind = content.get("type")
    if kind in ("tool_use", "function_call", "functionCall"):
        return _call(content)
    if kind == "tool_result" or "content" in content:
        return _text(content.get("content"))
    if isinstance(kind, str) and "image" in kind:
        return "<image>"
    return msgspec.json.encode(content).decode()


def _call(call: JSON) -> str:
    if not isinstance(call, dict):
        return _text(call)
    inner = call.get("function")
    call = inner if isinstance(inner, dict) else call
    given = call.get("arguments", call.get("input", call.get("args")))
    shown = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    return f"→ {call.get('name', 'tool')}({shown})"


def _decoded(payload: Payload) -> JSON:
    if payload is UNSET:
        return None
    try:
        return values.decode(payload)
    except JournalValueError:
        return None
