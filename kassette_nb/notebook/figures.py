"""A run's timeline as a plotly figure.

It has no paper of its own, so that it stands in a light and in a dark notebook; the colours of its
marks hold 3:1 on white and on near-black alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import plotly.graph_objects as go

from ..clock import SystemClock, instant
from ..errors import KassetteError
from ..model import RunModel
from ..state import RunState
from .axis import STEPS, WALL, WORK, Axis
from .labels import duration, label, money
from .rows import Row, rows_of

#: Bars drawn at most; of a longer run each stands for several rows of one lane.
BARS = 2_000
#: Lanes drawn; further branches share the last one.
LANES = 40
#: Breaks that are drawn with their length; ten times as many are drawn, and session boundaries.
TEXTS = 12
COLOURS = {
    "llm": "#7a68de", "tool": "#5b7a99", "step": "#8a94a0", "value": "#8a94a0",
    "wait": "#b07d00", "in doubt": "#b07d00", "error": "#d1453f", "completed": "#2a8a48",
    "other": "#8a94a0",
}  # fmt: skip
RED = "#d1453f"
_EDGE = "rgba(255,255,255,0.8)"
_GRID = "rgba(128,128,128,0.25)"
_KINDS = {"sleep": "wait", "suspend": "wait", "intent": "in doubt", "complete": "completed"}
_NOT_CALLED = (*_KINDS, "error", "cancel", "note", "other")


class Group(msgspec.Struct):
    """Rows that share a stretch of one lane, by kind; ``number`` is that of the first one."""

    number: int
    lane: int
    size: int = 0
    kinds: dict[str, list[Row]] = msgspec.field(default_factory=dict)

    def rows(self) -> list[Row]:
        """All of them."""
        return [row for rows in self.kinds.values() for row in rows]


class Bar(msgspec.Struct):
    """One bar: a row, or several of one kind and lane."""

    rows: list[Row]
    kind: str
    left: float
    width: float
    lane: int


def timeline(run: RunModel, axis: str | None = None) -> go.Figure:
    """Return the timeline of a run; see `kassette_nb.run.Run.figure`."""
    folded = run.fold()
    rows = rows_of(run.journal, folded)
    timed = [row for row in rows.bare if row["t0"] is not None]
    calls = [row for row in rows.bare if _called(row)]
    enough = bool(timed) and 2 * sum(row["t0"] is not None for row in calls) >= len(calls)
    if axis not in (None, WORK, WALL, STEPS):
        raise KassetteError(f"axis={axis!a} is not one of 'work', 'wall' and 'steps'")
    if axis in (WORK, WALL) and not timed:
        raise KassetteError(
            f"run {run.run_id!r} has no start times recorded; its figure has the axis 'steps'"
        )
    how = axis or (WORK if enough else STEPS)
    figure = go.Figure()
    bars: list[Bar] = []
    placed: Axis | None = None
    if how == STEPS:
        for group in _groups(rows.shown()):
            bars += _bars(group, group.number, max(group.size - 0.1, 0.9))
    else:
        placed = _axis(timed, folded, fold=how == WORK)
        now = _now(folded)
        for group in _groups([row for row in rows.shown() if row["t0"] is not None]):
            left = placed.at(min(row["t0"] for row in group.rows()))
            right = placed.at(max(_end(row, now) for row in group.rows()))
            bars += _bars(group, left / 1000, (right - left) / 1000)
    least = 0.002 * max((bar.left + bar.width for bar in bars), default=1.0)
    for kind in COLOURS:
        of_kind = [bar for bar in bars if bar.kind == kind]
        if of_kind:
            figure.add_trace(_trace(kind, of_kind, folded, least))
    lanes = rows.lanes if len(rows.lanes) <= LANES else rows.lanes[:LANES]
    _lay_out(figure, run, folded, [*lanes, *["other branches"] * (len(rows.lanes) > LANES)])
    _draw_axis(figure, folded, placed, how, rows.bare)
    return figure


def _axis(timed: Sequence[Row], folded: RunState, *, fold: bool) -> Axis:
    now = _now(folded)
    busy = [(row["t0"], _end(row, now)) for row in timed if _kind(row) != "wait"]
    spans = busy or [(row["t0"], row["t0"]) for row in timed]
    return Axis(spans, max(_end(row, now) for row in timed), fold=fold)


def _now(folded: RunState) -> float:
    """Return the last instant that the figure knows, in milliseconds since the run began."""
    open_ = folded.pending and not folded.terminal
    last = SystemClock().now() if open_ else instant(folded.updated)
    return (last.timestamp() - instant(folded.started).timestamp()) * 1000


def _end(row: Row, now: float) -> float:
    """Return when a row was over. Of an open wait that is now; other ends are not invented."""
    end = row["t1"] if row["t1"] is not None else (now if "w" in row["x"] else row["t0"])
    return float(max(end, row["t0"]))


def _called(row: Row) -> bool:
    """Tell whether a row is something that was called, and so took time."""
    return row["kind"] not in _NOT_CALLED


def _kind(row: Row) -> str:
    if "?" in row["x"]:
        return "in doubt"
    kind = _KINDS.get(row["kind"], row["kind"])
    return kind if kind in COLOURS else "other"


def _groups(rows: Sequence[Row]) -> list[Group]:
    """Return the rows that share a stretch of the axis: one each, or neighbours in a lane."""
    size = 1
    while True:
        groups: list[Group] = []
        last: dict[int, Group] = {}
        for number, row in enumerate(rows):
            lane = min(row["lane"], LANES)
            group = last.get(lane)
            if group is None or group.size >= size:
                group = last[lane] = Group(number, lane)
                groups.append(group)
            group.size += 1
            group.kinds.setdefault(_kind(row), []).append(row)
        bars = sum(len(group.kinds) for group in groups)
        if bars <= BARS:
            return groups
        size = max(size + 1, size * bars // BARS)


def _bars(group: Group, left: float, width: float) -> Iterator[Bar]:
    """Yield a bar a kind, side by side, each as long as its share of what the group took."""
    took = {kind: sum(row["d"] or 0 for row in rows) for kind, rows in group.kinds.items()}
    if not all(took.values()):
        took = {kind: len(rows) for kind, rows in group.kinds.items()}
    whole = sum(took.values())
    for kind, rows in group.kinds.items():
        share = width * took[kind] / whole
        yield Bar(rows, kind, left, share, group.lane)
        left += share


def _trace(kind: str, bars: list[Bar], folded: RunState, least: float) -> go.Bar:
    failed = [any("e" in row["x"] for row in bar.rows) for bar in bars]
    copied = [bar.rows[0]["o"] < folded.copied for bar in bars]
    return go.Bar(
        name=kind,
        orientation="h",
        x=[bar.width for bar in bars],
        base=[bar.left for bar in bars],
        y=[bar.lane for bar in bars],
        width=0.8,
        text=[_sign(bar, bad) for bar, bad in zip(bars, failed, strict=True)],
        textposition="inside",
        insidetextanchor="middle",
        textfont={"color": "#ffffff"},
        hovertext=[_told(bar, folded) for bar in bars],
        hoverinfo="text",
        marker={
            "color": COLOURS[kind],
            # What has hardly any length is still seen by an edge in its own colour.
            "line": {
                "color": [
                    RED if bad else COLOURS[kind] if bar.width < least else _EDGE
                    for bar, bad in zip(bars, failed, strict=True)
                ],
                "width": [2.5 if bad else 1 for bad in failed],
            },
            "pattern": {"shape": ["/" if old else "" for old in copied], "fgcolor": "#ffffff"},
        },
    )


def _sign(bar: Bar, failed: bool) -> str:
    flags = "".join(row["x"] for row in bar.rows)
    if failed:
        return "✕"
    if "?" in flags or "w" in flags:
        return "?"
    return "✎" if "v" in flags else ""


def _told(bar: Bar, folded: RunState) -> str:
    first, last = bar.rows[0], bar.rows[-1]
    took = sum(row["d"] or 0 for row in bar.rows)
    timed = any(row["d"] is not None for row in bar.rows)
    cost = sum(row["c"] or 0.0 for row in bar.rows)
    facts = [duration(took)] if timed else []
    facts += [money(cost)] if cost else []
    if len(bar.rows) > 1:
        failed = sum("e" in row["x"] for row in bar.rows)
        facts += [f"{failed} failed"] if failed else []
        span = f"{label(first['id'])} … {label(last['id'])}"
        return "<br>".join([f"<b>{len(bar.rows)} rows</b>: {span}", label(" · ".join(facts))])
    notes = [first["kind"], *facts]
    for flag, told in (("e", "failed"), ("v", "result changed"), ("?", "in doubt"),
                       ("w", "waits for an answer")):  # fmt: skip
        if flag in first["x"]:
            notes.append(told)
    if first["o"] < folded.copied:
        notes.append("copied")
    lines = [f"<b>{label(first['id'])}</b>", label(" · ".join(notes))]
    return "<br>".join([*lines, label(first["p"])] if first["p"] else lines)


def _lay_out(figure: go.Figure, run: RunModel, folded: RunState, lanes: list[str]) -> None:
    name = f"{folded.opening.label} · {run.run_id}" if folded.opening.label else run.run_id
    figure.update_layout(
        title={"text": f"{label(name)} · {folded.status}", "font": {"size": 15}},
        barmode="overlay",
        height=200 + (60 if len(lanes) == 1 else 34 * len(lanes)),
        margin={"l": 20, "r": 20, "t": 60, "b": 80},
        # One picture for light and dark: whoever reads it may change the theme.
        plot_bgcolor="rgba(0,0,0,0)",
        paper_bgcolor="rgba(0,0,0,0)",
        font_color="#767c84",
        # At the foot: plotly's own buttons come up over the upper right corner.
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"},
        showlegend=True,
        hoverlabel={"align": "left"},
    )
    figure.update_yaxes(
        tickvals=list(range(len(lanes))),
        ticktext=[label(lane) for lane in lanes],
        range=[len(lanes) - 0.5, -0.5],
        automargin=True,
        showgrid=False,
        zeroline=False,
        fixedrange=True,
    )


def _draw_axis(
    figure: go.Figure, folded: RunState, axis: Axis | None, how: str, rows: Sequence[Row]
) -> None:
    began = instant(folded.started).timestamp()
    new = ["dotted: a new session"] if len(folded.sessions) > 1 else []
    if axis is None:
        marks: dict[str, object] = {
            "dtick": max(1, len(rows) // 10),
            "title": {"text": " · ".join(["steps in order", *new])},
            "range": [-0.1, max(len(rows), 8)],
        }
    else:
        ticks = axis.ticks()
        told = ["working time" if how == WORK else "time since the run began"]
        # An overridden result took no time of its own; foreign writers record none.
        undated = sum(row["t0"] is None and _called(row) for row in rows)
        told += [f"{undated} without times: see axis='steps'"] * bool(undated)
        told += ["grey: folded waits and gaps"] * bool(axis.breaks) + new
        marks = {
            "tickvals": [at / 1000 for _, at in ticks],
            "ticktext": [duration(amount) for amount, _ in ticks],
            "title": {"text": " · ".join(told)},
            "range": [0, 1.005 * axis.length / 1000 or 1],
        }
    figure.update_xaxes(**marks, gridcolor=_GRID, zeroline=False)
    shapes, notes = [], []
    for number, piece in enumerate(axis.breaks if axis else []):
        left, right = piece.left / 1000, (piece.left + piece.width) / 1000
        if number < 10 * TEXTS:
            shapes.append(
                {"type": "rect", "yref": "paper", "x0": left, "x1": right, "y0": 0, "y1": 1,
                 "fillcolor": _GRID, "line": {"width": 0}, "layer": "below"}
            )  # fmt: skip
        if number < TEXTS:
            gap = duration(piece.end - piece.start)
            notes.append(
                {"x": (left + right) / 2, "y": 1, "yref": "paper", "yanchor": "bottom",
                 "text": gap, "showarrow": False, "font": {"size": 11}}
            )  # fmt: skip
    for session in folded.sessions[1 : 10 * TEXTS]:
        if axis is not None:
            at = axis.at((instant(session.at).timestamp() - began) * 1000) / 1000
        else:
            at = sum(row["o"] < session.offset for row in rows) - 0.05
        shapes.append(
            {"type": "line", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1,
             "line": {"color": "rgba(128,128,128,0.9)", "width": 1, "dash": "dot"}}
        )  # fmt: skip
    figure.update_layout(shapes=shapes, annotations=notes)
