"""Pictures of comparisons for plotly. Journal text in them is escaped: plotly reads markup."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..text import visible

if TYPE_CHECKING:
    from .compare import Comparison

#: What a cell of the map is, with the colour that it has; 3:1 on white and on near-black.
KINDS = (
    ("no such step", "rgba(138,148,160,0.12)"),
    ("as in the base", "rgba(138,148,160,0.55)"),
    ("other than in the base", "#7a68de"),
    ("failed", "#d1453f"),
)
#: More steps than this are drawn as every n-th, so that the picture stays small.
COLUMNS = 1_000


def comparison(made: Comparison) -> go.Figure:
    """Return the picture of a comparison; see `kassette_nb.notebook.compare.Comparison.figure`."""
    attempts = made.attempts()
    order = sorted(
        range(len(attempts)),
        key=lambda n: (attempts[n]["rank"] is not None, -(attempts[n]["rank"] or 0), -n),
    )
    names = [_name(attempts[n]) for n in order]
    figure = make_subplots(
        1, 2, shared_yaxes=True, column_widths=[0.32, 0.68], horizontal_spacing=0.02
    )
    what, own, total = _spent(attempts)
    figure.add_trace(
        go.Bar(
            y=names,
            x=[attempts[n][own] for n in order],
            orientation="h",
            marker_color="#5b7a99",
            marker_line_width=0,
            name="alone",
            hovertemplate="%{y}: %{x}<extra>alone</extra>",
        ),
        1,
        1,
    )
    copied = [_rest(attempts[n], own, total) for n in order]
    figure.add_trace(
        go.Bar(
            y=names, x=copied, orientation="h", marker_color="rgba(91,122,153,0.35)",
            marker_line_width=0,
            name="shared prefix", hovertemplate="%{y}: %{x}<extra>shared prefix</extra>",
        ),
        1, 1,
    )  # fmt: skip
    figure.add_trace(_map(made, order, names), 1, 2)
    for kind, colour in KINDS:
        figure.add_trace(
            go.Scatter(
                x=[None], y=[None], mode="markers", name=kind,
                marker={"symbol": "square", "size": 11, "color": colour},
            ),
            1, 2,
        )  # fmt: skip
    figure.update_layout(
        barmode="stack",
        height=150 + 26 * len(names),
        margin={"l": 10, "r": 10, "t": 40, "b": 90},
        title={"text": _safe(f"{made.title}: {made.sub}"), "font_size": 14},
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"},
        plot_bgcolor="rgba(0,0,0,0)",
        paper_bgcolor="rgba(0,0,0,0)",
        font_color="#767c84",
    )
    figure.update_xaxes(title_text=what, row=1, col=1)
    figure.update_xaxes(title_text="aligned step", row=1, col=2)
    # One picture for light and dark: whoever reads it may change the theme.
    figure.update_xaxes(gridcolor="rgba(128,136,144,0.25)", zeroline=False)
    figure.update_xaxes(showgrid=False, row=1, col=2)
    figure.update_yaxes(automargin=True, showgrid=False, zeroline=False)
    return figure


def _map(made: Comparison, order: list[int], names: list[str]) -> go.Heatmap:
    every = max(1, -(-len(made.rows) // COLUMNS))
    rows = made.rows[::every]
    values, texts = [], []
    for number in order:
        line, told = [], []
        for row in rows:
            step = row.cells[number]
            if step is None:
                kind = 0
            elif step.error is not None:
                kind = 3
            else:
                kind = 1 if row.letters[number] == row.letters[made.base] else 2
            line.append(kind)
            told.append(f"{_safe(row.label)}: {KINDS[kind][0]}")
        values.append(line)
        texts.append(told)
    scale = [
        [(n + edge) / len(KINDS), colour] for n, (_, colour) in enumerate(KINDS) for edge in (0, 1)
    ]
    return go.Heatmap(
        z=values,
        y=names,
        text=texts,
        zmin=-0.5,
        zmax=len(KINDS) - 0.5,
        colorscale=scale,
        showscale=False,
        xgap=0.5 if len(rows) <= 250 else 0,
        ygap=2,
        hovertemplate="%{y}<br>%{text}<extra></extra>",
    )


def _spent(attempts: list[dict[str, Any]]) -> tuple[str, str, str]:
    if any(attempt["cost_own"] is not None for attempt in attempts):
        return "cost (US dollars)", "cost_own", "cost_total"
    if any(attempt["tokens"] is not None for attempt in attempts):
        return "tokens", "tokens_own", "tokens"
    return "steps", "steps_own", "steps"


def _rest(attempt: dict[str, Any], own: str, total: str) -> float | None:
    if attempt[total] is None:
        return None
    return float(attempt[total]) - float(attempt[own] or 0)


def _name(attempt: dict[str, Any]) -> str:
    # With a number, because two attempts may bear one label, and plotly would draw them as one.
    told = attempt["label"] or attempt["run_id"]
    told = told if len(told) <= 28 else f"{told[:13]}…{told[-14:]}"
    score = f" · {attempt['score']}" if attempt["score"] else ""
    base = " · base" if attempt["base"] else ""
    return _safe(f"{attempt['number'] + 1}  {told}{score}{base}")


def _safe(text: str) -> str:
    return html.escape(visible(text), quote=False)
