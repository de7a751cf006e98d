"""A journal that grows is read, folded and drawn by what is new, and means the same."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import journal as journals
from kassette_nb import kassette, printed, state
from kassette_nb.clock import SystemClock
from kassette_nb.notebook import follow
from kassette_nb.notebook.panel import Panel
from kassette_nb.notebook.rows import Rows
from tests.browser import scenes

GOLDEN = Path(__file__).parent.parent / "golden"
GOOD = sorted(path for name in ("good", "hostile") for path in (GOLDEN / name).glob("*.jsonl"))


def grown(lines: list[bytes]) -> list[bytes]:
    """Every beginning of a journal, line by line."""
    return [b"".join(lines[: n + 1]) for n in range(len(lines))]


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_what_is_added_line_by_line_means_what_the_whole_means(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    now = SystemClock().now()
    known: journals.Journal | None = None
    folding: state.Folding | None = None
    rows = Rows()
    for number, data in enumerate(grown(lines)):
        try:
            whole = journals.parse(path.stem, data, number, "here")
        except kb.errors.JournalCorruptionError:
            continue  # a fork is not one before all of its prefix is there
        tail = journals.parse(path.stem, data, number, "here", known)
        assert (tail.ends, tail.torn, tail.steps) == (whole.ends, whole.torn, whole.steps)
        if known is not None and len(known.entries) > 1:
            assert tail.entries[1] is known.entries[1], "what was known is not read again"
        if not tail.entries:
            continue
        if folding is None or not folding.fits(tail.entries):
            folding = state.Folding(tail.entries[0])
        folding.take(tail.entries[folding.taken :])
        expected = state.fold(whole.entries, now, held=False)
        assert folding.state(now, held=False) == expected
        rows.follow(tail, expected)
        fresh = Rows()
        fresh.follow(whole, expected)
        assert rows.shown() == fresh.shown()
        known = tail


def test_a_file_that_is_another_one_is_read_from_its_beginning(tmp_path: Path) -> None:
    one, other = (GOLDEN / "good" / f"attempt-{n}.jsonl" for n in "ab")
    path = tmp_path / "r.jsonl"
    path.write_bytes(one.read_bytes())
    run = kb.open(tmp_path)["r"]
    first = run.fold()
    path.write_bytes(other.read_bytes())
    assert run.fold() == state.fold(run.journal.entries, SystemClock().now(), held=False)
    assert run.fold() != first
    path.write_bytes(b"".join(one.read_bytes().splitlines(keepends=True)[:3]))
    assert run.journal.entries[-1].offset == 2


def test_damage_in_what_is_added_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes((GOLDEN / "good" / "INC-4900-suspended.jsonl").read_bytes())
    run = kb.open(tmp_path)["r"]
    count = len(run.journal.entries)
    with path.open("ab") as file:
        file.write(b'{"type":"step"}\n')
    with pytest.raises(kb.errors.JournalCorruptionError, match=f"line {count + 1}:"):
        _ = run.journal


def add(path: Path, scribe: scenes.Scribe) -> None:
    with path.open("ab") as file:
        file.write(scribe.lines[-1])


def test_one_more_line_is_one_more_row(tmp_path: Path) -> None:
    scribe = scenes.Scribe(SystemClock().now())
    scribe.start(workflow="crawl")
    for number in range(500):
        scribe.step(f"fetch-{number}", {"page": number}, 1.0, kind="tool")
    scribe.save(tmp_path, "r")
    runs = kb.open(tmp_path)
    sent: list[dict[str, Any]] = []
    panel = Panel(runs["r"], sent.append, lambda summary: None, runs)
    panel.handle({"type": "hello", "view": "v"})
    assert [m["total"] for m in sent if m["type"] == "rows"] == [500]
    sent.clear()
    before = panel.run.journal.entries
    scribe.step("one more", "x", 1.0)
    add(tmp_path / "r.jsonl", scribe)
    assert panel.follower.poll()
    (message,) = (m for m in sent if m["type"] == "rows")
    assert (message["from"], [row["id"] for row in message["rows"]]) == (500, ["one more"])
    assert all(a is b for a, b in zip(before, panel.run.journal.entries, strict=False))
    assert len(json.dumps(sent)) < 1_000
    assert not panel.follower.poll(), "nothing has changed since"


def test_a_tool_that_acts_is_a_row_until_it_has_returned(tmp_path: Path) -> None:
    scribe = scenes.Scribe(SystemClock().now())
    scribe.start(workflow="deploy")
    scribe.step("plan", "x", 1.0)
    scenes.intent(scribe, "publish", {"version": "2.14.0"})
    scribe.save(tmp_path, "r")
    runs = kb.open(tmp_path)
    hold = runs.storage.hold("r", "somebody")
    panel = Panel(runs["r"], lambda message: None, lambda summary: None, runs)
    assert panel._rows is not None
    assert [(row["id"], row["kind"], row["x"]) for row in panel._rows.shown()][-1] == (
        "publish", "intent", "",
    )  # fmt: skip
    hold.release()
    assert panel.follower.poll()
    assert panel._rows.shown()[-1]["x"] == "?", "nobody holds the run any more"
    scribe.step("publish", {"ok": True}, 1.0, kind="tool")
    add(tmp_path / "r.jsonl", scribe)
    panel.follower.poll()
    assert [(row["id"], row["kind"]) for row in panel._rows.shown()] == [
        ("plan", "step"), ("publish", "tool"),
    ]  # fmt: skip


def test_a_blocked_kernel_says_for_how_long_its_runs_stood_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "INTERVAL", 0.02)
    monkeypatch.setattr(follow, "BLOCKED", 0.2)

    @kassette(storage=kb.MemoryStorage("blocked"))
    async def slow(ctx: kb.Context) -> None:
        await ctx.step("wait", asyncio.sleep, 2)

    async def scenario() -> None:
        handle = slow.launch()
        await asyncio.sleep(0.05)
        run = kb.open(slow.storage)[handle.run_id]
        shown: list[dict[str, Any]] = []
        sent: list[dict[str, Any]] = []
        panel = Panel(run, sent.append, shown.append)
        panel.handle({"type": "hello"})
        await asyncio.sleep(0.05)
        time.sleep(1.2)  # noqa: ASYNC251  # a cell that keeps the kernel's loop to itself
        await asyncio.sleep(0.06)
        assert shown[-1]["stood_still"] == 1
        assert [call["id"] for call in shown[-1]["current"]] == ["wait"]
        panel.close()
        await handle

    asyncio.run(scenario())


def test_what_a_run_prints_goes_to_its_panels_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_bytes(
            (GOLDEN / "good" / "INC-4900-suspended.jsonl").read_bytes()
        )
    runs = kb.open(tmp_path)
    view = runs.panel()
    sent: list[dict[str, Any]] = []
    view.send = lambda message, buffers=None: sent.append(message)
    view.handle({"ch": "main", "type": "open", "run_id": "a"})
    view.handle({"ch": "detail", "type": "hello"})
    assert view.printed("a", "step 1\x1b[2J\n")
    assert not view.printed("b", "another run\n")
    printed = [m for m in sent if m["type"] == "printed"]
    assert printed == [{"ch": "detail", "type": "printed", "text": "step 1\\x1b[2J\n"}]
    view.handle({"ch": "detail", "type": "hello"})
    assert sent[-1] == {**printed[0], "whole": True}, "another view sees it too"


def test_a_background_run_prints_into_the_panel_that_is_looked_at(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @kassette(storage=kb.MemoryStorage("prints"))
    async def speaks(ctx: kb.Context) -> None:
        for number in range(3):
            await ctx.step(f"s{number}", asyncio.sleep, 0.2)
            ctx.print(f"step {number}")

    async def scenario() -> list[str]:
        handle = speaks.launch(run_id="r")
        await asyncio.sleep(0.05)
        sent: list[dict[str, Any]] = []
        panel = Panel(kb.open(speaks.storage)["r"], sent.append, lambda summary: None)
        panel.handle({"type": "hello", "view": "v"})
        await handle
        panel.handle({"type": "gone", "view": "v"})
        return [message["text"] for message in sent if message["type"] == "printed"]

    printed.install()
    try:
        shown = asyncio.run(scenario())
        print("a cell's own")
    finally:
        printed.remove()
    assert "".join(shown) == "step 0\nstep 1\nstep 2\n"
    assert capsys.readouterr().out == "a cell's own\n"
