"""A recorded model call as what was said: system, messages, tools, tool calls, answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

from .. import values
from ..entries import Note, Step
from ..errors import JournalValueError
from ..values import JSON
from .assemble import body_of
from .request import recorded_request
from .wire import recorded_answer

#: Characters of an argument or a parameter where it only names.
SHORT = 80


class Message(msgspec.Struct):
    """One thing said.

    Attributes:
        role: Whose: ``system``, ``user``, ``assistant``, ``tool`` …
        text: What is said, several parts on lines of their own.
        calls: The tools that it calls: name and arguments, as text.
        name: Who speaks: of a tool, the call that it answers.
    """

    role: str
    text: str = ""
    calls: list[tuple[str, str]] = []
    name: str = ""


class Conversation(msgspec.Struct):
    """What was said in one model call.

    Attributes:
        model: Who was asked.
        messages: All that was sent, the system's first.
        tools: The names of the tools offered.
        schemas: The same tools as they were offered, with what they take.
        parameters: What else was asked: temperature, limits and the like.
        answer: What came back; None where nothing was recorded.
        finish_reason: Why the model stopped, or why its answer is not whole.
    """

    model: str | None = None
    messages: list[Message] = []
    tools: list[str] = []
    schemas: list[JSON] = []
    parameters: dict[str, JSON] = {}
    answer: Message | None = None
    finish_reason: str | None = None

    def __str__(self) -> str:
        parts = [_told(message) for message in self.messages]
        if self.tools:
            parts.append(f"tools offered: {', '.join(self.tools)}")
        if self.parameters:
            named = (f"{name} {_short(value)}" for name, value in self.parameters.items())
            parts.append(f"parameters: {', '.join(named)}")
        if self.answer is not None:
            reason = f" ({self.finish_reason})" if self.finish_reason else ""
            parts.append(_told(self.answer, f"answer{reason}"))
        head = [f"model: {self.model}"] if self.model else []
        return "\n\n".join([*head, *parts])

    @property
    def line(self) -> str:
        """The answer on one line: its text, or the tools that it calls."""
        if self.answer is None:
            return ""
        calls = [f"{name}({arguments})" for name, arguments in self.answer.calls]
        return " · ".join(filter(None, [" ".join(self.answer.text.split()), *calls]))


def conversation(step: Step) -> Conversation | None:
    """Return what was said in a recorded model call; None for any other step."""
    if step.request is None:
        return None
    try:
        payload = step.result if step.error is None else step.error.response
        body = body_of(recorded_answer(payload, step.step_id))
    except JournalValueError:
        body = None
    return read(recorded_request(step).get("body"), body if step.error is None else None)


def conversations(step: Step) -> list[Conversation]:
    """Return what was said in a step: the model call it is, or those that its function made."""
    own = conversation(step)
    if own is not None:
        return [own]
    try:
        calls = values.decode(step.calls)
    except JournalValueError:
        return []
    made = []
    for call in calls if isinstance(calls, list) else []:
        request = call.get("request") if isinstance(call, dict) else None
        if isinstance(request, dict):
            told = read(request.get("body"), call.get("answer"))
            if isinstance(call.get("incomplete"), str):
                told.finish_reason = f"incomplete: {call['incomplete']}"
            made.append(told)
    return made


def said(step: Step) -> JSON:
    """Return what makes two model calls the same for a comparison: all that was said.

    Ids, times and counts differ between any two.
    """
    found = conversation(step)
    if found is None or found.answer is None:
        return None
    return [found.answer.role, found.answer.text, [[*call] for call in found.answer.calls]]


def read(request: JSON, answer: JSON) -> Conversation:
    """Return what was said in a request and its answer, in whichever provider's form they are."""
    found = Conversation()
    if isinstance(request, dict):
        model = request.get("model")
        found.model = model if isinstance(model, str) else None
        found.messages = [*_asked(request)]
        tools = request.get("tools")
        found.schemas = tools if isinstance(tools, list) else []
        found.tools = [_tool(tool) for tool in found.schemas]
        found.parameters = {k: v for k, v in request.items() if k not in _SAID}
    if isinstance(answer, dict):
        found.answer, found.finish_reason = _answered(answer)
    return found


def exchange(step: Step) -> str | None:
    """Return one line for what was asked of a provider and is no conversation: a list of models.

    None for a conversation, and for any other step.
    """
    found = conversation(step)
    if found is None or found.answer is not None or found.messages:
        return None
    request = recorded_request(step)
    path = urlsplit(str(request.get("url", ""))).path
    try:
        status = str(recorded_answer(step.result, step.step_id).status)
    except JournalValueError:
        return None
    return f"{request.get('method', '')} {path} · {status}".strip()


def broken_off(note: Note) -> Conversation | None:
    """Return what was said until a stream ended early; None for any other note."""
    try:
        data = values.decode(note.data) if note.kind == "incomplete" else None
        if not isinstance(data, dict) or not isinstance(data.get("request"), dict):
            return None
        payload = msgspec.Raw(msgspec.json.encode(data.get("result")))
        body = body_of(recorded_answer(payload, note.step_id or ""))
    except JournalValueError:
        return None
    found = read(data["request"].get("body"), body)
    found.finish_reason = f"incomplete: {data.get('reason')}"
    return found


_SYSTEM = ("system", "instructions", "systemInstruction")
_MESSAGES = ("messages", "input", "contents", "prompt", "message")
_SAID = frozenset({"model", "tools", *_SYSTEM, *_MESSAGES})


def _asked(request: dict[str, Any]) -> Iterator[Message]:
    for name in _SYSTEM:
        if request.get(name):
            yield Message("system", _text(request[name]))
    made: dict[str, str] = {}
    for name in _MESSAGES:
        said = request.get(name)
        if isinstance(said, str):
            yield Message("user", said)
        elif isinstance(said, list):
            for one in said:
                message = _message(one)
                made.update(_made(one))
                message.name = message.name or ", ".join(_answers(one, made))
                yield message


def _parts(said: JSON) -> list[dict[str, Any]]:
    """Return a message with all in it that may call a tool, or answer such a call."""
    if not isinstance(said, dict):
        return []
    inside = [said.get(name) for name in ("tool_calls", "content")]
    return [said, *(p for part in inside if isinstance(part, list) for p in part if _is(p))]


def _is(part: JSON) -> bool:
    return isinstance(part, dict)


def _made(said: JSON) -> dict[str, str]:
    """Return the calls of a message by their ids, each as a person reads it."""
    found = {}
    for part in _parts(said):
        called = part.get("call_id") if part.get("type") == "function_call" else part.get("id")
        if isinstance(called, str) and ("function" in part or "name" in part):
            name, arguments = _call(part)
            found[called] = f"{name}({_short(arguments)})"
    return found


def _answers(said: JSON, made: dict[str, str]) -> Iterator[str]:
    """Yield the calls that a message answers."""
    for part in _parts(said):
        named = part.get("tool_call_id") or part.get("tool_use_id")
        if part.get("type") == "function_call_output":
            named = part.get("call_id")
        if isinstance(named, str):
            yield made.get(named, named)


def _short(value: JSON) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHORT else f"{text[: SHORT - 1]}…"


def _message(said: JSON) -> Message:
    if not isinstance(said, dict):
        return Message("user", _text(said))
    kind = said.get("type")
    if kind == "function_call":
        return Message("assistant", "", [_call(said)])
    if kind == "function_call_output":
        return Message("tool", _text(said.get("output")))
    role = said.get("role")
    content = said.get("content", said.get("parts"))
    calls = [_call(call) for call in said.get("tool_calls") or () if isinstance(call, dict)]
    if isinstance(content, list):
        calls += [_call(part) for part in content if _calls(part)]
    name = said.get("name")
    return Message(
        role if isinstance(role, str) else "user",
        _text(content),
        calls,
        name if isinstance(name, str) else "",
    )


def _answered(body: dict[str, Any]) -> tuple[Message | None, str | None]:
    reason = body.get("stop_reason") or body.get("done_reason")
    choices = body.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        reason = choices[0].get("finish_reason")
        said = choices[0].get("message", {"content": choices[0].get("text")})
    elif isinstance(body.get("output"), list):
        parts = [_message(item) for item in body["output"]]
        text = "\n".join(part.text for part in parts if part.text)
        calls = [call for part in parts for call in part.calls]
        return Message("assistant", text, calls), body.get("status")
    elif isinstance(body.get("candidates"), list) and body["candidates"]:
        reason = body["candidates"][0].get("finishReason")
        said = body["candidates"][0].get("content")
    elif isinstance(body.get("message"), dict):
        said = body["message"]
    elif "content" in body:
        said = body
    else:
        return None, None
    message = _message(said)
    message.role = "assistant"
    return message, reason if isinstance(reason, str) else None


def _calls(part: JSON) -> bool:
    return isinstance(part, dict) and (part.get("type") == "tool_use" or "functionCall" in part)


def _call(part: dict[str, Any]) -> tuple[str, str]:
    inner = part.get("function") or part.get("functionCall") or part
    given = next((inner[n] for n in ("arguments", "input", "args") if n in inner), "")
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return str(inner.get("name", "")), text


def _tool(tool: JSON) -> str:
    inner = tool.get("function", tool) if isinstance(tool, dict) else tool
    named = inner.get("name") or inner.get("type") if isinstance(inner, dict) else inner
    return str(named)


def _text(content: JSON) -> str:
    """Return the text of a message's content: a string, or parts of several kinds."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(filter(None, map(_text, content)))
    if isinstance(content, dict):
        if _calls(content):
            return ""
        for name in ("text", "thinking", "content", "output", "parts"):
            if name in content:
                return _text(content[name])
        kind = content.get("type")
        return f"[{kind}]" if isinstance(kind, str) else json.dumps(content, ensure_ascii=False)
    return json.dumps(content)


def _told(message: Message, role: str | None = None) -> str:
    lines = [f"{role or message.role} {message.name}".rstrip() + ":"]
    if message.text:
        lines.append(message.text)
    lines += [f"→ {name}({arguments})" for name, arguments in message.calls]
    return "\n".join(lines)
