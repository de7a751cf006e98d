"""Files are kept and forked where a directory is no repository of its own, or not where it was."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import LocalStorage, Workflow, kassette
from kassette_nb.places import home
from tests.trees import git, repository


def writer(storage: Path, tree: Path | str, **options: Any) -> Workflow:
    """A workflow of three steps, each of which appends its number to a file."""

    @kassette(storage=LocalStorage(storage), workspace=kb.Workspace(tree, **options), name="writer")
    async def work(ctx: kb.Context, ask: bool = False) -> str:
        def write(number: int) -> None:
            with (ctx.workspace / "log.txt").open("a") as log:
                log.write(f"{number}\n")

        for number in range(3):
            await ctx.step("write", write, number)
        if ask:
            await ctx.suspend("go-on")
            await ctx.step("write", write, 3)
        return (ctx.workspace / "log.txt").read_text()

    return work


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a package below its root, something staged, and rules of what to ignore."""
    made = tmp_path / "project"
    (made / "packages" / "app").mkdir(parents=True)
    (made / ".gitignore").write_text(
        "node_modules\n/packages/*/dist\n**/cache/\n*.tmp\n!keep.tmp\n.kassette\n/app/other\n"
        "pack[^b]ges/app/caret\n"
    )
    (made / "packages" / ".gitignore").write_text("app/local\nkept.pyc\n")
    (made / "packages" / "app" / "main.py").write_text("x = 1\n")
    git(made, "init", "-q", "-b", "main")
    git(made, "add", "-A")
    git(made, "commit", "-q", "-m", "first")
    (made / ".git" / "info" / "exclude").write_text("*.secret\n*.pyc\n")
    (made / "staged.txt").write_text("the user's\n")
    git(made, "add", "staged.txt")
    return made


def test_git_in_a_fork_without_a_repository_never_finds_the_users(project: Path) -> None:
    tree = project / "packages" / "app"
    wf = writer(project / ".kassette", tree)
    wf.start_sync(run_id="a")
    with pytest.warns(UserWarning, match=r"only a part \(packages/app\) of its git repository"):
        made = asyncio.run(wf.fork("a", at="write#2"))
    before = repository(project)
    fork = home(wf.storage) / "trees" / made
    assert (fork / "main.py").exists()
    for args in (
        ["commit", "-am", "from the fork"], ["add", "-A"], ["stash"], ["status"],
        ["-C", "..", "commit", "--allow-empty", "-m", "x"], ["checkout", "-b", "b"],
    ):  # fmt: skip
        for variables in ({}, {"GIT_DISCOVERY_ACROSS_FILESYSTEM": "1"}):
            done = subprocess.run(
                ["git", *args], cwd=fork, env={"PATH": "/usr/bin:/bin", **variables},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 128, args
            assert "this-fork-has-no-git-repository" in done.stderr
    assert repository(project) == before
    assert wf.start_sync(run_id=made).status == "success"
    git(fork, "init", "-q")  # one of its own it may have
    git(fork, "commit", "-q", "--allow-empty", "-m", "mine")
    assert repository(project) == before


def test_a_fence_is_made_for_a_fork_that_was_there_before_the_repository(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    wf = writer(tmp_path / "project" / "store", tmp_path / "tree")
    wf.start_sync(run_id="a")
    made = asyncio.run(wf.fork("a", at="write#2"))
    fork = home(wf.storage) / "trees" / made
    assert not (fork.parent / ".git").exists(), "what needs no repository works without one"
    git(tmp_path / "project", "init", "-q")
    assert wf.start_sync(run_id=made).status == "success"
    with pytest.raises(subprocess.CalledProcessError):
        git(fork, "status")


def test_what_the_repository_above_ignores_is_not_kept_nor_in_a_fork(
    project: Path, tmp_path: Path
) -> None:
    tree = project / "packages" / "app"
    wf = writer(project / ".kassette", tree)

    def litter(place: Path) -> None:
        for name in (
            "node_modules/x.js", "deep/node_modules/y.js", "dist/out", "deep/cache/z", "a.tmp",
            "keep.tmp", "local/conf", "b.secret", "kept.pyc", "x.pyc", "other/o", "caret/c",
            "deep/dist/kept", "packages/app/local/kept",
        ):  # fmt: skip
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")

    litter(tree)
    said = git(tree, "ls-files", "-o", "-c", "--exclude-standard")
    wf.start_sync(run_id="a")
    files = kb.open(wf.storage)["a"].workspace
    out = files.checkout(None, tmp_path / "out")
    kept = {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}
    assert kept == set(said.split())
    assert {"keep.tmp", "other/o", "deep/dist/kept"} <= kept
    assert not {"node_modules/x.js", "dist/out", "b.secret", "x.pyc", "caret/c"} & kept
    with pytest.warns(UserWarning, match="only a part"):
        made = asyncio.run(wf.fork("a", at="write#2"))
    place = kb.open(wf.storage)[made].workspace.path
    assert place is not None
    litter(place)
    wf.start_sync(run_id=made)
    out = kb.open(wf.storage)[made].workspace.checkout("write#3", tmp_path / "fork")
    assert not [p for p in out.rglob("*") if "node_modules" in p.parts or p.suffix == ".secret"]
    noted = b"".join(kb.open(wf.storage)["a"].journal.line(n) for n in (1, 2))
    assert b'"within":"packages/app"' in noted


def test_a_directory_that_its_repository_ignores_is_kept_all_the_same(project: Path) -> None:
    tree = project / "node_modules" / "sandbox"
    tree.mkdir(parents=True)
    (tree / "a.txt").write_text("a")
    wf = writer(project / ".kassette", tree)
    wf.start_sync(run_id="a")
    changes = kb.open(wf.storage)["a"].workspace.changes(None, "write")
    assert [str(change) for change in changes] == ["A log.txt"]


def test_what_cannot_be_a_workspace_is_refused_where_it_is_written() -> None:
    assert kb.Workspace(Path("tree")).path == "tree"
    for bad in ({"differs": "Keep"}, {"max_file": -1}, {"max_file": "5MB"}, {"ignored": "no"}):
        ((name, value),) = bad.items()
        with pytest.raises(kb.errors.WorkspaceError, match=f"{name}={value!r} is"):
            kb.Workspace("tree", **bad)
    for path in ("", " ", None, 3):
        with pytest.raises(kb.errors.WorkspaceError, match=f"workspace={path!r} "):
            kb.Workspace(path)  # type: ignore[arg-type]
    with pytest.raises(kb.errors.WorkspaceError, match="names no directory"):
        kassette(workspace="")


def test_a_file_and_what_nobody_can_want_to_be_kept_are_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("HOME", str(tmp_path))
    for place, said in (
        (tmp_path / "file", "is a file, not a directory"),
        (Path("/"), "is the whole file system"),
        (tmp_path, "is your home directory"),
    ):
        with pytest.raises(kb.errors.WorkspaceError, match=said):
            writer(tmp_path / "store", place).start_sync(run_id="a")
    assert not list((tmp_path / "store").glob("*.jsonl"))
