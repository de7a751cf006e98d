"""What a saved notebook keeps: small, readable without style, and nothing in it runs."""

import html.parser
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest

import kassette_nb as kb
from kassette_nb import MemoryStorage
from kassette_nb.entries import Complete
from kassette_nb.notebook import show
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
    assert "\\x1b" in run.html().replace("<span>\\</span>", "\\")


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


def test_a_twin_tells_branches_that_ask_alike_apart() -> None:
    @kb.kassette(storage=MemoryStorage())
    async def release(ctx):
        async def ask(branch):
            return await branch.suspend("approval", prompt="Ship it?")

        return await ctx.parallel({"linux": ask, "mac": ask})

    release.start_sync(run_id="r")
    runs = kb.open(release.storage)
    text = read(runs["r"].html())
    questions = [each.step_id for each in runs["r"].questions]
    assert len(questions) == 2
    assert all(f"? {each} · waiting" in text for each in questions)
    runs["r"].approve(event=questions[1], start=False)
    assert f"{questions[1]} approved" in read(runs["r"].html())


def test_a_run_of_a_thousand_steps_stays_small(tmp_path: Path) -> None:
    scenes.long_run(tmp_path, BEGAN, 1000, "long")
    markup = kb.open(tmp_path)["long"].html()
    assert len(markup) <= 100_000
    assert "960 more" in read(markup)


def test_a_run_of_many_questions_and_long_contexts_stays_small_and_says_what_is_left_out(
    tmp_path: Path,
) -> None:
    scribe = scenes.Scribe(BEGAN)
    scribe.start(workflow="asks")
    for number in range(300):
        event = f"event-{number}"
        scribe.suspend(event, f"Shall I do number {number}?", "\n".join(["x" * 300] * 60))
        scribe.resume(event, {"approved": True}, 1.0, by="ana")
        scribe.step(f"s{number}", number, 1.0)
    scribe.save(tmp_path, "asks")
    markup = kb.open(tmp_path)["asks"].html()
    assert len(markup) <= 100_000
    text = read(markup)
    assert "260 more earlier decisions" in text
    assert "the rest is in the journal" in text
    assert "event-299 approved by ana" in text


def test_every_twin_says_when_it_was_made(tmp_path: Path) -> None:
    scenes.coding_agent(tmp_path, BEGAN)
    runs = kb.open(tmp_path)
    for markup in (
        runs.html(), runs["fix-timedelta"].html(), kb.compare(list(runs.values()))._repr_html_()
    ):  # fmt: skip
        assert re.search(r"as of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", read(markup))


def test_what_waits_for_a_person_comes_first_in_a_storage_of_many_runs(tmp_path: Path) -> None:
    for number in range(60):
        scribe = scenes.Scribe(BEGAN)
        scribe.start(workflow="w")
        scribe.write(Complete(session=0), 1.0)
        scribe.save(tmp_path, f"a-{number}")
    scribe = scenes.Scribe(BEGAN)
    scribe.start(workflow="w")
    scribe.suspend("q", "Shall I?")
    scribe.save(tmp_path, "zzz-waits")
    (tmp_path / "zzzz-bad.jsonl").write_text("nonsense\n")
    text = read(kb.open(tmp_path).html())
    assert text.index("zzz-waits") < text.index("a-")
    assert "and 21 more runs" in text
    assert "zzzz-bad ✕ damaged" in text
    assert "62 runs" in text


def test_many_attempts_are_compared_by_letters(tmp_path: Path) -> None:
    for number in range(40):
        scenes.long_run(tmp_path, BEGAN, 60, f"r{number}")
    compared = kb.compare(list(kb.open(tmp_path).values()))
    assert len(compared._repr_html_()) <= 100_000


class Text(html.parser.HTMLParser):
    """What a page says, what would run in it, and where its links lead."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.inside: list[str] = []
        self.said: list[str] = []
        self.runs: list[str] = []
        self.links: list[str] = []
        self.images = 0
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside.append(tag)
        self.images += tag == "img"
        for name, value in attrs:
            if name.startswith("on"):
                self.runs.append(value or "")
            if name in ("href", "xlink:href", "src", "action"):
                self.links.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.inside[-1:] == ["script"]:
            self.runs.append(data)
        elif self.inside[-1:] != ["style"]:
            self.said.append(data)


def exported(*cells: Any) -> str:
    from nbconvert import HTMLExporter

    notebook = nbformat.v4.new_notebook(cells=list(cells))
    return str(HTMLExporter().from_notebook_node(notebook)[0])


def displayed(shown: Any) -> Any:
    """A cell as Jupyter saves it after displaying an object with the extension loaded."""
    bundle, _ = show._live(shown.panel())
    outputs = [nbformat.v4.new_output("display_data", data) for data in (show._twin(shown), bundle)]
    return nbformat.v4.new_code_cell("runs", outputs=outputs)


def test_an_exported_notebook_has_summary_picture_and_table_without_a_kernel(
    tmp_path: Path,
) -> None:
    scenes.coding_agent(tmp_path, BEGAN)
    runs = kb.open(tmp_path)
    run = runs["fix-timedelta.3"]
    compared = kb.compare(list(runs.values()))
    page = Text(exported(displayed(run), displayed(runs), displayed(compared)))
    said = " ".join(" ".join(page.said).split())
    for words in ("fix-timedelta.3", "apply-patch approved by ana", "1132 passed", "3 attempts",
                  "3 runs in", "Apply this patch to src/fields.py"):  # fmt: skip
        assert words in said
    assert page.images == 1


@pytest.mark.parametrize("run_id", ["xss", "numbers", "long-line"])
def test_an_exported_hostile_run_runs_nothing_and_links_nowhere(
    run_id: str, tmp_path: Path
) -> None:
    runs = kb.open(GOLDEN / "hostile")
    runs[run_id].to_notebook(tmp_path / "report.ipynb")
    cells = nbformat.read(tmp_path / "report.ipynb", as_version=4).cells
    page = Text(exported(displayed(runs[run_id]), displayed(runs), *cells))
    assert not [text for text in page.runs if "window.__x" in text]
    assert not [to for to in page.links if "example.com" in to or to.startswith("javascript")]
    assert "\u202e" not in " ".join(page.said)


def test_stripped_of_style_class_and_pictures_a_twin_still_reads(tmp_path: Path) -> None:
    scenes.coding_agent(tmp_path, BEGAN)
    bare = re.sub(r"<style>.*?</style>|<img[^>]*>| class=\"[^\"]*\"", "",
                  kb.open(tmp_path)["fix-timedelta.3"].html())  # fmt: skip
    said = " ".join(" ".join(Text(bare).said).split())
    at = 0
    for words in ("Decimal fix-timedelta.3", "completed", "as of", "apply-patch approved by ana",
                  "completed: solved", "step", "plan#2", "llm", "Compute in Decimal",
                  "7.0 s"):  # fmt: skip
        at = said.index(words, at)
    assert bare.count("<tr>") == 1 + 7 + 1 + 1, "heads, steps, question, end"


def test_without_the_extension_an_object_shows_its_twin() -> None:
    storage = MemoryStorage("twins")
    runs = kb.open(storage)
    with pytest.raises(NotImplementedError):
        runs._ipython_display_()
    assert "kst" in runs._repr_html_()


def test_a_twin_and_a_table_are_no_tex(tmp_path: Path) -> None:
    scribe = scenes.Scribe(datetime(2026, 3, 1, tzinfo=UTC))
    scribe.start()
    scribe.suspend("q", r"Pay $\href{https://evil.example/}{yes}$ or \(x\): $5 or $6")
    scribe.save(tmp_path, "r")
    run = kb.open(tmp_path)["r"]
    for twin in (run.html(), kb.open(tmp_path)._repr_html_()):
        assert 'class="kst tex2jax_ignore mathjax_ignore"' in twin
        for text in re.findall(r">([^<>]+)<", twin.split("</style>")[1]):
            assert len(text) == 1 or not set(text) & set("$\\"), text
    pd.reset_option("display.html.use_mathjax")
    run.entries()
    assert pd.get_option("display.html.use_mathjax"), "no business of a script's"
    show.register()
    run.entries()
    assert not pd.get_option("display.html.use_mathjax")
    show.unregister()
    assert pd.get_option("display.html.use_mathjax")
