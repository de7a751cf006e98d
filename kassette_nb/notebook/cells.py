"""What the cells of a comparison say: a step's value in one line, with what else differs there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UNSET

from .. import values
from ..diff import Row
from ..entries import Payload, Step
from ..errors import JournalValueError
from ..facets import Facets
from ..preview import outcome, preview
from ..text import first_line

#: Characters of what stands before the value, and of what may be the same in all of them.
LEAD, COMMON = 80, 24
_KEY = re.compile(r'\s*"(?:[^"\\]|\\.)*": "?')


def told(rows: Sequence[Row], facets: Facets) -> Iterator[list[str | None]]:
    """Yield each row's cells in words; None where a run has no step.

    Where steps with the same value differ in what they were asked or in what they did to the
    files, all cells of the row say that first: else they would look the same.
    """
    leads = [_lead(row) for row in rows]
    facets.count(
        (column, step)
        for row, lead in zip(rows, leads, strict=True)
        if lead == "files"
        for column, step in enumerate(row.cells)
        if step is not None
    )
    known: dict[bytes, str] = {}
    for row, lead in zip(rows, leads, strict=True):
        lines = [None if step is None else _value(step, known) for step in row.cells]
        if lead == "arguments":
            asked = _distinct(
                [
                    None if step is None else _spelled(facets.arguments(column, step))
                    for column, step in enumerate(row.cells)
                ]
            )
            lines = [_joined(a, " → ", line) for a, line in zip(asked, lines, strict=True)]
        elif lead == "files":
            did = ["" if s is None else facets.changed(n, s) for n, s in enumerate(row.cells)]
            lines = [_joined(d, " · ", line) for d, line in zip(did, lines, strict=True)]
        yield lines


def _lead(row: Row) -> str:
    """Return what a row's cells have to say beside their values."""
    others = [differs for differs in row.differs if differs and "value" not in differs]
    return next((part for part in ("arguments", "files") if any(part in d for d in others)), "")


def _value(step: Step, known: dict[bytes, str]) -> str:
    """Return a step's value in one line; equal ones, which a fork has many of, are read once."""
    if step.error is not None or step.request is not None:
        return outcome(step)
    raw = b"" if step.result is UNSET else bytes(step.result)
    return known.get(raw) or known.setdefault(raw, preview(step.result))


def _joined(lead: str, sign: str, line: str | None) -> str | None:
    return line if line is None or not lead else f"{lead}{sign}{line}"


def _distinct(texts: list[list[str] | None]) -> list[str]:
    """Return of each text the first line in which not all are alike."""
    given = [text for text in texts if text is not None]
    for number in range(max(map(len, given), default=0)):
        lines = {text[number] for text in given if number < len(text)}
        if any(lines) and (len(lines) > 1 or any(number >= len(text) for text in given)):
            found = [(text or [])[number : number + 1] for text in texts]
            told = _parting([line[0] if line else "" for line in found])
            return [first_line(line, LEAD) for line in told]
    return [""] * len(texts)


def _parting(lines: list[str]) -> list[str]:
    """Return lines from where they part: a column is narrow, and they begin alike.

    Left out are the key in a document, and of what stands behind it all but the last common word.
    """
    given = [line for line in lines if line]
    if len(set(given)) < 2:
        return lines
    first, last = min(given), max(given)
    pairs = enumerate(zip(first, last, strict=False))
    same = next((n for n, (ours, theirs) in pairs if ours != theirs), min(len(first), len(last)))
    key = _KEY.match(first[:same])
    if key:
        lines = [line[key.end() :].removesuffix(",").removesuffix('"') for line in lines]
        same -= key.end()
    if same > COMMON:
        told = next(line for line in lines if line)
        word = told.rfind(" ", 0, same) + 1
        lines = [f"…{line[word:]}" if word and line else line for line in lines]
    return lines


def _spelled(payload: Payload) -> list[str]:
    """Return arguments as lines, each under its name."""
    if payload is UNSET:
        return ["no arguments"]
    try:
        given = values.decode(payload)
    except JournalValueError as problem:
        return [problem.reason]
    if not isinstance(given, dict):
        return msgspec.json.format(bytes(payload), indent=1).decode().split("\n")
    lines: list[str] = []
    for name, value in given.items():
        text = value
        if not isinstance(value, str):
            text = msgspec.json.format(msgspec.json.encode(value), indent=1).decode()
        lines += f"{name}: {text}".split("\n")
    return lines
