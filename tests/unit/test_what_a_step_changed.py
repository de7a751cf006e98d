"""The inspector's Files: what a step changed in the files of its run, compared aside, as text."""

from __future__ import annotations

import ast
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import LocalStorage, Workspace, kassette
from kassette_nb.entries import Note, Step
from kassette_nb.kept import home
from kassette_nb.notebook import changes
from kassette_nb.notebook.panel import Panel
from kassette_nb.patches import patches
from tests.trees import git

EDIT = Callable[[Path], object]


class Page:
    """Plays the page of one run's panel; what is compared aside is waited for."""

    def __init__(self, run: Any) -> None:
        self.sent: list[dict[str, Any]] = []
        self.main: dict[str, Any] = {}
        self.panel = Panel(run, self.sent.append, self._publish)
        self.panel.handle({"type": "hello"})

    def _publish(self, summary: dict[str, Any]) -> None:
        self.main = summary

    def files(self, offset: int) -> dict[str, Any]:
        return self._asked({"type": "value", "offset": offset, "part": "files"}, "value")

    def file(self, offset: int, number: int) -> dict[str, Any]:
        return self._asked({"type": "file", "offset": offset, "part": "files", "n": number}, "file")

    def _asked(self, message: dict[str, Any], wanted: str) -> dict[str, Any]:
        before = len(self.sent)
        self.panel.handle(message)
        for _ in range(2000):
            found = [m for m in self.sent[before:] if m["type"] in (wanted, "failed")]
            if found:
                assert found[0]["type"] == wanted, found[0]
                return found[0]
            time.sleep(0.01)
        raise TimeoutError(message)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "tree"
    made.mkdir()
    (made / "app.py").write_text("".join(f"line {n}\n" for n in range(30)))
    (made / "old.txt").write_text("gone soon\n")
    (made / "logo.bin").write_bytes(b"\0" * 1000)
    return made


def run_of(tmp_path: Path, tree: Path, *edits: EDIT, **options: Any) -> Any:
    """A finished run with one step for each edit of the tree: edit, edit#2 …"""

    @kassette(
        storage=LocalStorage(tmp_path / "store"), workspace=Workspace(str(tree), **options),
        name="edits",
    )  # fmt: skip
    async def edits_files(ctx):
        for change in edits:
            await ctx.step("edit", lambda change=change: change(ctx.workspace) and None)

    edits_files.start_sync(run_id="r")
    return kb.open(tmp_path / "store")["r"]


def offset_of(run: Any, step_id: str) -> int:
    steps = (e for e in run.journal.entries if isinstance(e, Step))
    return next(e.offset for e in steps if e.step_id == step_id)


def test_a_step_shows_each_file_with_its_sign_counts_and_difference(
    tmp_path: Path, tree: Path
) -> None:
    def edit(root: Path) -> None:
        lines = (root / "app.py").read_text().replace("line 3\n", "line three\n")
        (root / "moved.py").write_text(lines)
        (root / "app.py").unlink()
        (root / "new.txt").write_text("one\ntwo")
        (root / "old.txt").unlink()
        (root / "logo.bin").write_bytes(b"\0" * 1500)
        (root / "empty").write_text("")

    run = run_of(tmp_path, tree, edit, lambda root: (root / "new.txt").chmod(0o755))
    page = Page(run)
    assert page.main["workspace"] is True
    shown = page.files(offset_of(run, "edit"))
    assert (shown["format"], shown["said"]) == ("files", "5 files, +3 −2")
    files = {f["path"]: f for f in shown["files"]}
    assert {path: f["s"] for path, f in files.items()} == {
        "moved.py": "R", "new.txt": "A", "old.txt": "D", "logo.bin": "M", "empty": "A",
    }  # fmt: skip
    moved = files["moved.py"]
    assert (moved["was"], moved["added"], moved["removed"]) == ("app.py", 1, 1)
    assert "-line 3\n+line three\n" in moved["text"]
    assert moved["text"].startswith("@@ ")
    assert files["new.txt"]["text"] == (
        "@@ -0,0 +1,2 @@\n+one\n+two\n\\ No newline at end of file\n"
    )
    assert files["old.txt"]["text"] == "@@ -1,1 +0,0 @@\n-gone soon\n"
    logo = files["logo.bin"]
    assert (logo["binary"], logo["before"], logo["after"]) == (True, 1000, 1500)
    assert "binary" in logo["why"]
    assert files["empty"]["why"] == "an empty file"
    (mode,) = page.files(offset_of(run, "edit#2"))["files"]
    assert mode["text"] == "old mode 100644\nnew mode 100755\n"


def test_the_line_at_the_foot_gives_the_same_difference(tmp_path: Path, tree: Path) -> None:
    def inner(root: Path) -> None:
        place = root / "lib"
        if not place.exists():
            place.mkdir()
            git(place, "init", "-q")
            (place / "b.py").write_text("b\n")
        (place / "a.py").write_text(f"{os.urandom(4).hex()}\n")
        (root / "a.py").write_text(f"{os.urandom(4).hex()}\n")

    run = run_of(tmp_path, tree, inner, inner)
    page = Page(run)
    for step_id, first in (("edit", None), ("edit#2", "edit")):
        shown = page.files(offset_of(run, step_id))
        line = shown["lines"]["files"]
        assert line == f"kb.open({run.storage.url!r})['r'].workspace.diff({first!r}, {step_id!r})"
        assert eval(line) == run.workspace.diff(first, step_id)
    assert [f["path"] for f in shown["files"]] == ["a.py", "lib/a.py"]
    for file in shown["files"]:
        text = eval(file["line"])
        assert f"+++ b/{file['path']}\n" in text
        assert text.count("+++ ") == 1, "of this file alone"
        assert text.endswith(file["text"])


def test_long_files_come_when_asked_for_and_whole(tmp_path: Path, tree: Path) -> None:
    def edit(root: Path) -> None:
        (root / "big.txt").write_text("".join(f"row {n}\n" for n in range(30_000)))
        (root / "huge.txt").write_text("x\n" * 1_500_000)
        (root / "mid.txt").write_text("".join(f"row {n}\n" for n in range(5_000)))

    run = run_of(tmp_path, tree, edit)
    page, offset = Page(run), offset_of(run, "edit")
    big, huge, mid = page.files(offset)["files"]
    assert "text" not in big
    assert (big["added"], big["after"]) == (30_000, (tree / "big.txt").stat().st_size)
    assert "text" not in huge
    assert mid["truncated"]
    assert mid["shown"] == 20_000
    assert mid["lines"] == 5_001
    for number, size in ((0, 30_001), (2, 5_001)):
        whole = page.file(offset, number)
        assert not whole["truncated"]
        assert whole["text"].count("\n") == size
    assert "over 2 MB" in page.file(offset, 1)["why"]
    assert page.file(offset, 9)["why"] == "there is no such file"


def test_a_step_without_a_snapshot_or_a_change_says_so(
    tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, tree, lambda root: None, lambda root: (root / "a").write_text("a"))
    page = Page(run)
    same = page.files(offset_of(run, "edit"))
    assert (same["format"], same["note"]) == ("none", "this step changed no file")
    assert same["lines"]["files"].endswith(".workspace.diff(None, 'edit')")
    assert page.files(0)["note"] == "only steps change files"
    notes = [e.offset for e in run.journal.entries if isinstance(e, Note)]
    assert "as the run found them" in page.files(notes[0])["note"]
    assert page.files(999)["note"] == "there is no such entry"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "needs the git program" in Page(run).files(offset_of(run, "edit#2"))["note"]
    monkeypatch.undo()
    shutil.rmtree(home(run.storage))
    assert "is not in" in Page(run).files(offset_of(run, "edit#2"))["note"]


def test_a_run_without_a_workspace_has_no_files(tmp_path: Path) -> None:
    @kassette(storage=LocalStorage(tmp_path))
    async def plain(ctx):
        await ctx.now()
        await ctx.step("one", lambda: 1)

    plain.start_sync(run_id="r")
    page = Page(kb.open(tmp_path)["r"])
    assert page.main["workspace"] is False
    assert page.files(2)["note"] == "this step has no snapshot of the files"


HOSTILE = [
    "<img src=x onerror=alert(1)>.txt", "a\u202egpj.exe", "new\nline", "tab\there", "\x1b[31mred",
    os.fsdecode(b"bad-\xff-bytes"), ":(top)magic", "-rf", "quote\"'.txt", "zero\u200bwidth",
]  # fmt: skip


def test_hostile_names_are_spelled_out_and_their_lines_run(tmp_path: Path, tree: Path) -> None:
    def edit(root: Path) -> None:
        for name in HOSTILE:
            (root / name).write_text("x\n")

    run = run_of(tmp_path, tree, edit)
    shown = Page(run).files(offset_of(run, "edit"))
    paths = {f["path"] for f in shown["files"]}
    assert len(paths) == len(HOSTILE)
    for path in paths:
        assert path.isprintable(), ascii(path)
        path.encode()
    assert {"a\\u202egpj.exe", "new\\nline", "\\x1b[31mred", "bad-\\udcff-bytes"} <= paths
    for file in shown["files"]:
        assert file["line"].isascii()
        ast.parse(file["line"], mode="eval")
        assert eval(file["line"]).endswith("+x\n")


def test_what_changed_between_two_sessions_is_not_a_steps_doing(tmp_path: Path, tree: Path) -> None:
    @kassette(
        storage=LocalStorage(tmp_path / "store"), workspace=Workspace(str(tree), differs="keep")
    )
    async def asks(ctx):
        await ctx.step("one", lambda: (ctx.workspace / "one").write_text("1\n"))
        await ctx.suspend("go")
        await ctx.step("two", lambda: (ctx.workspace / "two").write_text("2\n"))

    asks.start_sync(run_id="r")
    (tree / "mine").write_text("by hand\n")
    asks.resume_sync("r", "go", True)
    run = kb.open(tmp_path / "store")["r"]
    page = Page(run)
    two = page.files(offset_of(run, "two"))
    assert [f["path"] for f in two["files"]] == ["two"]
    line = two["lines"]["files"]
    assert ".workspace.difference(" in line
    assert "+2" in eval(line)
    assert "by hand" not in eval(line)
    note = [e.offset for e in run.journal.entries if isinstance(e, Note)][-1]
    between = page.files(note)
    assert [f["path"] for f in between["files"]] == ["mine"]
    assert "somebody else" in between["note"]


def test_a_commit_and_a_file_left_out_are_told(tmp_path: Path, tree: Path) -> None:
    git(tree, "init", "-q", "-b", "main")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "one")

    def edit(root: Path) -> None:
        (root / "large").write_bytes(b"x" * 5000)
        git(root, "commit", "-q", "--allow-empty", "-m", "two")

    run = run_of(tmp_path, tree, edit, max_file=4000)
    note = Page(run).files(offset_of(run, "edit"))["note"]
    assert "HEAD was" in note
    assert "left out: large" in note


def test_comparing_never_holds_up_the_panel_and_the_newest_comes_first(
    tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, tree, *[lambda root: (root / "n").write_text(str(time.time_ns()))] * 4)
    page, gate, order = Page(run), threading.Event(), list[str]()
    compared = patches

    def slow(snapshots: Any, before: str, after: str) -> Any:
        order.append(after)
        assert gate.wait(20)
        return compared(snapshots, before, after)

    monkeypatch.setattr(changes, "patches", slow)
    offsets = [offset_of(run, f"edit{n}") for n in ("", "#2", "#3", "#4")]
    for offset in offsets:
        page.panel.handle({"type": "value", "offset": offset, "part": "files"})
    page.panel.handle({"type": "value", "offset": offsets[0], "part": "entry"})
    assert page.sent[-1]["part"] == "entry", "answered while git is at work"
    gate.set()
    for _ in range(1000):
        if sum(m["type"] == "value" and m["part"] == "files" for m in page.sent) == 4:
            break
        time.sleep(0.01)
    asked = [run.journal.entries[o].workspace for o in offsets]
    assert order == [asked[0], asked[3], asked[2], asked[1]]
