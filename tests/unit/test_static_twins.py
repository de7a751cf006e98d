"""What a saved notebook keeps: small, readable without style, and nothing in it runs."""

import html.parser
from datetime import UTC, datetime
from pathlib import Path

import pytest

import kassette_nb as kb
from kassette_nb import MemoryStorage
from tests.browser import scenes

GOLDEN = Path(__file__).parent.parent / "golden"
BEGAN = datetime(2026, 5, 8, 14, 20, tzinfo=UTC)
#: All that a twin may be made of, with the attributes it may carry.
ALLOWED = {
    "div": {"class"}, "style": set(), "p": set(), "b": set(), "pre": set(), "br": set(),
    "span": {"class"}, "table": set(), "thead": set(), "tbody": set(), "tr": set(), "th": set(),
    "td": {"class", "colspan"}, "img": {"alt", "decoding", "src"},
}  # fmt: skip


class Reader(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED, f"<{tag}>"
        assert {name for name, _ in attrs} <= ALLOWED[tag]
        for name, value in attrs:
            if name == "src":
                assert (value or "").startswith("data:image/svg+xml;base64,")
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] != ["style"]:
            self.text.append(data)


def read(markup: str) -> str:
    reader = Reader()
    reader.feed(markup)
    return " ".join(" ".join(reader.text).split())


@pytest.mark.parametrize("folder", ["good", "damaged", "hostile"])
def test_a_twin_is_made_of_text_tables_and_pictures_only(folder: str) -> None:
    runs = kb.open(GOLDEN / folder)
    read(runs.html())
    for run in runs.listed():
        text = read(run.html())
        assert run.run_id in text
        assert run.run_id in repr(run)


def test_a_hostile_journal_is_shown_as_what_it_is() -> None:
    run = kb.open(GOLDEN / "hostile")["xss"]
    assert "<script>window.__x=1</script>" in read(run.html())
    assert "\x1b" not in run.html()
    assert "\\x1b" in run.html()


def test_a_twin_says_state_question_and_decisions_without_style(tmp_path: Path) -> None:
    scenes.coding_agent(tmp_path, BEGAN)
    runs = kb.open(tmp_path)
    waiting = read(runs["fix-timedelta.2"].html())
    assert "suspended" in waiting
    assert "Apply this patch to src/fields.py" in waiting
    assert "fork of fix-timedelta at plan#2 (changed)" in waiting
    assert "+ return round(value.total_seconds()" in waiting, "what was asked about"
    decided = read(runs["fix-timedelta.3"].html())
    assert "apply-patch approved by ana at 2026-05-08" in decided
    compared = read(kb.compare(list(runs.values()))._repr_html_())
    assert "3 attempts" in compared
    assert "GaveUp: 1 of 1132 tests still fails" in compared


def test_a_run_of_a_thousand_steps_stays_small(tmp_path: Path) -> None:
    scenes.long_run(tmp_path, BEGAN, 1000, "long")
    markup = kb.open(tmp_path)["long"].html()
    assert len(markup) <= 100_000
    assert "960 more" in read(markup)


def test_without_the_extension_an_object_shows_its_twin() -> None:
    storage = MemoryStorage("twins")
    runs = kb.open(storage)
    with pytest.raises(NotImplementedError):
        runs._ipython_display_()
    assert "kst" in runs._repr_html_()
