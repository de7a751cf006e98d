"""Static twins: what stays readable in the saved notebook, without a kernel and without trust.

Text and tables first, and a picture as an ``<img>``: a viewer may strip styles, classes, inline
drawings and data, and what is left still reads. Everything from a journal is escaped.
"""

from __future__ import annotations

import base64
import re
from html import escape as escape_html
from typing import Any

from ..clock import SystemClock, stamp
from ..entries import Step, Suspend
from ..errors import KassetteError
from ..model import RunModel, RunsModel
from ..state import BUDGET, RunState
from ..text import visible
from .browser import in_order
from .browser import row as browser_row
from .cells import told as cells_told
from .compare import Comparison
from .labels import duration, money
from .picture import timeline
from .present import Value, present
from .rows import Row, Rows, rows_of
from .summary import damaged, summarize

#: Lines of a question's context that the twin keeps.
CONTEXT_LINES = 40
#: Attempts from which on a comparison's cells show their letters only.
LETTERS = 8
#: Characters of a comparison's cell.
CELL = 120
#: Characters of all contexts of a twin together.
ROOM = 40_000
REST = "\n… the rest is in the journal"
#: Rows of a table; of a longer run the first and last ones are shown, and how many are not.
SHOWN = 40
_SIGNS = {
    "suspended": "◐", "running": "▶", "interrupted": "⚡", "ready": "◇", "completed": "✓",
    "failed": "✕", "cancelled": "⊘", "damaged": "✕",
}  # fmt: skip
#: The twin hides itself while its live view is there, and hides the line ("Loading widget",
#: then an error) that JupyterLab puts in the live view's place without its kernel.
#: What MathJax passes over, where a viewer leaves classes alone.
NO_MATH = "tex2jax_ignore mathjax_ignore"
_TEXT = re.compile(r"(?<=>)[^<>]+(?=<)")
_STYLE = (
    ".jp-OutputArea-child:has(.kst):has(+ .jp-OutputArea-child .kas){display:none}"
    ".jp-OutputArea-child:has(.kst) + .jp-OutputArea-child > "
    ".lm-Panel.jp-OutputArea-output:not(:has(*)){display:none}"
    ".jp-OutputArea-child:has(.kst) + .jp-OutputArea-child > .jupyter-widgets:not(:has(*))"
    "{display:none}"
    ".kst{font-size:13px;line-height:1.45}.kst table{font-size:12px;margin:6px 0}"
    ".kst td,.kst th{text-align:left!important;padding:2px 10px 2px 0!important;"
    "vertical-align:top;max-width:44em;overflow-wrap:anywhere}"
    ".kst th,.kst td:nth-child(2){white-space:nowrap}.kst pre{margin:4px 0 12px}"
    ".kst .n{text-align:right!important;font-variant-numeric:tabular-nums;white-space:nowrap}"
    ".kst img{max-width:100%}.kst .m{opacity:.75}"
)


def run(shown: RunModel) -> str:
    """Return the twin of a run's panel."""
    try:
        folded = shown.fold()
    except KassetteError as problem:
        summary = damaged(shown, problem)
        return _twin(f"<p><b>{_e(shown.run_id)}</b> ✕ damaged</p><p>{_e(summary['problem'])}</p>")
    built = rows_of(shown.journal, folded)
    summary = summarize(shown, folded, built)
    parts = [_head(summary)]
    contexts = Contexts()
    if summary["problem"]:
        parts.append(f"<p>{_e(summary['problem'])}</p>")
    for question in summary["questions"][:SHOWN]:
        since = _time(question["since"])
        parts.append(
            f"<p><b>? {_asked(question)}</b> · waiting since {since}<br>"
            f"{_e(question['prompt'] or '')}</p>"
            f"{contexts.shown(question['context'])}"
        )
    parts.append(_more(len(summary["questions"]), "questions"))
    parts += [
        f"<p><b>? {_e(doubt['name'])}</b>: it is not known whether it happened "
        f"(since {_time(doubt['since'])})</p>"
        for doubt in summary["doubts"][:SHOWN]
    ]
    asked = {
        suspend.step_id or suspend.event_name: present(suspend.context)
        for suspend in shown.journal.entries
        if isinstance(suspend, Suspend)
    }
    decisions = []
    for decision in reversed(summary["decisions"][-SHOWN:]):  # the newest one matters most
        by = f" by {_e(decision['by'])}" if decision["by"] else ""
        note = f": {_e(decision['note'])}" if decision["note"] else ""
        decisions.append(
            f"<p>{_asked(decision)} {_e(decision['text'])}{by} at {_time(decision['at'])}"
            f"{note}</p>{contexts.shown(asked.get(decision['id']))}"
        )
    parts += [_more(len(summary["decisions"]), "earlier decisions"), *reversed(decisions)]
    ending = summary["ending"]
    if ending is not None:
        parts.append(f"<p>{_e(ending['kind'])}: {_e(ending['text'])}</p>")
    parts.append(picture(built.bare, folded))
    parts.append(_steps(built))
    return _twin("".join(parts))


def runs(shown: RunsModel) -> str:
    """Return the twin of a browser of runs."""
    damaged_rows, found = [], []
    for each in shown.listed():
        try:
            found.append(browser_row(each, each.fold()))
        except KassetteError as problem:
            damaged_rows.append(f"<tr><td>{_e(each.run_id)}</td><td>✕ damaged</td><td colspan=3>"
                                f"{_e(problem)}</td></tr>")  # fmt: skip
    rows = [
        f"<tr><td>{_e(made['label'] or made['id'])}</td>"
        f"<td>{_SIGNS.get(made['state'], '')} {_e(made['state'])}</td>"
        f"<td>{_e(made['workflow'] or '')}</td><td>{_e(made['text'])}</td>"
        f'<td class="n">{made["steps"]} steps</td></tr>'
        for made in in_order(found)
    ]
    body = "".join([*rows[:SHOWN], *damaged_rows[:SHOWN]])
    more = _more(len(rows), "runs") + _more(len(damaged_rows), "damaged ones")
    total = len(rows) + len(damaged_rows)
    head = f"<p><b>{total} runs</b> in {_e(shown.storage.url)} · {_as_of()}</p>"
    table = _table(("run", "state", "workflow", "about", ""), body) if total else ""
    return _twin(head + table + more)


def comparison(shown: Comparison) -> str:
    """Return the twin of a comparison."""
    made = shown.attempts()
    priced = any(a["cost_total"] is not None for a in made)

    def cost(attempt: dict[str, Any]) -> str:
        return f'<td class="n">{money(attempt["cost_total"])}</td>' if priced else ""

    scored = any(a["score"] is not None for a in made)

    def score(attempt: dict[str, Any]) -> str:
        return f'<td class="n">{_e(attempt["score"] or "–")}</td>' if scored else ""

    attempts = "".join(
        f"<tr><td>{_e(a['label'] or a['run_id'])}{' (base)' if a['base'] else ''}</td>"
        f"<td>{_e(a['state'])}</td><td>{_e(a['outcome'])}</td>{score(a)}"
        f'<td class="n">{a["steps"]}</td>{cost(a)}</tr>'
        for a in made
    )
    names = [_e(r.label or r.run_id) for r in shown.runs]
    many = len(names) >= LETTERS
    lines = []
    rows = shown.rows[:SHOWN]
    for row, texts in zip(rows, cells_told(rows, shown.facets), strict=True):
        cells = "".join(
            "<td>–</td>"
            if step is None
            else f"<td>{letter}{'' if many else _cell(step, text)}</td>"
            for step, letter, text in zip(row.cells, row.letters, texts, strict=True)
        )
        lines.append(f"<tr><td>{_e(row.label)}</td>{cells}</tr>")
    more = _more(len(shown.rows), "rows")
    return _twin(
        f"<p><b>{_e(shown.title)}</b> · {_e(shown.sub)} · {_as_of()}</p>"
        + _table(
            ("attempt", "state", "outcome", *["score"] * scored, "steps", *["cost"] * priced),
            attempts,
        )
        + (f"<p>{_e(shown.note)}</p>" if shown.note else "")
        + _table(("step", *names), "".join(lines), escaped=True)
        + more
    )


def _head(summary: dict[str, object]) -> str:
    facts = summary["facts"]
    assert isinstance(facts, dict), "made by summarize"
    label = f"{_e(summary['label'])} " if summary["label"] else ""
    state = str(summary["state"])
    source = summary["source"]
    lineage = ""
    if isinstance(source, dict):
        lineage = f" · fork of {_e(source['run_id'])} at {_e(source['at'])}"
    cost = facts["cost"]["own"]
    figures = [f"{facts['steps']} {'step' if facts['steps'] == 1 else 'steps'}"]
    if facts["tokens"] is not None:
        figures.append(f"{facts['tokens']:,} tokens")
    if cost is not None:
        figures.append(money(cost))
    workflow = f" · {_e(summary['workflow'])}" if summary["workflow"] else ""
    return (
        f"<p><b>{label}{_e(summary['run_id'])}</b> {_SIGNS.get(state, '')} {_e(state)}"
        f"{workflow}{lineage}<br>{' · '.join(figures)}"
        f' · <span class="m">as of {_time(str(summary["as_of"]))}</span></p>'
    )


class Contexts:
    """What was shown with questions: what a person agreed to belongs to the record.

    All of them together take `ROOM` characters at most, so that a run of many questions stays
    small; what is left out is said.
    """

    def __init__(self) -> None:
        self._room = ROOM

    def shown(self, value: Value | None) -> str:
        """Return one context, cut to its lines and to the room that is left."""
        if value is None or value["format"] == "none":
            return ""
        lines = value["text"].rstrip("\n").split("\n")
        text = "\n".join(line[:400] for line in lines[:CONTEXT_LINES])
        whole = not value["truncated"] and len(lines) <= CONTEXT_LINES and len(text) <= self._room
        text = text[: max(self._room, 0)]
        self._room -= len(text)
        return f"<pre>{_e(text)}{'' if whole else REST}</pre>"


def _more(number: int, what: str) -> str:
    return f"<p>… and {number - SHOWN} more {what}</p>" if number > SHOWN else ""


def _steps(rows: Rows) -> str:
    half = SHOWN // 2
    shown = rows.shown() if len(rows) <= SHOWN else [*rows.shown(0, half), *rows.shown(-half)]
    lines = []
    for number, row in enumerate(shown):
        if len(rows) > SHOWN and number == half:
            lines.append(f"<tr><td></td><td colspan=3>… {len(rows) - SHOWN} more …</td></tr>")
        sign = "✕ " if "e" in row["x"] else "? " if "w" in row["x"] or "?" in row["x"] else ""
        edited = "✎ " if "v" in row["x"] else ""
        took = "" if row["d"] is None else duration(row["d"])
        lines.append(
            f"<tr><td>{_e(row['id'])}</td><td>{_e(row['kind'])}</td>"
            f'<td>{sign}{edited}{_e(row["p"])}</td><td class="n">{took}</td></tr>'
        )
    return _table(("step", "kind", "result", "time"), "".join(lines)) if lines else ""


def _table(heads: tuple[str, ...], body: str, *, escaped: bool = False) -> str:
    cells = "".join(f"<th>{head if escaped else _e(head)}</th>" for head in heads)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def _cell(step: Step, text: str | None) -> str:
    sign = " ✕ " if step.error is not None else " ✎ " if step.overridden else " "
    return sign + _e((text or "")[:CELL])


def picture(rows: list[Row], folded: RunState) -> str:
    """Return the timeline as an image. Nothing in it is text from the journal."""
    drawn = base64.b64encode(timeline(rows, folded.copied).encode()).decode()
    alt = f"timeline of {len(rows)} rows"
    return f'<p><img decoding="async" alt="{alt}" src="data:image/svg+xml;base64,{drawn}"></p>'


def _twin(body: str) -> str:
    return f'<div class="kst {NO_MATH}"><style>{_STYLE}</style>{_TEXT.sub(_plain, body)}</div>'


def _plain(text: re.Match[str]) -> str:
    """Keep a page from setting text as TeX, which makes links and colours of its own."""
    return re.sub(r"[$\\]", r"<span>\g<0></span>", text[0])


def _asked(about: dict[str, Any]) -> str:
    """Return which question is meant: its step's id, which tells branches that ask alike apart."""
    return _e(about["event"] if about["event"] == BUDGET else about["id"])


def _e(text: object) -> str:
    return escape_html(visible(str(text)), quote=True)


def _as_of() -> str:
    return f'<span class="m">as of {_time(stamp(SystemClock().now()))}</span>'


def _time(at: str) -> str:
    """Return a journal's timestamp to the second, in UTC: a saved page has no local time."""
    return f"{_e(at[:10])} {_e(at[11:19])} UTC"
