"""The notebooks of the documentation run from top to bottom, and what is saved in them is clean."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDER = CHECKOUT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

SIZE_LIMIT = 500_000  # bytes; what a code host still renders and a diff still opens

# What betrays the machine on which a notebook was saved.
TRACES = {
    "absolute path": re.compile(
        r"""(?<![\w.:/~*)\]}<-])/(?:home|root|Users|tmp|var|opt|usr|mnt|work|private|srv|etc|proc)
            (?:/|$|(?=["'\s\\&]))""",
        re.X,
    ),
    "path of a Windows machine": re.compile(r"\b[A-Z]:\\\\?(?:Users|Windows|Program)"),
    "process id": re.compile(r"\b(?:pid|PID|process id|ipykernel_)\W{0,3}\d{2,}"),
    # A notebook that shows one is run with an invented one.
    "host name": re.compile(
        r"""\b(?:host|hostname|nodename)(?:["']|&quot;)?\s*[:=]\s*(?:["']|&quot;)?
            (?!example|localhost|notebook)\w""",
        re.X | re.I,
    ),
    "address of an object": re.compile(r"\bat 0x[0-9a-f]{6,}"),
}

needs_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[p.stem for p in NOTEBOOKS])


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS, "the documentation is notebooks/*.ipynb, and there is none"


@needs_notebook
@pytest.mark.timeout(300)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    here = tmp_path / "notebooks"
    # What an earlier run left behind is not there in a fresh checkout.
    leftovers = shutil.ignore_patterns(".*", "__pycache__", "demo")
    shutil.copytree(FOLDER, here, ignore=leftovers)
    # The kernel named python3 is the one of this interpreter, whatever the machine has installed.
    spec = tmp_path / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    content = {"argv": argv, "display_name": "Python 3", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
        patch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
        patch.setenv(
            "PYTHONPATH",
            os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")])),
        )
        notebook = nbformat.read(here / path.name, as_version=4)
        # A failing cell raises CellExecutionError with its traceback.
        NotebookClient(
            notebook,
            timeout=120,
            kernel_name="python3",
            allow_errors=False,
            resources={"metadata": {"path": str(here)}},
        ).execute()
    ran = [c for c in notebook.cells if c.cell_type == "code" and c.source.strip()]
    assert ran
    assert all(cell.execution_count for cell in ran)


@needs_notebook
def test_a_saved_notebook_is_valid_and_was_run_in_order(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    counts = [c.execution_count for c in notebook.cells if c.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "run all cells of a fresh kernel, then save"


@needs_notebook
def test_a_saved_notebook_carries_no_widget_state(path: Path) -> None:
    # Exporters prefer it to the static twin and then show nothing without a network.
    assert "widgets" not in nbformat.read(path, as_version=4).metadata


@needs_notebook
def test_a_saved_notebook_is_small(path: Path) -> None:
    assert path.stat().st_size < SIZE_LIMIT


@needs_notebook
def test_a_saved_notebook_does_not_betray_its_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    texts = {f"cell {i}": _texts(dict(cell)) for i, cell in enumerate(notebook.cells)}
    texts["metadata"] = _texts(dict(notebook.metadata))
    assert [
        f"{where}: {what}: {text[max(0, hit.start() - 40) : hit.end() + 40]!r}"
        for where, found in texts.items()
        for text in found
        for what, hit in traces(text)
    ] == []


def traces(text: str) -> list[tuple[str, re.Match[str]]]:
    """Every trace of a machine in a text, with its kind."""
    found = [(what, hit) for what, pattern in TRACES.items() for hit in pattern.finditer(text)]
    host = os.uname().nodename
    # A name that is a plain word, such as "runner", may well stand in a text.
    if not host.isalpha():
        found += [("host name", hit) for hit in re.finditer(re.escape(host), text)]
    return found


@pytest.mark.parametrize(
    "text",
    [
        'File "/home/ana/.venv/lib/python3.11/x.py"',
        "cd /tmp",
        "/work/project/.kassette",
        r"C:\Users\ana",
        "C:\\\\Users\\\\ana",
        "pid=4711",
        '{"pid": 4711}',
        "/tmp/ipykernel_4711/12.py",
        '{"host": "laptop"}',
        "<function f at 0x7f3a2b1c>",
    ],
)
def test_a_trace_of_a_machine_is_found(text: str) -> None:
    assert traces(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://example.org/home/index.html",
        "src/tmp/x and ./var/log and ~/work",
        "</tmp>",
        "and/or 1/2",
        '{"host": "example"}',
        "host: localhost",
        "the host decides",
        "pid",
    ],
)
def test_an_innocent_text_is_left_alone(text: str) -> None:
    assert traces(text) == []


def _texts(value: Any) -> list[str]:
    """Every string in a JSON value; binary outputs, which are base64, aside."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [t for k, v in value.items() if not k.startswith("image/") for t in _texts(v)]
    if isinstance(value, list):
        return [t for v in value for t in _texts(v)]
    return []


def test_the_figures_of_the_ticket_agent_were_measured_as_the_notebook_says() -> None:
    rows = dict(json.loads((FOLDER / "02_ticket_agent.json").read_text()))
    killed = {name: runs for name, runs in rows.items() if "at a random moment" in name}
    assert len(killed) == 3
    assert all(len(runs) == 200 for runs in killed.values())
    assert {run["crashes"] for runs in killed.values() for run in runs} == {1}
    (quiet,) = rows["durable, no crash"]
    for name, runs in rows.items():
        told = {(run["calls"], run["tokens"], run["mails"], run["doubled"]) for run in runs}
        same = told == {(quiet["calls"], quiet["tokens"], quiet["mails"], 0)}
        assert same == (not name.startswith("naive") or name == "naive, no crash"), name
