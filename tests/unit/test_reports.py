"""A report is a valid notebook, in which a journal's text is text, and whose last cells act."""

import ast
import io
import json
import os
import tokenize
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell

import kassette_nb as kb
from kassette_nb.errors import KassetteError
from kassette_nb.notebook import report
from tests.browser import scenes

GOLDEN = Path(__file__).parent.parent / "golden"
BEGAN = datetime(2026, 5, 8, 14, 20, tzinfo=UTC)
NAMES = {"kb", "run", "runs", "fork", "act", "get_ipython", "display", "print", "None"}
RUNS = [
    (folder, path.stem)
    for folder in ("good", "hostile")
    for path in sorted((GOLDEN / folder).glob("*.jsonl"))
    if path.stem != "deep"
]
each_run = pytest.mark.parametrize(("folder", "run_id"), RUNS)


@pytest.fixture
def demo(tmp_path: Path) -> kb.Runs:
    scenes.coding_agent(tmp_path / "demo", BEGAN)
    runs: kb.Runs = kb.open(tmp_path / "demo")
    return runs


def made(folder: str, run_id: str, where: Path) -> Any:
    path = where / "report.ipynb"
    kb.open(GOLDEN / folder)[run_id].to_notebook(path)
    found = nbformat.read(path, as_version=4)
    nbformat.validate(found)
    return found


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def text_of(notebook: Any) -> str:
    return "\n".join(
        output["text"] if output.output_type == "stream" else output.data["text/plain"]
        for cell in code_cells(notebook)
        for output in cell.outputs
    )


@each_run
def test_code_holds_text_of_a_journal_only_as_literals(
    folder: str, run_id: str, tmp_path: Path
) -> None:
    for cell in code_cells(made(folder, run_id, tmp_path)):
        assert cell.source.isascii()
        tree = ast.parse(cell.source)
        assert {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} <= NAMES
        for token in tokenize.generate_tokens(io.StringIO(cell.source).readline):
            if "window" in token.string:
                assert token.type in (tokenize.STRING, tokenize.COMMENT)


@each_run
def test_markdown_is_ours_and_outputs_are_plain_text(
    folder: str, run_id: str, tmp_path: Path
) -> None:
    notebook = made(folder, run_id, tmp_path)
    ours = made("good", "INC-4821", tmp_path_beside(tmp_path))
    markdown = [[c.source for c in n.cells if c.cell_type == "markdown"] for n in (notebook, ours)]
    assert markdown[0] == markdown[1]
    for cell in code_cells(notebook):
        for output in cell.outputs:
            if output.output_type == "stream":
                assert "\x1b" not in output["text"]
                assert "\u202e" not in output["text"]
                continue
            assert set(output.data) <= {"text/plain", "text/html", report.PLOTLY}
            html = output.data.get("text/html", "")
            assert html == "" or html.startswith('<p><img decoding="async" alt="timeline of ')
            assert html.count("<") <= 3


def tmp_path_beside(path: Path) -> Path:
    beside = path / "beside"
    beside.mkdir()
    return beside


def test_a_report_documents_steps_lineage_and_decisions(demo: kb.Runs, tmp_path: Path) -> None:
    demo["fix-timedelta.3"].to_notebook(tmp_path / "report.ipynb")
    notebook = nbformat.read(tmp_path / "report.ipynb", as_version=4)
    sources = [cell.source for cell in code_cells(notebook)]
    steps = [source for source in sources if ".text)" in source]
    assert len(steps) == len(demo["fix-timedelta.3"].steps())
    assert steps[0] == "# llm, copied\nprint(run['plan'].text)"
    told = text_of(notebook)
    assert "fork of fix-timedelta at plan#2" in told
    assert "+        return round(value.total_seconds()" in told
    decision = next(line for line in told.split("\n") if "approved" in line)
    assert "ana" in decision
    assert "2026-05-08 23:" in decision
    assert "fix-timedelta.2 suspended, parted at plan#2 (changed)" in told
    assert "runs = kb.open('file:demo')" in sources[0], "found from where the notebook is"
    assert str(tmp_path) not in (tmp_path / "report.ipynb").read_text()


def test_a_report_does_not_overwrite_unless_told(demo: kb.Runs, tmp_path: Path) -> None:
    path = tmp_path / "report.ipynb"
    path.write_text("mine")
    run = demo["fix-timedelta"]
    with pytest.raises(KassetteError, match=r"exists already.*Nothing was written"):
        run.to_notebook(path)
    assert path.read_text() == "mine"
    assert run.to_notebook(path, overwrite=True) == str(path)
    assert json.loads(path.read_text())["nbformat"] == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["demo", "report.ipynb"]


@pytest.mark.parametrize(
    ("name", "reason"), [("report.txt", "end in .ipynb"), ("no/report.ipynb", "no folder")]
)
def test_a_name_that_cannot_be_a_notebook_is_refused(
    name: str, reason: str, demo: kb.Runs, tmp_path: Path
) -> None:
    with pytest.raises(KassetteError, match=reason):
        demo["fix-timedelta"].to_notebook(tmp_path / name)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_report_that_cannot_be_finished_leaves_nothing(
    overwrite: bool, demo: kb.Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.ipynb"
    if overwrite:
        path.write_text("mine")

    def full(self: Path, text: str, **_: object) -> int:
        with self.open("w") as file:
            file.write(text[:100])
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        demo["fix-timedelta"].to_notebook(path, overwrite=overwrite)
    assert {p.name for p in tmp_path.iterdir()} == {"demo", *["report.ipynb"] * overwrite}
    assert not overwrite or path.read_text() == "mine"


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    shell = InteractiveShell.instance()
    yield shell
    kb.unload_ipython_extension(shell)
    InteractiveShell.clear_instance()


@pytest.mark.parametrize("run_id", ["fix-timedelta.2", "fix-timedelta.3"])
def test_running_all_cells_only_looks(run_id: str, demo: kb.Runs, shell: Any) -> None:
    demo[run_id].to_notebook("report.ipynb")
    before = {path: path.read_bytes() for path in Path("demo").glob("*.jsonl")}
    for cell in code_cells(nbformat.read("report.ipynb", as_version=4)):
        shell.run_cell(cell.source).raise_error()
    assert {path: path.read_bytes() for path in Path("demo").glob("*.jsonl")} == before


def test_the_last_cells_continue_or_fork_the_run(demo: kb.Runs, shell: Any) -> None:
    demo["fix-timedelta.2"].to_notebook("report.ipynb")
    cells = [c.source for c in code_cells(nbformat.read("report.ipynb", as_version=4))]
    shell.run_cell(cells[0]).raise_error()
    acting = cells[cells.index(next(c for c in cells if "act = False" in c)) :]
    shell.run_cell(acting[0].replace("False", "True")).raise_error()
    approve, fork, override = acting[1:4]
    assert not shell.run_cell(override).success, "an ellipsis is no result, so nothing is written"
    shell.run_cell(approve).raise_error()
    assert demo["fix-timedelta.2"].state == "ready"
    shell.run_cell(fork).raise_error()
    assert demo["fix-timedelta.2.2"].source is not None
    assert len(os.listdir("demo")) >= 4


def test_a_long_value_is_cut_and_says_so(tmp_path: Path) -> None:
    notebook = made("hostile", "long-line", tmp_path)
    assert "more characters: run this cell" in text_of(notebook)
    assert (tmp_path / "report.ipynb").stat().st_size < 100_000
