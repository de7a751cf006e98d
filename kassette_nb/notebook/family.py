"""A fork family as a tree: which run came from which, and where they parted."""

from __future__ import annotations

import msgspec
import plotly.graph_objects as go

from ..errors import KassetteError
from ..model import RunModel, RunsModel
from .labels import label, money
from .summary import lineage

#: Runs drawn at most, nearest to the root first.
RUNS = 200
_STATES = {
    "completed": ("#2a8a48", "circle"), "failed": ("#d1453f", "x"),
    "suspended": ("#b07d00", "diamond"), "interrupted": ("#b07d00", "triangle-up"),
    "ready": ("#5b7a99", "circle-open"), "running": ("#5b7a99", "triangle-right"),
    "cancelled": ("#8a94a0", "square"), "damaged": ("#d1453f", "x-thin-open"),
    "missing": ("#8a94a0", "circle-x-open"),
}  # fmt: skip


class Member(msgspec.Struct):
    """A run of the family, and where it stands: its generation, and its line from the top."""

    run_id: str
    label: str | None
    state: str
    at: str
    facts: str
    parent: int | None
    generation: int
    line: int = 0


def tree(run: RunModel, runs: RunsModel) -> go.Figure:
    """Return the family tree of a run; see `kassette_nb.run.Run.family`."""
    return draw(members(run, runs), run.run_id)


def draw(members: list[Member], asked: str) -> go.Figure:
    """Draw a family; the run that was asked for stands out."""
    figure = go.Figure()
    edges_x: list[float | None] = []
    edges_y: list[float | None] = []
    notes = []
    for member in members:
        if member.parent is None:
            continue
        parent = members[member.parent]
        bend = parent.generation + 0.3
        edges_x += [parent.generation, bend, bend, member.generation, None]
        edges_y += [parent.line, parent.line, member.line, member.line, None]
        notes.append(
            {"x": bend, "y": member.line, "text": label(member.at), "showarrow": False,
             "xanchor": "left", "yanchor": "bottom", "font": {"size": 10}}
        )  # fmt: skip
    figure.add_trace(
        go.Scatter(x=edges_x, y=edges_y, mode="lines", hoverinfo="skip", showlegend=False,
                   line={"color": "#8a94a0", "width": 1.5})
    )  # fmt: skip
    for state, (colour, symbol) in _STATES.items():
        shown = [member for member in members if member.state == state]
        if shown:
            figure.add_trace(
                go.Scatter(
                    name=state, mode="markers+text",
                    x=[member.generation for member in shown],
                    y=[member.line for member in shown],
                    text=[_name(member, asked) for member in shown],
                    textposition="bottom right",
                    hovertext=[_told(member) for member in shown], hoverinfo="text",
                    marker={"color": colour, "symbol": symbol, "size": 12,
                            "line": {"color": colour, "width": 2}},
                )
            )  # fmt: skip
    left_out = f" · the first {RUNS} runs" if len(members) == RUNS else ""
    figure.update_layout(
        title={"text": f"family of {label(asked)}{left_out}", "font": {"size": 15}},
        height=164 + 46 * (1 + max(member.line for member in members)),
        margin={"l": 20, "r": 20, "t": 50, "b": 64},
        plot_bgcolor="rgba(0,0,0,0)",
        paper_bgcolor="rgba(0,0,0,0)",
        font_color="#767c84",
        annotations=notes,
        showlegend=True,
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"},
    )
    last = max(member.generation for member in members)
    figure.update_xaxes(visible=False, range=[-0.15, last + 0.9])
    # Names stand below their marks, the lowest one's too.
    lowest = max(member.line for member in members)
    figure.update_yaxes(visible=False, range=[lowest + 0.7, -0.5])
    return figure


def members(run: RunModel, runs: RunsModel) -> list[Member]:
    """Return the family from its root on, each run behind its source, and place them."""
    found: list[Member] = []
    # A foreign journal may name any source, so a circle is walked once.
    seen: set[str] = set()
    waiting: list[tuple[str, int | None]] = [(_root(run, runs), None)]
    line = -1
    while waiting and len(found) < RUNS:
        run_id, parent = waiting.pop()
        if run_id in seen:
            continue
        seen.add(run_id)
        generation = 0 if parent is None else found[parent].generation + 1
        member = _member(run_id, runs, parent, generation)
        first = parent is not None and parent == len(found) - 1
        line = line if first else line + 1  # the first fork stands beside its source
        member.line = line
        found.append(member)
        forks = [fork.run_id for fork in runs.forks_of(run_id)]
        waiting += [(fork, len(found) - 1) for fork in reversed(forks)]
    return found


def _root(run: RunModel, runs: RunsModel) -> str:
    at, seen = run.run_id, set[str]()
    while at not in seen:
        seen.add(at)
        try:
            source = runs[at].journal.opening.source
        except KassetteError:
            return at
        if source is None:
            return at
        at = source.run_id
    return run.run_id


def _member(run_id: str, runs: RunsModel, parent: int | None, generation: int) -> Member:
    try:
        folded = runs[run_id].fold()
    except KassetteError as problem:
        state = "damaged" if hasattr(problem, "line") else "missing"
        return Member(run_id, None, state, "", str(problem), parent, generation)
    own = sum(step.offset >= folded.copied for step in folded.steps)
    facts = [f"{own} steps of its own"]
    if folded.own.cost_usd is not None:
        facts.append(money(folded.own.cost_usd))
    if folded.own.unpriced:
        facts.append(f"{folded.own.unpriced} calls without a price")
    source = lineage(folded)
    at = str(source["at"]) if source else ""
    name = folded.opening.label
    return Member(run_id, name, folded.status, at, " · ".join(facts), parent, generation)


def _name(member: Member, asked: str) -> str:
    name = label(member.label or member.run_id)
    return f"<b>{name}</b>" if member.run_id == asked else name


def _told(member: Member) -> str:
    lines = [f"<b>{label(member.run_id)}</b>", member.state]
    if member.label:
        lines.insert(1, label(member.label))
    if member.at:
        lines.append(f"parted at {label(member.at)}")
    return "<br>".join([*lines, label(member.facts)])
