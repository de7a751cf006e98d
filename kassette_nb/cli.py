"""``kassette-nb``: the journals of a storage from the command line. Thin: one method a verb."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click
import msgspec
from msgspec import UNSET

from . import fork as forks
from . import runs, trajectories
from .errors import EventMismatchError, KassetteError
from .journal import read
from .run import Run
from .state import RunState
from .storage import Storage, open_storage
from .values import JSON, decode

_Verb = Callable[..., None]


class _Command(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KassetteError as problem:
            raise click.ClickException(str(problem)) from None


@click.group(cls=_Command)
@click.option("--storage", metavar="URL", help="Where the runs are; default $KASSETTE_STORAGE.")
@click.version_option(package_name="kassette-nb")
@click.pass_context
def main(ctx: click.Context, storage: str | None) -> None:
    """Look at durable agent runs and fork them."""
    try:
        ctx.obj = open_storage(storage)
    except KassetteError as problem:
        raise click.ClickException(str(problem)) from None


@main.command("list")
@click.option("--limit", type=click.IntRange(min=0), help="At most this many runs.")
@click.option("--long", is_flag=True, help="With all that `status` says of each.")
@click.pass_obj
def list_runs(storage: Storage, limit: int | None, long: bool) -> None:
    """Print one {"runId": …} a line, sorted by id."""
    known = runs.open(storage)
    for run_id in storage.list(limit=limit):
        if not long:
            _print({"runId": run_id})
            continue
        try:
            _print(_status(run_id, known.look(run_id).fold()))
        except KassetteError as problem:
            _print({"runId": run_id, "status": "damaged", "damage": str(problem)})


@main.command()
@click.argument("run_id")
@click.pass_obj
def status(storage: Storage, run_id: str) -> None:
    """Print a run's state as one JSON object."""
    _print(_status(run_id, runs.open(storage)[run_id].fold()))


@main.command()
@click.argument("run_id")
@click.option("--offset", type=click.IntRange(min=0), default=0, help="From this entry on.")
@click.pass_obj
def dump(storage: Storage, run_id: str, offset: int) -> None:
    """Print the journal's lines as they are recorded."""
    journal = read(storage, run_id)
    for number in range(offset, len(journal.entries)):
        sys.stdout.buffer.write(journal.line(number))
    sys.stdout.buffer.flush()


@main.command()
@click.argument("source")
@click.option("--from-offset", type=click.IntRange(min=0), help="The first entry left out.")
@click.option("--from-step", "--at", metavar="ID", help="The step that runs again.")
@click.option("--new-run-id", metavar="ID", help="The fork's id; default SOURCE.2, .3 …")
@click.pass_obj
def fork(
    storage: Storage,
    source: str,
    from_offset: int | None,
    from_step: str | None,
    new_run_id: str | None,
) -> None:
    """Make a new run from the entries before a point; print its {"runId": …}."""
    if (from_offset is None) == (from_step is None):
        raise click.UsageError("give one of --from-offset and --from-step")
    at = from_step if from_offset is None else from_offset
    _print({"runId": forks.fork(storage, source, at=at, new_run_id=new_run_id)})


@main.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option("--run-id", metavar="ID", help="The run's id, for one file; default its name.")
@click.pass_obj
def import_files(storage: Storage, files: tuple[str, ...], run_id: str | None) -> None:
    """Make journals of SWE-agent's .traj files, to view and compare; print their {"runId": …}."""
    for made in trajectories.import_files(storage, [*files], run_id):
        _print({"runId": made})


def _deciding(command: _Verb) -> _Verb:
    """Add the options that every answer takes."""
    for option in (
        click.option("--event", help="Which question, where several are pending."),
        click.option("--note", help="Why; an agent that asks without a schema gets it."),
        click.option("--by", help="Who answers."),
    ):
        command = option(command)
    return command


@main.command()
@click.argument("run_id")
@_deciding
@click.pass_obj
def approve(storage: Storage, /, run_id: str, **who: Any) -> None:
    """Record yes as the answer; the run goes on when its code is next started."""
    _yes_or_no(runs.open(storage)[run_id], "approve", who)


@main.command()
@click.argument("run_id")
@_deciding
@click.pass_obj
def reject(storage: Storage, /, run_id: str, **who: Any) -> None:
    """Record no as the answer; the run goes on when its code is next started."""
    _yes_or_no(runs.open(storage)[run_id], "reject", who)


@main.command()
@click.argument("run_id")
@click.argument("answer")
@_deciding
@click.pass_obj
def respond(storage: Storage, /, run_id: str, answer: str, **who: Any) -> None:
    """Record ANSWER, as JSON; the run goes on when its code is next started."""
    _answered(runs.open(storage)[run_id].respond(_json("ANSWER", answer), **who))


@main.command()
@click.argument("run_id")
@click.argument("action", type=click.Choice(["record", "retry", "fail"]))
@click.argument("value", required=False)
@click.option("--attempt", type=int, help="The attempt that was looked at; refuse any other.")
@_deciding
@click.pass_obj
def settle(
    storage: Storage,
    /,
    run_id: str,
    action: str,
    value: str | None,
    attempt: int | None,
    **who: Any,
) -> None:
    """Say what became of a tool in doubt.

    record RESULT (as JSON): it happened. retry: run it again. fail TEXT: it went wrong.
    """
    if action == "record" and value is None:
        raise click.UsageError("record needs the tool's result, as JSON; null if it has none")
    given: Any = UNSET if value is None else value
    if action == "record" and value is not None:
        given = _json("VALUE", value)
    _answered(runs.open(storage)[run_id].settle(action, given, attempt=attempt, **who))


@main.command()
@click.argument("run_id")
@click.pass_obj
def retry(storage: Storage, run_id: str) -> None:
    """Make a new run of a failed one, without the failure; print its {"runId": …}."""
    _print({"runId": runs.open(storage)[run_id].retry().run_id})


@main.command()
@click.argument("run_id")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--overwrite", is_flag=True, help="Replace the file.")
@click.pass_obj
def export(storage: Storage, run_id: str, file: str, overwrite: bool) -> None:
    """Write FILE.ipynb, a notebook that documents the run; print its {"path": …}."""
    if not overwrite and os.path.exists(file):
        raise click.ClickException(f"{file!r} exists already; --overwrite replaces it")
    _print({"path": runs.open(storage)[run_id].to_notebook(file, overwrite=overwrite)})


@main.command()
@click.argument("run_id")
@click.option("--reason", help="Why, for the record.")
@click.pass_obj
def cancel(storage: Storage, run_id: str, reason: str | None) -> None:
    """Call a run off for good."""
    _answered(runs.open(storage)[run_id].cancel(reason=reason))


def _yes_or_no(run: Run, answer: str, who: dict[str, str | None]) -> None:
    try:
        _answered(getattr(run, answer)(**who))
    except EventMismatchError as problem:
        doubts = [doubt.step_id for doubt in run.fold().doubts]
        if who["event"] not in (None, *doubts) or not doubts:
            raise
        raise click.ClickException(
            f"run {run.run_id!r}: it is not known whether {', '.join(map(repr, doubts))} happened, "
            f"and yes or no is no answer to that. Say: kassette-nb settle {run.run_id} record "
            "RESULT (it did), or retry, or fail TEXT. Nothing was recorded."
        ) from problem


def _json(what: str, text: str) -> JSON:
    try:
        return msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, RecursionError) as problem:
        raise click.UsageError(f"{what} is not valid JSON: {problem}") from None


def _answered(run: Run) -> None:
    _print(_status(run.run_id, run.fold()))


def _status(run_id: str, folded: RunState) -> dict[str, Any]:
    first = folded.opening
    shown: dict[str, Any] = {
        "runId": run_id,
        "status": folded.status,
        "workflow": first.workflow,
        "version": (folded.latest or first).version,
        "label": first.label,
        "entries": folded.length,
        "steps": len(folded.steps),
        "sessions": len(folded.sessions),
        "startedAt": folded.started,
        "updatedAt": folded.updated,
        "waitingOn": [
            {"eventName": q.event, "stepId": q.step_id, "prompt": q.prompt} for q in folded.waits
        ],
        "inDoubt": [intent.step_id for intent in folded.doubts],
    }
    if first.source is not None:
        shown["source"] = first.source
    ending = folded.ending
    if ending is not None:
        if hasattr(ending, "result"):
            shown["result"] = decode(ending.result)
        elif hasattr(ending, "error"):
            shown["error"] = ending.error
        else:
            shown["reason"] = ending.reason
    return {key: value for key, value in shown.items() if value is not None}


def _print(value: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()
