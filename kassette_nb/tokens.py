"""What a step is, for aligning runs: its name and its command or tool, not its counter. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from .entries import Step

#: Arguments that name what an agent's general step does (``run`` with ``command="pytest -x"``).
COMMANDS = ("command", "cmd", "tool", "tool_name", "function", "action")
_COUNTER = re.compile(r"#\d+")
_VARIABLE = re.compile(r"[A-Za-z_]\w*=\S*\s+")


def token(step: Step) -> str:
    """Return what makes two steps of two runs the same step."""
    branch = step.step_id.rpartition("/")[0]
    place = f"{_COUNTER.sub('', branch)}/" if branch else ""
    return f"{place}{label(step)}"


def label(step: Step) -> str:
    """Return the step's name, with the first word of its command where it has one."""
    if step.args is UNSET or step.kind == "llm":
        return step.name
    try:
        args = msgspec.json.decode(step.args)
    except (msgspec.DecodeError, RecursionError):
        return step.name
    word = _command(args) if isinstance(args, dict) else None
    return f"{step.name} {word}" if word and word != step.name else step.name


def _command(args: dict[str, object], depth: int = 0) -> str | None:
    for key in COMMANDS:
        value = args.get(key)
        if isinstance(value, str) and value.strip():
            return _word(value)
        if isinstance(value, list) and value and isinstance(value[0], str):
            return _word(value[0])
        if isinstance(value, dict) and depth == 0:
            inner = _command(value, 1) or value.get("name")
            if isinstance(inner, str) and inner.strip():
                return inner
    return None


def _word(command: str) -> str | None:
    """Return the program that a command line calls, without variables set for it."""
    line = command.strip()
    while found := _VARIABLE.match(line):
        line = line[found.end() :]
    words = line.split(None, 3)
    if len(words) > 2 and words[1] == "-m":  # python -m pytest
        words = words[2:]
    return os.path.basename(words[0])[:40] if words else None


def ordered(steps: Sequence[Step], depth: int = 0) -> list[Step]:
    """Return steps with the branches of a parallel block one after the other, by key.

    In a journal they stand as they finished, which says nothing about what the code did.
    """
    found: list[Step] = []
    block: dict[str, list[Step]] = {}
    for step in steps:
        parts = step.step_id.split("/")
        inside = len(parts) > depth + 1
        if inside or step.parallel:
            block.setdefault(parts[depth], []).append(step)
            continue
        found += _flattened(block, depth)
        block.clear()
        found.append(step)
    return found + _flattened(block, depth)


def _flattened(block: dict[str, list[Step]], depth: int) -> list[Step]:
    found: list[Step] = []
    for key in sorted(block):
        steps = block[key]
        alone = [step for step in steps if step.step_id.count("/") == depth]
        inner = [step for step in steps if step.step_id.count("/") > depth]
        found += alone + ordered(inner, depth + 1)
    return found
