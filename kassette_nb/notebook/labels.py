"""Text and figures as a chart's labels show them."""

from __future__ import annotations

from html import escape

from ..text import visible


def label(text: object) -> str:
    """Return journal text for a plotly label or hover, which then shows it as it is.

    plotly runs no script, but it reads ``<b>`` and ``<a href>`` in every text, so that a model
    could forge a link; and where MathJax is loaded it hands over what stands between dollar signs,
    whose ``\\href`` is a link, too.
    """
    line = visible(str(text)).replace("\n", "\\n").replace("\t", " ")
    return escape(line, quote=False).replace("$", "&#36;")


def money(dollars: float | None) -> str:
    """Return an amount of US dollars; nothing where none is known."""
    return "" if dollars is None else f"${dollars:.2f}"


def duration(milliseconds: float) -> str:
    """Return a duration in the largest two units that it has."""
    if milliseconds and abs(milliseconds) < 100:
        return f"{round(milliseconds)} ms"
    tenths = round(milliseconds / 100)
    if tenths < 600:
        return f"{tenths / 10:.1f} s"
    minutes, seconds = divmod(round(milliseconds / 1000), 60)
    if minutes < 60:
        return f"{minutes} m {seconds:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} m" if hours < 48 else f"{hours // 24} d {hours % 24:02} h"
