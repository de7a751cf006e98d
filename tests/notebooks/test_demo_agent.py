"""The demo's agent decides from what it reads: with another bug it does another thing, or fails."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

import kassette_nb as kb
from kassette_nb import RunResult, Workflow

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "01_approve_fork_compare.ipynb"
ROUND_FIRST = {"content": "Round to whole seconds first, then split them."}
#: A bug of the same look that rounding first does not repair: the day of this clock has 24 minutes.
SECOND_BUG = ("divmod(minutes, 60)", "divmod(minutes, 24)")

Make = Callable[..., Workflow]


def source(cell_id: str) -> str:
    """The notebook's code in one cell, without the magic that writes it to a file."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    text: str = next(cell.source for cell in notebook.cells if cell.id == cell_id)
    return text.split("\n", 1)[1] if text.startswith("%%writefile") else text


def replaced(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text, f"the notebook has no {old!r} any more"
        text = text.replace(old, new)
    return text


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Set the demo up in an empty folder, with changes to its repository; its workflow."""
    monkeypatch.chdir(tmp_path)
    # Neither the plugins nor the options of the pytest that runs this test are the demo's.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    # In a git hook they point at the repository that is committed to.
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("time.sleep", lambda seconds: None)

    def build(*changes: tuple[str, str]) -> Workflow:
        names = {name: __import__(name) for name in ("subprocess", "sys")}
        with contextlib.redirect_stdout(io.StringIO()):
            exec(replaced(source("repository"), *changes), {**names, "Path": Path})
        file = Path("demo/agent.py")
        file.write_text(f"{source('model')}\n{source('agent')}")
        repair = runpy.run_path(str(file))["repair"]
        assert isinstance(repair, Workflow)
        return repair

    return build


def attempt(repair: Workflow, approved: bool = True, **start: Any) -> RunResult:
    """Start a run and answer its question, if it comes to one."""

    async def go() -> RunResult:
        reached = await repair.start(**start)
        if reached.status != "suspended":
            return reached
        answer = {"approved": approved, "note": "too long"}
        return await repair.resume(reached.run_id, "apply-patch", answer)

    reached = asyncio.run(go())
    assert reached.status == "success", reached
    return reached


def planned(repair: Workflow, run_id: str) -> RunResult:
    """Fork at the plan, with the plan that the notebook puts in, and go on."""
    fork = kb.open("file:demo/runs")[run_id].fork(override={"plan": ROUND_FIRST})
    return attempt(repair, run_id=fork.run_id)


def test_the_notebook_puts_this_plan_in() -> None:
    assert f"plan = {ROUND_FIRST!r}".replace("'", '"') in source("fork")


def test_the_bug_is_repaired_by_the_second_plan_only(make: Make) -> None:
    repair = make()
    first = attempt(repair, task="repair")
    assert first.result == {"fixed": False, "tests": "1 failed, 4 passed"}
    assert planned(repair, first.run_id).result == {"fixed": True, "tests": "5 passed"}


def test_with_another_bug_there_is_no_patch(make: Make) -> None:
    split = "    minutes, seconds = divmod(seconds, 60)"
    repair = make((split, f"    seconds = round(seconds)\n{split}"), SECOND_BUG)
    first = attempt(repair, task="repair")
    assert first.result == {"fixed": False, "tests": "1 failed, 4 passed"}
    steps = kb.open("file:demo/runs")[first.run_id].steps()
    assert "apply" not in set(steps["step_id"])
    last = json.loads(steps["result"].to_list()[-1])
    assert last["content"] == "I stop: I have no patch for this plan."


def test_with_one_more_bug_the_right_plan_is_not_enough(make: Make) -> None:
    repair = make(SECOND_BUG)
    first = attempt(repair, task="repair")
    assert first.result == {"fixed": False, "tests": "1 failed, 4 passed"}
    assert planned(repair, first.run_id).result == {"fixed": False, "tests": "1 failed, 4 passed"}


def test_the_same_bug_under_other_names_is_repaired(make: Make) -> None:
    renamed = ("durations", "times"), ("clock", "hms"), ("minutes", "mins")
    repair = make(*renamed)
    first = attempt(repair, task="repair")
    assert not Path("demo/repository/stopwatch/durations.py").exists()
    assert planned(repair, first.run_id).result == {"fixed": True, "tests": "5 passed"}


def test_a_refused_patch_is_not_applied(make: Make) -> None:
    repair = make()
    refused = attempt(repair, approved=False, task="repair")
    assert refused.result == {"fixed": False, "tests": "2 failed, 3 passed"}
    steps = kb.open("file:demo/runs")[refused.run_id].steps()
    last = json.loads(steps["result"].to_list()[-1])
    assert last["content"] == "I stop: the patch was refused. too long"
    file = Path("demo/work", refused.run_id, "stopwatch/durations.py")
    assert file.read_text() == Path("demo/repository/stopwatch/durations.py").read_text()


def test_the_model_needs_nothing_but_the_messages(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repair = make()
    first = attempt(repair, task="repair")
    run = kb.open("file:demo/runs")[first.run_id]
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    alone: dict[str, Any] = {}
    exec(source("model"), alone)
    asked = ["look", "look#2", "look#3", "plan", "propose", "propose#2"]
    for step_id in asked:
        args = run[step_id].args
        assert isinstance(args, dict)
        assert alone["model"](args["messages"]) == run[step_id].value
