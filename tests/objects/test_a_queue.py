"""A real queue's worker is killed; its message comes again and the run goes on elsewhere."""

from __future__ import annotations

import os
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
    send = "from tests.objects.queueing import work; work('r', 'pod')"
    subprocess.run([sys.executable, "-c", send], check=True, env=os.environ)
    first = consumer()
    _until(lambda: marks.exists() and "plan" in marks.read_text(), first)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert kb.open(bucket)["r"].fold().steps[-1].step_id == "look"
    second = consumer()
    try:
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
    recipes = (files("kassette_nb") / "DISPATCH.md").read_text()
    source = (Path(__file__).parent / "queueing.py").read_text()
    tested = source[source.index("@huey.task()") :].strip()
    assert f"```python\n{tested}\n```" in recipes


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
