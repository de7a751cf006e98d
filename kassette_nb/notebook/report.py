"""A run as a notebook that documents it, and whose last cells continue or fork it live.

What the journal says stands in code only as ``ascii()`` literals, and else only in plain-text
outputs: never as Markdown, never as HTML.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ..clock import SystemClock, stamp
from ..diff import readable
from ..entries import Complete, Failure, Step, Suspend
from ..errors import KassetteError
from ..model import RunModel, RunsModel
from ..preview import preview
from ..recorded import RecordedStep
from ..state import INTERRUPTED, READY, Events, RunState
from ..text import visible
from . import code, family, figures, html
from .labels import duration, money
from .rows import rows_of
from .summary import facts, lineage

#: Characters of one value that the notebook keeps; its cell prints all of it.
LONGEST = 20_000
#: Kinds that are ours; another writer's word does not belong into code.
KINDS = ("step", "tool", "llm", "value", "sleep")
PLOTLY = "application/vnd.plotly.v1+json"
Cell = Any


def write(
    run: RunModel, runs: RunsModel, path: str | os.PathLike[str], *, overwrite: bool = False
) -> str:
    """Write the notebook; see `kassette_nb.run.Run.to_notebook`."""
    target = Path(path)
    if target.suffix != ".ipynb":
        raise KassetteError(f"{os.fspath(path)!r} does not end in .ipynb, so no notebook opens it")
    if not target.parent.is_dir():
        raise KassetteError(f"there is no folder {os.fspath(target.parent)!r}; make it first")
    made = notebook(run, runs, target.parent)
    scratch = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        scratch.write_text(nbformat.writes(made), encoding="utf-8")
        if overwrite:
            scratch.replace(target)
        else:
            os.link(scratch, target)  # fails where there is a file, also one of this moment
    except FileExistsError:
        raise KassetteError(
            f"{os.fspath(path)!r} exists already; give another name, or overwrite=True to replace "
            "it. Nothing was written."
        ) from None
    finally:
        scratch.unlink(missing_ok=True)
    return os.fspath(path)


def notebook(run: RunModel, runs: RunsModel, folder: Path) -> Any:
    """Return the notebook of a run.

    Args:
        run: The run.
        runs: The runs beside it, for its family.
        folder: Where the notebook will be; its code finds the storage from there.
    """
    folded = run.fold()
    cells = [
        *_head(run, runs, folded, folder),
        *_pictures(run, runs, folded),
        *_steps(run, folded),
        *_going_on(run, folded),
    ]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
    }
    made = new_notebook(cells=cells, metadata=metadata)
    nbformat.validate(made)
    return made


def _head(run: RunModel, runs: RunsModel, folded: RunState, folder: Path) -> Iterator[Cell]:
    yield new_markdown_cell(
        "# Report of a run\n\n"
        "Made from the run's journal. The outputs below were written with it: what the journal "
        "says stands in them as plain text. Run the first cell, then any other one, to have them "
        "from the journal as it is now."
    )
    url = run.storage.url
    if url.startswith("file:"):
        url = f"file:{os.path.relpath(run.storage.place, folder.absolute())}"
    yield new_code_cell(
        "import kassette_nb as kb\n\n"
        "kb.load_ipython_extension(get_ipython())\n"
        f"runs = {code.opened(url)}\n"
        f"run = runs[{run.run_id!a}]"
    )
    yield _told("run", _facts(run, folded))
    given = readable(folded.opening.metadata) or "no arguments"
    yield _told("run.entries().summary[0]", _cut(given))
    yield new_markdown_cell("## Lineage and decisions")
    yield _told("run.source", _origin(run, runs, folded))
    yield _told("run.suspensions()", _decisions(run))


def _pictures(run: RunModel, runs: RunsModel, folded: RunState) -> Iterator[Cell]:
    yield new_markdown_cell("## Timeline and family")
    timeline = figures.timeline(run)
    rows = rows_of(run.journal, folded).bare
    shown = {
        PLOTLY: timeline.to_plotly_json(),
        # The only HTML of the notebook; an image of ours, without any text of the journal.
        "text/html": html.picture(rows, folded),
        "text/plain": f"timeline of {len(rows)} rows",
    }
    yield new_code_cell("run.figure()", outputs=[new_output("display_data", shown)])
    members = family.members(run, runs)
    if len(members) > 1:
        lines = [
            f"{'  ' * m.generation}{m.run_id} {m.state}{f', parted at {m.at}' if m.at else ''}"
            for m in members
        ]
        shown = {PLOTLY: family.draw(members, run.run_id).to_plotly_json()}
        shown["text/plain"] = visible("\n".join(lines))
        yield new_code_cell("run.family()", outputs=[new_output("display_data", shown)])


def _steps(run: RunModel, folded: RunState) -> Iterator[Cell]:
    yield new_markdown_cell("## Steps\n\nOne cell a step, with what it recorded.")
    asked = 0
    events = Events()
    for entry in run.journal.entries:
        if isinstance(entry, Step):
            yield _step(run, entry, folded)
        elif isinstance(entry, Suspend):
            known = len(events.suspends)
            events.suspended(entry)
            if len(events.suspends) > known:
                yield _told(f"run.suspensions().loc[{asked}]", _question(entry))
                asked += 1
        elif isinstance(entry, Failure):
            yield _told("run.error", f"{entry.error.name}: {entry.error.message}"
                        f"\n\n{entry.traceback or ''}")  # fmt: skip


def _step(run: RunModel, step: Step, folded: RunState) -> Cell:
    source = f"print(run[{step.step_id!a}].text)"
    notes = [step.kind or "step"] if (step.kind or "step") in KINDS else ["step"]
    notes += ["copied"] * (step.offset < folded.copied) + ["changed"] * step.overridden
    text = RecordedStep(run.run_id, run.journal, step).text
    return _told(f"# {', '.join(notes)}\n{source}", _cut(text), stream=True)


def _question(entry: Suspend) -> str:
    context = readable(entry.context)
    parts = [f"{entry.event_name}: {entry.prompt or 'no prompt'}", f"asked {entry.timestamp}"]
    return _cut("\n".join([*parts, "", context] if context else parts))


def _facts(run: RunModel, folded: RunState) -> str:
    made = facts(run, folded)
    first = folded.opening
    cost, ending = made["cost"], folded.ending
    spent = [] if cost["own"] is None else [money(cost["own"])]
    spent += [f"{cost['unpriced']} calls without a price"] if cost["unpriced"] else []
    spent += [f"{money(cost['copied'])} more in the copied steps"] if cost["copied"] else []
    told = {
        "run": run.run_id,
        "label": first.label,
        "state": folded.status,
        "workflow": first.workflow,
        "version": (folded.latest or first).version,
        "began": folded.started,
        "last entry": folded.updated,
        "steps": str(made["steps"]),
        "sessions": str(made["sessions"]),
        "working": None if made["working_ms"] is None else duration(made["working_ms"]),
        "waiting": duration(made["waiting_ms"]) if made["waiting_ms"] else None,
        "tokens": f"{made['tokens']:,}" if made["tokens"] is not None else None,
        "cost": " + ".join(spent) or None,
        "result": preview(ending.result) if isinstance(ending, Complete) else None,
        "as of": stamp(SystemClock().now()),
    }
    return "\n".join(f"{name:10}  {value}" for name, value in told.items() if value is not None)


def _origin(run: RunModel, runs: RunsModel, folded: RunState) -> str:
    source = lineage(folded)
    lines = ["not a fork"]
    if source is not None:
        lines = [f"fork of {source['run_id']} at {source['at']}"]
    lines += [f"forked as {fork.run_id}" for fork in runs.forks_of(run.run_id)]
    return "\n".join(lines)


def _decisions(run: RunModel) -> str:
    from ..frames import suspensions_frame

    frame = suspensions_frame([run])
    if frame.empty:
        return "nothing was asked"
    columns = ["event", "state", "asked", "decision", "by", "answered", "note"]
    text: str = frame[columns].to_string()
    return text


def _going_on(run: RunModel, folded: RunState) -> Iterator[Cell]:
    workflow = folded.opening.workflow
    yield new_markdown_cell(
        "## Go on from here\n\n"
        "These cells act: they write to the journal, or make a new run beside it. They do nothing "
        "until `act` is true, so that running all cells only looks."
    )
    first = "# Import the module, or run the code, that defines the workflow"
    yield new_code_cell(f"{first}{'' if workflow is None else f' {workflow!a}'}.\nact = False")
    yield from map(_act, _acts(folded))
    steps = folded.steps
    failing = next((step for step in reversed(steps) if step.error), None)
    at = failing or (steps[-1] if steps else None)
    if at is not None:
        yield _act(
            f"fork = run.fork(at={at.step_id!a}, start=run.workflow is not None)\n"
            "display(kb.compare([run, fork]) if fork.state == 'completed' else fork)"
        )
        yield _act(
            "# Another result for that step; what follows runs again.\n"
            f"fork = run.fork(override={{{at.step_id!a}: ...}}, start=run.workflow is not None)\n"
            "display(fork)"
        )
    yield new_code_cell("run")


def _acts(folded: RunState) -> Iterator[str]:
    """Yield the code that continues an open run."""
    for question in folded.waits if not folded.terminal else []:
        event = f"event={question.step_id!a}"
        if question.event == "in-doubt":
            yield f"# Or 'retry', or 'fail' and why.\nrun.settle('record', ..., {event})"
        elif question.schema:
            yield f"run.respond(..., {event}, note=None)"
        else:
            yield f"run.approve({event}, note=None)  # or run.reject"
    if folded.status in (READY, INTERRUPTED):
        yield "run.resume()"


def _act(source: str) -> Cell:
    body = "\n".join(f"    {line}" for line in source.split("\n"))
    return new_code_cell(f"if act:\n{body}")


def _told(source: str, text: str, *, stream: bool = False) -> Cell:
    """Return a code cell with its output, as plain text in which nothing is hidden."""
    text = visible(text)
    if stream:
        output = new_output("stream", name="stdout", text=f"{text}\n")
    else:
        output = new_output("display_data", {"text/plain": text})
    return new_code_cell(source, outputs=[output])


def _cut(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}\n… {len(text) - LONGEST:,} more characters: run this cell"
