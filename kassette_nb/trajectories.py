"""Runs of other agents as journals: to view and to compare, not to replay.

SWE-agent writes one ``.traj`` file a run: a JSON object with ``trajectory`` (turns of ``thought``,
``action``, ``observation``, at times ``execution_time`` in seconds) and ``info`` (``exit_status``,
``submission``, ``model_stats``).

What such a file does not say stays missing: most have no times, and a cost or a count of tokens
that is 0 was not recorded. What the file sums up for the whole run (``tokens_sent``,
``tokens_received``, ``instance_cost``) becomes the usage of the last model turn, so that the run's
totals are right; how it is spread over the turns is not known, and nothing is made up for the
others. A journal needs an instant in every line, though: it is the file's own
plus the execution times so far, and a note says that it was made up.

Source: SWE-agent's documentation, "Trajectories".
"""

from __future__ import annotations

import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from . import values
from .clock import stamp
from .entries import Complete, ErrorInfo, Failure, Known, Note, Start, Step, Usage, encode
from .errors import KassetteError
from .imported import IMPORTED
from .storage import Conflict, Storage, check_run_id
from .text import first_line
from .values import JSON

#: What the step of a model's turn is called; those of actions are called by their command.
THINK = "think"
#: Stands for a command that leaves no name.
ACTION = "action"
#: Counts and sums of a whole run, as the file names them.
TOTALS = ("tokens_sent", "tokens_received", "api_calls", "instance_cost", "total_cost")


class Trajectory(msgspec.Struct, frozen=True):
    """A file that has been read and can become a journal."""

    run_id: str
    data: bytes
    steps: int


def import_files(
    storage: Storage, paths: list[str | os.PathLike[str]], run_id: str | None = None
) -> list[str]:
    """Turn trajectory files into journals.

    All files are read before the first journal is written.

    Args:
        storage: Where the journals go.
        paths: SWE-agent's ``.traj`` files.
        run_id: The run's id, for a single file; by default it is made of the file's name.

    Returns:
        The new runs' ids. Their journals are durable.

    Raises:
        KassetteError: A file is not a trajectory, or a run with its id exists already.
    """
    if run_id is not None and len(paths) != 1:
        raise KassetteError(
            f"one run id for {len(paths)} files: import them one by one, or leave it out."
        )
    names = _ids([Path(path) for path in paths]) if run_id is None else [check_run_id(run_id)]
    known = set(storage.list())
    made = []
    for path, name in zip(paths, names, strict=True):
        if name in known:
            raise KassetteError(
                f"run {name!r} exists already in {storage.place}; {path} was not imported, and "
                "neither was any other file. Give it an id of its own, with run_id= or --run-id."
            )
        made.append(read_file(Path(path), name))
    for trajectory in made:
        try:
            storage.create(trajectory.run_id, trajectory.data)
        except Conflict:
            raise KassetteError(
                f"run {trajectory.run_id!r} was made by somebody else meanwhile; import the "
                "rest again."
            ) from None
    return [trajectory.run_id for trajectory in made]


def read_file(path: Path, run_id: str) -> Trajectory:
    """Read one ``.traj`` file.

    Raises:
        KassetteError: It cannot be read, or is not a trajectory; names what is missing.
    """
    if path.is_dir():
        raise KassetteError(f"{path} is a directory; give its files: {path / '*.traj'}.")
    try:
        text = path.read_bytes()
        modified = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        content = json.loads(text)
    except OSError as problem:
        raise KassetteError(f"cannot read {path}: {problem.strerror or problem}") from None
    except (ValueError, RecursionError) as problem:
        raise KassetteError(f"{path} is not a trajectory: not valid JSON ({problem})") from None
    turns = content.get("trajectory") if isinstance(content, dict) else None
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise KassetteError(
            f"{path} is not a trajectory of SWE-agent: it has no list of turns under 'trajectory'."
        )
    for number, turn in enumerate(turns):
        for part in ("thought", "response", "action"):
            if not isinstance(turn.get(part), str | None):
                raise KassetteError(
                    f"{path} is not a trajectory of SWE-agent: the {part} of turn {number} is "
                    f"{first_line(repr(turn[part]), 60)}, no text."
                )
    info = content.get("info")
    made = list(_entries(path, content, turns, info if isinstance(info, dict) else {}))
    _add_totals([entry for entry, _ in made if isinstance(entry, Step)], _stats(info))
    at, lines, steps = modified, [], 0
    for offset, (entry, seconds) in enumerate(made):
        try:
            at += timedelta(seconds=seconds or 0.0)
        except OverflowError:
            raise KassetteError(
                f"{path} is not a trajectory of SWE-agent: with an execution_time of {seconds:g} "
                "seconds its turns end in no year that there is."
            ) from None
        entry.session, entry.offset, entry.timestamp = 1, offset, stamp(at)
        if isinstance(entry, Step):
            steps += 1
            if seconds is not None:
                entry.started_at = stamp(at - timedelta(seconds=seconds))
        lines.append(encode(entry))
    return Trajectory(run_id, b"".join(lines), steps)


def _entries(
    path: Path, content: dict[str, Any], turns: list[dict[str, Any]], info: dict[str, Any]
) -> Iterator[tuple[Known, float | None]]:
    """Yield the journal's entries, each with the seconds that it is known to have taken."""
    about = {"environment": content.get("environment"), "task": _task(content)}
    metadata = {key: value for key, value in about.items() if isinstance(value, str)}
    yield Start(session=1, label=path.stem, metadata=_payload(metadata)), None
    stats = _stats(info)
    yield (
        Note(
            session=1,
            kind=IMPORTED,
            data=_payload(
                {
                    "format": "SWE-agent trajectory",
                    "file": path.name,
                    "timestamps": "synthetic: the file's time plus known execution times",
                    **{key: stats[key] for key in TOTALS if _recorded(stats.get(key))},
                }
            ),
        ),
        None,
    )
    counts: dict[str, int] = {}
    for turn in turns:
        thought = turn.get("response") or turn.get("thought")
        if isinstance(thought, str):
            yield _step(counts, THINK, "llm", {}, {"content": thought}), None
        action = turn.get("action")
        if isinstance(action, str) and action.strip():
            took = turn.get("execution_time")
            seconds = float(took) if took is not None and _recorded(took) else None
            step = _step(
                counts, _name(action), "tool", {"command": action}, turn.get("observation")
            )
            yield step, seconds
    submission, status = info.get("submission"), info.get("exit_status")
    if isinstance(submission, str) and submission.strip():
        yield Complete(session=1, result=_payload(submission)), None
    elif isinstance(status, str) and status:
        error = ErrorInfo(name=_clean(status), message="the agent submitted nothing")
        yield Failure(session=1, error=error), None


def _stats(info: object) -> dict[str, Any]:
    stats = info.get("model_stats") if isinstance(info, dict) else None
    return stats if isinstance(stats, dict) else {}


def _add_totals(steps: list[Step], stats: dict[str, Any]) -> None:
    """Let the last model turn carry what the whole run spent, as far as the file says it."""
    # That of all instances of a batch, where the file does not tell this one's apart.
    cost = stats.get("instance_cost", stats.get("total_cost"))
    usage = Usage(
        input_tokens=_whole(stats.get("tokens_sent")),
        output_tokens=_whole(stats.get("tokens_received")),
        cost_usd=float(cost) if cost is not None and _recorded(cost) else None,
    )
    turns = [step for step in steps if step.kind == "llm"] or steps
    if turns and usage != Usage():
        turns[-1].usage = usage


def _whole(count: Any) -> int | None:
    return int(count) if _recorded(count) else None


def _step(counts: dict[str, int], name: str, kind: str, args: JSON, result: JSON) -> Step:
    number = counts[name] = counts.get(name, 0) + 1
    step_id = name if number == 1 else f"{name}#{number}"
    step = Step(session=1, step_id=step_id, name=name, kind=kind, result=_payload(result))
    if args:
        step.args = _payload(args)
    return step


def _task(content: dict[str, Any]) -> str | None:
    """Return the task as the agent was given it: the first message that is not the system's."""
    history = content.get("history")
    for message in history if isinstance(history, list) else []:
        if isinstance(message, dict) and message.get("role") == "user":
            given = message.get("content")
            return given if isinstance(given, str) else None
    return None


def _name(action: str) -> str:
    """Return the command's first word as a step's name."""
    word = unicodedata.normalize("NFC", _clean(action.split(None, 1)[0]))
    word = re.sub(r"[^\w.+:-]", "", os.path.basename(word.rstrip("/")))
    return word[:60] or ACTION


def _recorded(number: object) -> bool:
    return (
        isinstance(number, int | float)
        and not isinstance(number, bool)
        and 0 < number <= sys.float_info.max
    )


def _payload(value: JSON) -> Any:
    return values.encode(_clean(value), what="the file")


def _clean(value: Any) -> Any:
    """Return a value with what no UTF-8 file can hold spelled out: models do emit half pairs."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


def _ids(paths: list[Path]) -> list[str]:
    """Return ids made of the files' names, with their folder's where two would be the same."""
    stems = [path.stem for path in paths]
    names = [
        f"{path.resolve().parent.name}.{stem}" if stems.count(stem) > 1 else stem
        for path, stem in zip(paths, stems, strict=True)
    ]
    made = [re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("._-")[:128] for name in names]
    for path, name in zip(paths, made, strict=True):
        if not name or made.count(name) > 1:
            raise KassetteError(
                f"no run id can be made of the name {path.name!r} that no other file has, too. "
                "Import it alone, with run_id= or --run-id."
            )
    return made
