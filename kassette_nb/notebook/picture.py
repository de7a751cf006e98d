"""The timeline as a small SVG for the static twin. It contains no text from a journal."""

from __future__ import annotations

from .rows import Row

WIDTH, HEIGHT, GAP = 960, 22, 4
#: Bars drawn; a longer run is drawn as that many slices, each of its most telling row.
BARS = 400
_COLOURS = {"llm": "#7a68de", "tool": "#5b7a99", "suspend": "#b07d00", "error": "#d1453f",
            "intent": "#b07d00", "complete": "#2a8a48"}  # fmt: skip
_PLAIN = "#8a94a0"


def timeline(rows: list[Row], copied: int) -> str:
    """Return the run as a row of bars, one a step, coloured by kind.

    Args:
        rows: The timeline's rows.
        copied: Rows below this offset are the copied prefix and drawn hatched.
    """
    lanes = max((row["lane"] for row in rows), default=0) + 1
    slices = _slices(rows)
    width = WIDTH / max(len(slices), 1)
    bar = max(min(width - 1, 60), 1.5)
    step = min(width, 61)
    # One path a colour: a saved notebook keeps this, and a page has to read it.
    paths: dict[tuple[str, bool], list[str]] = {}
    for number, row in enumerate(slices):
        fill = "url(#h)" if row["o"] < copied else _COLOURS.get(row["kind"], _PLAIN)
        x, y = number * step + 1, 2 + row["lane"] * (HEIGHT + GAP)
        bars = paths.setdefault((fill, "e" in row["x"]), [])
        bars.append(f"M{x:.1f} {y}h{bar:.1f}v{HEIGHT - 4}h-{bar:.1f}z")
    edge = ' stroke="#d1453f" stroke-width="2"'
    drawn = "".join(
        f'<path d="{"".join(bars)}" fill="{fill}"{edge if error else ""}/>'
        for (fill, error), bars in sorted(paths.items(), key=lambda item: item[0][1])
    )
    height = lanes * (HEIGHT + GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}"><defs><pattern id="h" width="5" height="5" '
        'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2.5" height="5" '
        f'fill="{_PLAIN}"/></pattern></defs>{drawn}</svg>'
    )


def _slices(rows: list[Row]) -> list[Row]:
    if len(rows) <= BARS:
        return rows
    size = len(rows) / BARS
    parts = [rows[int(n * size) : int((n + 1) * size)] for n in range(BARS)]
    return [max(part, key=lambda row: ("e" in row["x"], "w" in row["x"])) for part in parts]
