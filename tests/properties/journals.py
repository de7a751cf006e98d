"""The rules of FORMAT.md, checked line by line with the standard library alone."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\Z")
_TYPES = {
    "start": (),
    "step": ("stepId", "name"),
    "intent": ("stepId", "name", "idempotencyKey", "attempt"),
    "note": ("kind",),
    "suspend": ("eventName", "stepId"),
    "resume": ("eventName", "stepId", "value"),
    "complete": ("result",),
    "error": ("error",),
    "cancel": (),
}
TERMINAL = ("complete", "error", "cancel")
Entry = dict[str, Any]


def whole(data: bytes) -> bytes:
    """Return a journal without its torn tail."""
    return data[: data.rfind(b"\n") + 1]


def entries(data: bytes) -> list[Entry]:
    """Return the whole lines, decoded."""
    return [_entry(line) for line in whole(data).splitlines()]


@lru_cache(maxsize=1024)
def _entry(line: bytes) -> Entry:
    """Decode a line; storms look at the same ones again and again, and only look."""
    decoded: Entry = json.loads(line)
    return decoded


def check(data: bytes) -> list[Entry]:
    """Check that our own writer may have written these bytes; return the entries.

    Session numbers are without gaps, because a session that writes nothing takes none.
    """
    lines = entries(data)
    sessions: list[list[Entry]] = []
    recorded: set[str] = set()
    asked: set[str] = set()
    # The newest attempt of each tool that this run may have to answer for, and what was said of it.
    attempts: dict[str, Entry] = {}
    said: dict[str, Entry] = {}
    raised = 0
    scope = lines[0].get("scopeFrom", 0) if lines else 0
    copied = lines[0].get("source", {}).get("fromOffset", 0) if lines else 0
    grouping = False
    for number, entry in enumerate(lines):
        kind = entry["type"]
        assert list(entry)[:4] == ["type", "session", "offset", "timestamp"], entry
        assert entry["offset"] == number, (number, entry)
        assert _STAMP.match(entry["timestamp"]), entry
        assert all(key in entry for key in _TYPES[kind]), entry
        assert kind not in TERMINAL or number == len(lines) - 1, "nothing follows an ending"
        if entry["session"] != len(sessions):
            assert entry["session"] == len(sessions) + 1, entry
            sessions.append([])
        sessions[-1].append(entry)
        if kind == "step":
            assert entry["stepId"] not in recorded, f"{entry['stepId']} is recorded twice"
            recorded.add(entry["stepId"])
            assert ("result" in entry) != ("error" in entry), entry
            if entry.get("kind") == "tool" and number >= copied:
                _check_tool(entry, attempts.get(entry["stepId"]), said.get(entry["stepId"]))
            attempts.pop(entry["stepId"], None)
        elif kind == "intent" and number >= scope:
            before = attempts.get(entry["stepId"])
            assert entry["stepId"] not in recorded, f"a recorded tool acts again: {entry}"
            assert entry["attempt"] == (before["attempt"] + 1 if before else 1), entry
            if before is not None:
                assert before["session"] < entry["session"], "acts twice in one session"
                assert before["idempotencyKey"] == entry["idempotencyKey"], entry
                assert before.get("args") == entry.get("args"), entry
            decided = said.pop(entry["stepId"], None)
            assert decided is None or decided["value"]["action"] == "retry", entry
            attempts[entry["stepId"]] = entry
        elif kind == "resume" and entry["eventName"] == "in-doubt":
            # A session that died asks nobody; its doubt can be decided all the same.
            if number >= scope:
                assert entry["stepId"] in attempts, f"nothing is in doubt: {entry}"
                assert entry["stepId"] not in said, f"decided twice: {entry}"
                said[entry["stepId"]] = entry
            asked.discard(entry["stepId"])
        elif kind == "resume":
            assert entry["stepId"] in asked, f"nobody asked for {entry}"
            asked.remove(entry["stepId"])
            raised += entry["eventName"] == "budget"
        elif kind == "suspend":
            if not grouping:
                asked = set()
            assert entry["stepId"] not in asked, f"asked twice in one group: {entry}"
            asked.add(entry["stepId"])
            if entry["eventName"] == "in-doubt" and number >= scope:
                assert entry["stepId"] in attempts, f"nothing is in doubt: {entry}"
                assert entry["stepId"] not in said, f"asked though it is decided: {entry}"
                assert attempts[entry["stepId"]]["session"] < entry["session"], entry
            if entry["eventName"] == "budget":
                assert entry["stepId"] == ("budget" if not raised else f"budget#{raised + 1}")
        grouping = kind == "suspend"
    for session in sessions:
        _check_session(session)
    if lines:
        assert lines[0]["type"] == "start"
        assert {"workflow", "metadata"} <= lines[0].keys()
    return lines


def _check_tool(entry: Entry, attempt: Entry | None, said: Entry | None) -> None:
    """Check that a tool's step tells what its newest attempt did, or what was decided about it."""
    assert attempt is not None, f"it acted without an intent: {entry}"
    error = entry.get("error", {}).get("name")
    if attempt["session"] == entry["session"]:
        assert error != "InDoubtError", entry
        return
    assert "startedAt" not in entry, entry
    if said is None:
        assert error == "InDoubtError", f"nobody decided this: {entry}"
        return
    value = said["value"]
    assert value["action"] in ("record", "fail"), entry
    assert (error == "InDoubtError") is (value["action"] == "fail"), entry
    assert entry.get("result") == value.get("result"), entry


def _check_session(session: list[Entry]) -> None:
    kinds = [entry["type"] for entry in session]
    opening = session[0].get("data", {}).get("type", kinds[0])  # what a retry set aside
    assert opening in ("start", "resume", "cancel"), session[0]
    assert not {"start", "resume"} & set(kinds[1:]), kinds
    group = [entry for entry in session if entry["type"] == "suspend"]
    assert kinds[len(kinds) - len(group) :] == ["suspend"] * len(group), kinds
    for entry in group[:-1]:
        assert entry.get("more") is True, entry


def pending(lines: list[Entry]) -> list[Entry]:
    """Return the questions and timers of the last group less the answers after it."""
    last = max((i for i, entry in enumerate(lines) if entry["type"] == "suspend"), default=None)
    if last is None or lines[-1]["type"] in TERMINAL:
        return []
    first = last
    while lines[first - 1]["type"] == "suspend":
        first -= 1
    answered = {entry["stepId"] for entry in lines[last:] if entry["type"] == "resume"}
    scope = lines[0].get("scopeFrom", 0)
    return [
        entry
        for entry in lines[first : last + 1]
        if entry["stepId"] not in answered
        # A copied call of another logical execution is not this run's to answer for.
        and (entry["eventName"] != "in-doubt" or entry["offset"] >= scope)
    ]


def doubts(lines: list[Entry]) -> dict[str, Entry]:
    """Return the newest attempts that nobody knows the outcome of, by step id."""
    found: dict[str, Entry] = {}
    for entry in lines:
        if entry["type"] == "intent" and entry["offset"] >= lines[0].get("scopeFrom", 0):
            found[entry["stepId"]] = entry
        elif entry["type"] == "step" or (
            entry["type"] == "resume" and entry["eventName"] == "in-doubt"
        ):
            found.pop(entry["stepId"], None)
    return found


def given_up(lines: list[Entry]) -> dict[str, Entry]:
    """Return the errors of the tools of which it was decided that they failed, by step id."""
    return {
        entry["stepId"]: entry["error"]
        for entry in lines
        if entry["type"] == "step" and entry.get("error", {}).get("name") == "InDoubtError"
    }


def status(lines: list[Entry], now: str) -> str:
    """Return the state of a run that nobody holds: a function of its last entry and the clock.

    Args:
        lines: The entries.
        now: The time, in the journal's form (it sorts as text).
    """
    if not lines:
        return "none"
    last = lines[-1]
    kind = last["type"]
    if kind in TERMINAL:
        return {"complete": "completed", "error": "failed", "cancel": "cancelled"}[kind]
    source = lines[0].get("source")
    if source and len(lines) <= source["fromOffset"]:
        return "ready"
    if kind == "suspend":
        if last.get("more"):
            return "interrupted"
        timers = [e for e in pending(lines) if e["eventName"] == "timer"]
        return "ready" if any(e["deadline"] <= now for e in timers) else "suspended"
    return "ready" if kind == "resume" else "interrupted"


def answers(lines: list[Entry]) -> dict[str, Any]:
    """Return the recorded answers by step id."""
    return {entry["stepId"]: entry["value"] for entry in lines if entry["type"] == "resume"}


def values(lines: list[Entry]) -> dict[str, Any]:
    """Return the recorded times and chances by step id."""
    found = {}
    for entry in lines:
        if entry["type"] == "step" and entry.get("kind") == "value":
            found[entry["stepId"]] = entry["result"]
    return found


def step_ids(lines: list[Entry]) -> set[str]:
    """Return the ids of the recorded steps."""
    return {entry["stepId"] for entry in lines if entry["type"] == "step"}
