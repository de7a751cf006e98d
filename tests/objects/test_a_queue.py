"""A real queue's worker is killed; its message comes again and the run goes on elsewhere."""

from __future__ import annotations

import ast
import builtins
import os
import re
import signal
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import pytest

import kassette_nb as kb
from kassette_nb.entries import Start, Step
from kassette_nb.journal import read
from kassette_nb.storage import open_storage


def consumer() -> subprocess.Popen[bytes]:
    """A worker process of huey's own making."""
    module = "tests.objects.queueing.huey"
    command = [sys.executable, "-m", "huey.bin.huey_consumer", module, "-w", "1", "-n", "-s", "1"]
    return subprocess.Popen(command, env=os.environ, stderr=subprocess.DEVNULL)


def test_a_killed_workers_message_is_handled_by_a_fresh_process(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEUE_FOLDER", str(tmp_path))
    monkeypatch.setenv("QUEUE_STORAGE", bucket)
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    marks = tmp_path / "marks"
    send = "from tests.objects.queueing import work; work({'run_id': 'r', 'ticket': 'pod'})"
    subprocess.run([sys.executable, "-c", send], check=True, env=os.environ)
    first = consumer()
    _until(lambda: marks.exists() and "plan" in marks.read_text(), first)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert kb.open(bucket)["r"].fold().steps[-1].step_id == "look"
    second = consumer()
    try:
        _until(lambda: kb.open(bucket)["r"].state == "suspended", second)
        message = {"run_id": "r", "event": "approval", "value": "yes", "by": "ana"}
        send = f"from tests.objects.queueing import work; work({message!r})"
        subprocess.run([sys.executable, "-c", send], check=True, env=os.environ)
        _until(lambda: kb.open(bucket)["r"].state == "completed", second)
        _until(lambda: _left(tmp_path) == 0, second)
    finally:
        second.terminate()
        second.wait()
    journal = read(open_storage(bucket), "r")
    steps = [entry.step_id for entry in journal.entries if isinstance(entry, Step)]
    assert steps == ["look", "plan", "act"]
    pids = [entry.pid for entry in journal.entries if isinstance(entry, Start)]
    assert pids == [first.pid, second.pid]
    ran = [line.split()[0] for line in marks.read_text().splitlines()]
    assert ran == ["look-pod", "plan", "plan", "act"], "the step that was killed ran again"


def test_the_recipe_is_the_code_that_is_tested() -> None:
    recipes = _recipes()
    source = (Path(__file__).parent / "queueing.py").read_text()
    assert any(source[source.index("@huey.task()") :].strip() in recipe for recipe in recipes)
    shared = source[source.index("def work_on(") : source.index("@huey.task()")].strip()
    assert any(shared in recipe for recipe in recipes)


def test_every_recipe_names_only_what_it_has_or_what_is_shared() -> None:
    shared = {"work_on", "triage", "fix", "models", "asyncio", "Any", *dir(builtins)}
    recipes = _recipes()
    assert len(recipes) >= 8
    for recipe in recipes:
        nodes = list(ast.walk(ast.parse(recipe)))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        made = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        made |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        made |= {
            node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        made |= {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
        assert {node.id for node in names} <= made | shared, recipe


def _recipes() -> list[str]:
    text = (files("kassette_nb") / "DISPATCH.md").read_text()
    return re.findall(r"^```python\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)


def _until(what: object, worker: subprocess.Popen[bytes]) -> None:
    assert callable(what)
    deadline = time.monotonic() + 60
    while not what():
        assert worker.poll() is None, "the worker has ended"
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _left(folder: Path) -> int:
    """The messages that are still to be handled."""
    import sqlite3

    with sqlite3.connect(folder / "queue.db") as broker:
        (count,) = broker.execute("select count(*) from task").fetchone()
    return int(count)
