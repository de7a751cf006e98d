"""Putting files back loses nothing: what no snapshot has is moved, and the run says where."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import LocalStorage, Workflow, kassette
from kassette_nb.kept import home
from tests.trees import git


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "tree"
    made.mkdir()
    (made / "a.txt").write_text("a\n")
    return made


def asking(tree: Path, **options: Any) -> Workflow:
    """A workflow that asks between two steps."""
    store = LocalStorage(tree.parent / "store")

    @kassette(storage=store, workspace=kb.Workspace(tree, **options), name="asking")
    async def work(ctx: kb.Context) -> None:
        await ctx.step("one", lambda: 1)
        await ctx.suspend("go-on")
        await ctx.step("two", lambda: 2)

    return work


def files(wf: Workflow, run_id: str = "run") -> Any:
    return kb.open(wf.storage)[run_id].workspace


def test_a_file_that_became_too_large_is_moved_before_the_small_one_is_put_back(
    tree: Path,
) -> None:
    (tree / "data.bin").write_bytes(b"small")
    wf = asking(tree, max_file=1_000)
    wf.start_sync(run_id="run")
    (tree / "data.bin").write_bytes(b"precious" * 1_000)
    done = files(wf).restore()
    assert (tree / "data.bin").read_bytes() == b"small"
    assert done.aside.moved == ["data.bin"]
    assert (done.aside.place / "data.bin").read_bytes() == b"precious" * 1_000
    said = f"what no snapshot has (data.bin) was moved to {done.aside.place}"
    assert str(done).splitlines()[-1] == said
    assert files(wf).restore().aside is None, "nothing is in the way any more"


def test_what_is_ignored_is_moved_out_of_the_way(tree: Path) -> None:
    (tree / "out").write_text("a file at first")
    (tree / "deep").mkdir()
    (tree / "deep" / "x").write_text("x")
    (tree / "hollow").mkdir()
    (tree / "inner").mkdir()
    git(tree / "inner", "init", "-q")
    (tree / "inner" / "f").write_text("f")
    wf = asking(tree)
    wf.start_sync(run_id="run")
    for name in ("out", "deep/x"):
        (tree / name).unlink()
    for name in ("deep", "hollow"):
        (tree / name).rmdir()
    (tree / "inner").rename(tree.parent / "elsewhere")
    (tree / "out").mkdir()
    (tree / "out" / "kept.txt").write_text("in the snapshot")
    (tree / "out" / "weights.bin").write_text("precious")
    (tree / "deep").symlink_to(tree.parent)
    (tree / "hollow").write_text("precious, too")
    (tree / "inner").mkdir()
    (tree / "inner" / "f").write_text("mine")
    (tree / "fine.log").write_text("in nobody's way")
    (tree / ".gitignore").write_text("out/*.bin\ndeep\nhollow\ninner/\n*.log\n")
    done = files(wf).restore()
    assert sorted(done.aside.moved) == ["deep", "hollow", "inner", "out"]
    place = done.aside.place
    assert (place / "out" / "weights.bin").read_text() == "precious"
    assert os.readlink(place / "deep") == str(tree.parent)
    assert (place / "hollow").read_text() == "precious, too"
    assert (place / "inner" / "f").read_text() == "mine"
    assert (tree / "out").read_text() == "a file at first"
    assert (tree / "deep" / "x").read_text() == "x"
    assert (tree / "hollow").is_dir()
    assert (tree / "inner" / "f").read_text() == "f"
    assert (tree / "fine.log").exists()
    (tree / "out").unlink()
    assert files(wf).restore(done.kept).aside.moved == ["inner"], "its repository is in no snapshot"
    assert (tree / "out" / "kept.txt").read_text() == "in the snapshot"


def test_a_fork_that_died_names_where_its_large_file_went(tree: Path) -> None:
    (tree / "data.bin").write_bytes(b"small")
    dies = True

    @kassette(
        storage=LocalStorage(tree.parent / "store"), workspace=kb.Workspace(tree, max_file=1_000)
    )
    async def growing(ctx: kb.Context) -> None:
        def grow() -> None:
            (ctx.workspace / "data.bin").write_bytes(b"half" * 1_000)
            if dies:
                raise KeyboardInterrupt

        await ctx.step("one", lambda: 1)
        await ctx.step("grow", grow)

    dies = False
    growing.start_sync(run_id="run")
    made = asyncio.run(growing.fork("run", at="grow"))
    place = home(growing.storage) / "trees" / made
    (place / "data.bin").write_bytes(b"small")
    dies = True
    with pytest.raises(KeyboardInterrupt):
        growing.start_sync(run_id=made)
    dies = False
    assert growing.start_sync(run_id=made).status == "success"
    lines = kb.open(growing.storage)[made].journal.data.split(b"\n")
    told = [json.loads(line)["data"] for line in lines if b'"replaced"' in line]
    assert (Path(told[0]["aside"]) / "data.bin").read_bytes() == b"half" * 1_000


def test_runs_that_are_kept_where_a_file_was_stay_there(tree: Path) -> None:
    (tree / "store").write_text("a file at first")
    wf = asking(tree)
    wf.start_sync(run_id="run")
    before = files(wf).commit()
    (tree / "store").unlink()
    (tree.parent / "store").rename(tree / "store")
    moved = kb.open(tree / "store")["run"].workspace
    with pytest.raises(kb.errors.WorkspaceError, match="the runs themselves are in"):
        moved.restore(before)
    assert (tree / "store" / "run.jsonl").exists()


@pytest.mark.parametrize("way", ["resume", "approve", "go on", "recover"])
def test_a_note_names_what_was_replaced_whoever_lets_the_run_go_on(tree: Path, way: str) -> None:
    wf = asking(tree, differs="restore")
    wf.start_sync(run_id="run")
    run = kb.open(wf.storage)["run"]
    if way in ("go on", "recover"):
        run.approve(start=False)
    (tree / "a.txt").write_text("by hand\n")

    async def act() -> None:
        if way == "resume":
            await wf.resume("run", "go-on", True)
        elif way == "approve":
            run.approve()
        elif way == "go on":
            run.resume()
        else:
            kb.open(wf.storage).recover()
        if run.session is not None:
            await run.session.wait()

    asyncio.run(act())
    assert run.fold().status == "completed"
    lines = run.journal.data.split(b"\n")
    (told,) = [json.loads(line)["data"] for line in lines if b'"replaced"' in line]
    out = run.workspace.checkout(None, tree.parent / "out", snapshot=told["replaced"])
    assert (out / "a.txt").read_text() == "by hand\n"
    assert (tree / "a.txt").read_text() == "a\n"


def test_files_that_were_looked_at_earlier_are_put_back_to_what_is_recorded_now(
    tree: Path,
) -> None:
    store = LocalStorage(tree.parent / "store")

    @kassette(storage=store, workspace=tree)
    async def work(ctx: kb.Context) -> None:
        def write(text: str) -> None:
            (ctx.workspace / "a.txt").write_text(text)

        await ctx.step("one", write, "one")
        await ctx.suspend("go-on")
        await ctx.step("two", write, "two")
        await ctx.suspend("and-on")

    work.start_sync(run_id="run")
    seen = files(work)
    work.resume_sync("run", "go-on", True)
    (tree / "a.txt").write_text("by hand")
    seen.restore()
    assert (tree / "a.txt").read_text() == "two"
    assert work.resume_sync("run", "and-on", True).status == "success"
