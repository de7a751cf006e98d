"""A run's figures: true to the journal, bounded in size, and without a forged word in them."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

import kassette_nb as kb
from kassette_nb.errors import JournalCorruptionError, KassetteError
from kassette_nb.notebook.axis import Axis
from kassette_nb.notebook.labels import duration, label
from tests.browser import scenes

GOLDEN = Path(__file__).parent.parent / "golden"
BEGAN = datetime(2026, 5, 8, 14, 20, tzinfo=UTC)
#: Markup that plotly would read and that is not ours, formulas, and what hides.
FORGED = re.compile(r"<(?!b>|/b>|br>)|\$|[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
NASTY = [
    "<a href='https://example.com'>Approve</a>",
    "$\\href{javascript:alert(1)}{x}$",
    "\u202egnp.exe",
    "\x1b[31mred",
    "%{x} %{customdata}",
    "a\nb",
]


@pytest.fixture
def demo(tmp_path: Path) -> kb.Runs:
    scenes.coding_agent(tmp_path, BEGAN)
    scenes.loan(tmp_path, BEGAN)
    runs: kb.Runs = kb.open(tmp_path)
    return runs


def bars(figure: go.Figure) -> dict[str, int]:
    return {trace.name: len(trace.x) for trace in figure.data}


def texts(value: Any, key: str = "") -> Iterator[str]:
    """Every text that a reader of the figure sees."""
    if isinstance(value, dict):
        for name, inside in value.items():
            yield from texts(inside, name)
    elif isinstance(value, list | tuple):
        for inside in value:
            yield from texts(inside, key)
    elif isinstance(value, str) and key in ("text", "hovertext", "ticktext", "name"):
        yield value


def test_steps_in_order_show_what_was_overridden(demo: kb.Runs) -> None:
    figure = figure_of(demo["fix-timedelta.2"], axis="steps")
    assert bars(figure) == {"llm": 4, "tool": 4, "wait": 1}
    assert "✎" in next(trace.text for trace in figure.data if trace.name == "llm")


def figure_of(run: kb.Run, **options: Any) -> go.Figure:
    figure = run.figure(**options)
    assert isinstance(figure, go.Figure)
    return figure


def test_a_timeline_has_a_trace_a_kind_and_a_bar_a_step(demo: kb.Runs) -> None:
    figure = figure_of(demo["fix-timedelta.2"])
    assert bars(figure) == {"llm": 3, "tool": 4, "wait": 1}
    assert "1 without times" in figure.layout.xaxis.title.text, "the overridden one"
    by_kind = {trace.name: trace for trace in figure.data}
    assert list(by_kind["llm"].marker.pattern.shape) == ["/", "", ""], "copied is hatched"
    assert list(by_kind["tool"].text)[-1] == "✕", "colour is never the only sign"
    assert by_kind["wait"].text[0] == "?"


def test_working_time_folds_what_nobody_worked(demo: kb.Runs) -> None:
    folded = figure_of(demo["fix-timedelta.3"])
    assert folded.layout.xaxis.title.text.startswith("working time")
    assert "9 h 00 m" in [note.text for note in folded.layout.annotations]
    steps = demo["fix-timedelta.3"].steps()
    assert folded.layout.xaxis.range[1] < 1.5 * steps.seconds.sum()
    wall = figure_of(demo["fix-timedelta.3"], axis="wall")
    assert wall.layout.xaxis.range[1] > 9 * 3600
    assert not wall.layout.annotations


def test_a_bar_is_as_long_as_its_step_took(demo: kb.Runs) -> None:
    steps = demo["fix-timedelta"].steps().sort_values(["kind", "offset"])
    drawn = {trace.name: list(trace.x) for trace in figure_of(demo["fix-timedelta"]).data}
    for kind, seconds in drawn.items():
        assert seconds == pytest.approx(list(steps[steps.kind == kind].seconds))


def test_branches_have_lanes_and_a_name(demo: kb.Runs) -> None:
    figure = figure_of(demo["loan-L-77-two-questions-and-a-long-name1"])
    assert list(figure.layout.yaxis.ticktext) == ["main", "credit", "appraisal"]


def test_without_times_the_steps_stand_in_order_and_no_duration_is_invented() -> None:
    run = kb.open(GOLDEN / "good")["attempt-b"]
    figure = figure_of(run)
    assert figure.layout.xaxis.title.text.startswith("steps in order")
    assert sum(bars(figure).values()) == 7
    assert not [text for text in texts(figure.to_dict()) if re.search(r"\d s\b", text)]
    with pytest.raises(KassetteError, match="no start times recorded"):
        run.figure(axis="work")
    with pytest.raises(KassetteError, match="not one of"):
        run.figure(axis="weeks")  # type: ignore[arg-type]


def test_a_long_run_has_2000_bars_at_most_and_every_step_is_in_one(tmp_path: Path) -> None:
    scenes.long_run(tmp_path, BEGAN, 10_000, "long")
    for axis in ("work", "steps"):
        figure = figure_of(kb.open(tmp_path)["long"], axis=axis)
        assert 1_000 < sum(bars(figure).values()) <= 2_000
        assert set(bars(figure)) == {"llm", "tool"}
        told = [re.match(r"<b>(\d+) rows", text) for t in figure.data for text in t.hovertext]
        assert sum(int(found[1]) if found else 1 for found in told) == 10_000
        failed = [re.search(r"(\d+) failed", text) for t in figure.data for text in t.hovertext]
        assert sum(int(found[1]) for found in failed if found) <= 10_000 // 97
        assert len(figure.to_json()) < 600_000


def test_a_thousand_branches_still_make_a_readable_figure(tmp_path: Path) -> None:
    scribe = scenes.Scribe(BEGAN)
    scribe.start(workflow="wide")
    for number in range(1_000):
        scribe.step(f"b{number}/fetch", number, 0.1)
    scribe.save(tmp_path, "wide")
    figure = figure_of(kb.open(tmp_path)["wide"])
    assert list(figure.layout.yaxis.ticktext)[-1] == "other branches"
    assert figure.layout.height < 2_000


@pytest.mark.parametrize("run_id", ["xss", "numbers", "long-line", "unicode", "unknown-type"])
@pytest.mark.parametrize("make", ["figure", "family"])
def test_nothing_in_a_figure_is_markup_of_the_journal(run_id: str, make: str) -> None:
    folder = "hostile" if run_id in ("xss", "numbers", "long-line") else "good"
    figure = getattr(kb.open(GOLDEN / folder)[run_id], make)()
    shown = list(texts(json.loads(figure.to_json())))
    assert len(shown) >= 3
    assert not [text for text in shown if FORGED.search(text)]
    assert all(trace.hovertemplate is None for trace in figure.data), "templates would be read"


def test_nasty_names_labels_and_lanes_are_escaped_everywhere(tmp_path: Path) -> None:
    for number, text in enumerate(NASTY):
        scribe = scenes.Scribe(BEGAN)
        scribe.start(workflow=text, label=text, version=text)
        scribe.step(f"{text}/{text}", text, 1.0, kind=text)
        scribe.step(text, text, 1.0, kind="tool", error=(text, text))
        scribe.suspend(text, text)
        scribe.save(tmp_path, f"nasty-{number}")
    for run in kb.open(tmp_path).listed():
        for figure in (run.figure(), run.figure(axis="steps"), run.family()):
            shown = list(texts(json.loads(figure.to_json())))
            assert not [text for text in shown if FORGED.search(text)]


def test_a_label_is_escaped_once_and_shows_what_is_hidden() -> None:
    assert label("<b>$x$</b> & 'y'\u202e") == "&lt;b&gt;&#36;x&#36;&lt;/b&gt; &amp; 'y'\\u202e"


def test_a_family_is_a_tree_from_its_oldest_source(demo: kb.Runs) -> None:
    figure = demo["fix-timedelta.3"].family()
    names = {trace.name: list(trace.text) for trace in figure.data if trace.text}
    assert names == {
        "failed": ["fix-timedelta"],
        "suspended": ["round the quotient"],
        "completed": ["<b>Decimal</b>"],
    }
    assert [note.text for note in figure.layout.annotations] == ["plan#2 (changed)", "plan#2"]


def test_a_family_survives_missing_sources_and_circles(tmp_path: Path) -> None:
    for run_id, source in (("a", "b"), ("b", "a"), ("c", "gone"), ("d", "../x"), ("e", "e")):
        scribe = scenes.Scribe(BEGAN)
        scribe.start(workflow="w", source=kb.entries.Source(run_id=source, from_offset=1))
        scribe.step("s", 1, 1.0)
        scribe.save(tmp_path, run_id)
    runs = kb.open(tmp_path)
    assert sum(len(t.text or ()) for t in runs["a"].family().data) == 2
    assert {t.name for t in runs["c"].family().data if t.text} == {"missing", "interrupted"}
    for run_id in "de":
        assert runs[run_id].family().data


def test_a_damaged_run_has_no_figure_but_an_error_with_its_name() -> None:
    with pytest.raises(JournalCorruptionError, match=r"bad-middle\.jsonl, line 2"):
        kb.open(GOLDEN / "damaged")["bad-middle"].figure()


def test_marks_keep_three_to_one_on_white_and_near_black() -> None:
    from kassette_nb.notebook.family import _STATES
    from kassette_nb.notebook.figures import COLOURS

    for colour in {*COLOURS.values(), *(colour for colour, _ in _STATES.values())}:
        for paper in ("#ffffff", "#111111"):
            light, dark = sorted((luminance(colour), luminance(paper)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 3, (colour, paper)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_axis_folds_long_gaps_only_and_keeps_the_order() -> None:
    axis = Axis([(0, 10_000), (10_500, 20_000), (3_620_000, 3_640_000)], 3_640_000)
    assert [(piece.start, piece.end) for piece in axis.breaks] == [(20_000, 3_620_000)]
    at = [axis.at(t) for t in (0, 5_000, 10_250, 20_000, 1_000_000, 3_620_000, 3_640_000)]
    assert at == sorted(at)
    assert at[-1] == pytest.approx(axis.length)
    assert at[1] - at[0] == pytest.approx(5_000), "a second of work is a second everywhere"
    ticks = axis.ticks()
    assert ticks[0] == (0.0, 0.0)
    assert 4 <= len(ticks) <= 10


@pytest.mark.parametrize(
    ("milliseconds", "told"),
    [(40, "40 ms"), (59_900, "59.9 s"), (60_000, "1 m 00 s"), (3_600_000, "1 h 00 m"),
     (47 * 3_600_000, "47 h 00 m"), (50 * 3_600_000, "2 d 02 h")],
)  # fmt: skip
def test_durations_are_told_in_two_units(milliseconds: int, told: str) -> None:
    assert duration(milliseconds) == told
