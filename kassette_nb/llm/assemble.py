"""The whole answer that the pieces of a stream add up to, in the form it has without streaming."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from .wire import Answer, events

Body = dict[str, Any]


def body_of(answer: Answer) -> Body | None:
    """Return the JSON object that an answer is, or that its stream adds up to; None for others."""
    content = answer.content
    if answer.times is not None:
        return assembled(events(content))
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def assembled(pieces: Iterable[Body]) -> Body | None:
    """Return what the events of a stream add up to; None where none is understood.

    Knows OpenAI's chat completions and responses, Anthropic's messages, Google's
    generateContent and the lines of Ollama. Of an unfinished stream it gives what came.
    """
    whole: Body | None = None
    for piece in pieces:
        kind = piece.get("type")
        try:
            if isinstance(kind, str) and kind.startswith("response."):
                whole = _response(whole, kind, piece)
            elif kind in _MESSAGE or (isinstance(whole, dict) and whole.get("type") == "message"):
                whole = _message(whole, piece)
            elif "choices" in piece:
                whole = _chat(whole, piece)
            elif "candidates" in piece or "usageMetadata" in piece:
                whole = _candidates(whole, piece)
            elif "done" in piece:
                whole = _lines(whole, piece)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            continue  # a piece in a form of its own; what is understood of the others stands
    return whole


_MESSAGE = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    }
)


def _response(whole: Body | None, kind: str, piece: Body) -> Body:
    """OpenAI's responses: the last event holds all."""
    if isinstance(piece.get("response"), dict):
        return dict(piece["response"])
    whole = whole or {}
    if kind == "response.output_text.delta":
        output = whole.setdefault("output", [])
        if not output or output[-1].get("type") != "message":
            output.append({"type": "message", "role": "assistant", "content": []})
        content = output[-1]["content"]
        if not content:
            content.append({"type": "output_text", "text": ""})
        content[-1]["text"] += piece["delta"]
    return whole


def _message(whole: Body | None, piece: Body) -> Body:
    """Anthropic's messages."""
    kind = piece["type"]
    if kind == "message_start":
        return {**piece["message"], "content": list(piece["message"].get("content") or [])}
    whole = whole or {"type": "message", "role": "assistant", "content": []}
    content = whole["content"]
    if kind == "content_block_start":
        content.append(dict(piece["content_block"]))
    elif kind == "content_block_delta":
        block, delta = content[-1], piece["delta"]
        for field, target in _DELTAS.items():
            if field in delta:
                block[target] = block.get(target, "") + delta[field]
    elif kind == "content_block_stop":
        _parsed(content[-1])
    elif kind == "message_delta":
        whole.update({k: v for k, v in piece.get("delta", {}).items() if v is not None})
        known = {k: v for k, v in (piece.get("usage") or {}).items() if v is not None}
        whole["usage"] = {**(whole.get("usage") or {}), **known}
    return whole


#: The pieces of a tool's input are JSON only together.
_DELTAS = {"text": "text", "thinking": "thinking", "partial_json": "_json"}


def _parsed(block: Body) -> None:
    text = block.pop("_json", None)
    if text is None:
        return
    try:
        block["input"] = msgspec.json.decode(text) if text else {}
    except msgspec.DecodeError:
        block["input"] = text


def _chat(whole: Body | None, piece: Body) -> Body:
    """OpenAI's chat completions, and all that speak like them."""
    if whole is None:
        whole = {k: v for k, v in piece.items() if k not in ("choices", "usage")}
        whole["object"] = "chat.completion"
        whole["choices"] = []
    choices = whole["choices"]
    for part in piece.get("choices") or ():
        index = part.get("index", 0)
        choice = next((c for c in choices if c["index"] == index), None)
        if choice is None:
            choice = {"index": index, "message": {"role": "assistant", "content": None}}
            choices.append(choice)
        if part.get("finish_reason") is not None:
            choice["finish_reason"] = part["finish_reason"]
        message = choice["message"]
        for field, value in (part.get("delta") or {}).items():
            if field == "tool_calls":
                _tool_calls(message.setdefault("tool_calls", []), value or ())
            elif isinstance(value, str) and field != "role":
                message[field] = ((message.get(field) or "") + value) or None
            elif value is not None:
                message[field] = value
    usage = piece.get("usage") or (piece.get("x_groq") or {}).get("usage")
    if usage:
        whole["usage"] = usage
    return whole


def _tool_calls(calls: list[Body], parts: Iterable[Body]) -> None:
    for part in parts:
        index = part.get("index", len(calls))
        call = next((c for c in calls if c["index"] == index), None)
        if call is None:
            call = {"index": index, "id": None, "type": "function"}
            call["function"] = {"name": "", "arguments": ""}
            calls.append(call)
        if part.get("id"):
            call["id"] = part["id"]
        for field, text in (part.get("function") or {}).items():
            call["function"][field] = call["function"].get(field, "") + (text or "")


def _candidates(whole: Body | None, piece: Body) -> Body:
    """Google's generateContent: each piece is an answer with a part of the text."""
    if whole is None:
        return piece
    for index, part in enumerate(piece.get("candidates") or ()):
        known = whole.setdefault("candidates", [])
        if index >= len(known):
            known.append(part)
            continue
        old = known[index].setdefault("content", {"role": "model", "parts": []})
        old.setdefault("parts", []).extend((part.get("content") or {}).get("parts") or ())
        known[index].update({k: v for k, v in part.items() if k != "content"})
    whole.update({k: v for k, v in piece.items() if k != "candidates"})
    return whole


def _lines(whole: Body | None, piece: Body) -> Body:
    """Ollama: a line a piece; the last one holds the counts."""
    text = ((whole or {}).get("message") or {}).get("content") or ""
    calls = ((whole or {}).get("message") or {}).get("tool_calls") or []
    merged = {**(whole or {}), **piece}
    message = piece.get("message")
    if isinstance(message, dict):
        calls = [*calls, *(message.get("tool_calls") or ())]
        merged["message"] = {**message, "content": text + (message.get("content") or "")}
        if calls:
            merged["message"]["tool_calls"] = calls
    elif "response" in piece:
        merged["response"] = ((whole or {}).get("response") or "") + (piece["response"] or "")
    return merged
