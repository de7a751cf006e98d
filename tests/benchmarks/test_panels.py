"""What it costs to look: a folder of runs, panels that nobody touches, one more line of many."""

import asyncio
import gc
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import kassette_nb as kb
from kassette_nb import entries
from kassette_nb.entries import Complete
from kassette_nb.notebook.browser import Browser
from kassette_nb.notebook.panel import Panel
from tests.browser import scenes

pytestmark = pytest.mark.bench
BEGAN = datetime.now(UTC) - timedelta(hours=30)


def cpu(call: Callable[[], object], times: int) -> float:
    """Seconds of the processor that the cheapest of so many calls takes."""
    best = float("inf")
    for _ in range(times):
        gc.collect()
        began = time.process_time()
        kept = call()
        best = min(best, time.process_time() - began)
        del kept
    return best


def test_a_browser_of_a_thousand_runs_beside_reading_and_decoding_them(tmp_path: Path) -> None:
    for number in range(1_000):
        scribe = scenes.Scribe(BEGAN)
        scribe.start(workflow="crawl", label=f"run {number}")
        for step in range(40):
            scribe.step(f"fetch-{step}", {"page": step, "text": "x" * 300}, 1.0, kind="tool")
        if number % 3:
            scribe.write(Complete(session=0), 1.0)
        scribe.save(tmp_path, f"r{number:04}")

    def decoded() -> object:
        lines = (path.read_bytes().split(b"\n") for path in sorted(tmp_path.glob("*.jsonl")))
        return [[entries.decode(line) for line in file if line] for file in lines]

    browser = cpu(lambda: Browser(kb.open(tmp_path), lambda m: None, lambda m: None), 5)
    plain = cpu(decoded, 5)
    print(f"\na browser of 1,000 runs: {browser / plain:.2f} times reading and decoding the files")
    assert browser < 4 * plain


def test_ten_idle_panels_for_half_a_minute(tmp_path: Path) -> None:
    for number in range(10):
        scribe = scenes.Scribe(BEGAN)
        scribe.start(workflow="crawl")
        scribe.step("plan", {"page": 1}, 1.0)
        scribe.suspend("go on", "Go on?")
        scribe.save(tmp_path, f"r{number}")

    async def scenario() -> float:
        runs = kb.open(tmp_path)
        panels = [Panel(run, lambda m: None, lambda m: None, runs) for run in runs.listed()]
        for panel in panels:
            panel.handle({"type": "hello", "view": "v"})
        await asyncio.sleep(1)
        began = time.process_time()
        await asyncio.sleep(30)
        spent = time.process_time() - began
        for panel in panels:
            panel.close()
        return spent

    spent = asyncio.run(scenario())
    print(f"\n10 idle panels: {spent / 30:.2%} of a core")
    assert spent < 0.02 * 30


def test_one_more_line_of_ten_thousand_beside_the_first_look(tmp_path: Path) -> None:
    scenes.long_run(tmp_path, BEGAN, 10_000, "r")
    first = cpu(lambda: Panel(kb.open(tmp_path)["r"], lambda m: None, lambda m: None), 3)
    panel = Panel(kb.open(tmp_path)["r"], lambda m: None, lambda m: None)
    panel.handle({"type": "hello"})
    line = (tmp_path / "r.jsonl").read_bytes().splitlines(keepends=True)[-1]
    spent = []
    for number in range(10_001, 10_021):
        more = line.replace(b'"offset":10000', b'"offset":%d' % number)
        with (tmp_path / "r.jsonl").open("ab") as journal:
            journal.write(more.replace(b'"stepId":"', b'"stepId":"n%d-' % number))
        began = time.process_time()
        assert panel.follower.poll()
        spent.append(time.process_time() - began)
    update = sorted(spent)[len(spent) // 2]
    print(f"\none more line: {update * 1e3:.1f} ms, {update / first:.3f} times the first look")
    assert update < first / 2
