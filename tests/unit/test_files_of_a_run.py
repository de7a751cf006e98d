"""A run's files are kept with its steps, a fork gets them back, and nobody else's are touched."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import LocalStorage, Workflow, kassette
from kassette_nb.entries import Step
from kassette_nb.files import Files
from kassette_nb.kept import home
from kassette_nb.occupied import Occupied
from kassette_nb.snapshots import Snapshots
from kassette_nb.tree import Tree
from tests import trees
from tests.trees import git, picture

Seen = tuple[dict[str, tuple[str, bytes]], dict[str, str]]


def editor(storage: Path, tree: Path, seed: int, seen: list[Seen]) -> Workflow:
    @kassette(storage=LocalStorage(storage), workspace=tree, name="editor")
    async def work(ctx, steps):
        chance = random.Random(seed)

        def one() -> str:
            return trees.edit(ctx.workspace, chance)

        for _ in range(steps):
            await ctx.step("edit", one)
            seen.append((picture(ctx.workspace), git_facts(ctx.workspace)))

    return work


def directory(run: kb.Run) -> Path:
    path = run.workspace.path
    assert path is not None
    return path


def git_facts(tree: Path) -> dict[str, str]:
    return {
        "head": git(tree, "rev-parse", "HEAD"),
        "branch": git(tree, "branch", "--show-current"),
        "log": git(tree, "log", "--oneline"),
    }


@pytest.mark.parametrize(
    "seed", [2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))]
)
def test_a_fork_at_every_step_has_the_files_byte_for_byte(tmp_path: Path, seed: int) -> None:
    trees.sample(tmp_path / "tree")
    first = picture(tmp_path / "tree")
    seen: list[Seen] = [(_without_ignored(first), git_facts(tmp_path / "tree"))]
    wf = editor(tmp_path / "store", tmp_path / "tree", seed, seen)
    assert wf.start_sync(30, run_id="run").status == "success"
    after = trees.repository(tmp_path / "tree")
    ids = ["edit", *(f"edit#{n}" for n in range(2, 31))]
    for number, step_id in enumerate(ids):
        made = asyncio.run(wf.fork("run", at=step_id))
        tree = home(wf.storage) / "trees" / made
        files, facts = seen[number]
        assert picture(tree) == _without_ignored(files), f"seed {seed}, before {step_id}"
        assert git_facts(tree) == facts
    assert trees.repository(tmp_path / "tree") == after


def _without_ignored(files: dict[str, tuple[str, bytes]]) -> dict[str, tuple[str, bytes]]:
    return {path: what for path, what in files.items() if path.split("/")[0] != "build"}


def counter(storage: Path, tree: Path, **options: Any) -> Workflow:
    """A workflow whose steps write one file each, n.txt."""

    @kassette(storage=LocalStorage(storage), workspace=kb.Workspace(str(tree), **options))
    async def count(ctx, steps, ask=False):
        def write(number: int) -> int:
            (ctx.workspace / f"{number}.txt").write_text(f"{number}\n")
            return number

        for number in range(steps):
            await ctx.step("write", write, number)
        if ask:
            await ctx.suspend("go-on")
            await ctx.step("write", write, steps)
        return sorted(p.name for p in ctx.workspace.iterdir())

    return count


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "tree"
    made.mkdir()
    (made / "a.txt").write_text("a\n")
    return made


def test_an_unchanged_tree_has_the_same_snapshot(tmp_path: Path, tree: Path) -> None:
    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tree)
    async def look(ctx):
        for _ in range(3):
            await ctx.step("look", lambda: sorted(p.name for p in ctx.workspace.iterdir()))
        await ctx.now()

    look.start_sync(run_id="run")
    entries = kb.open(tmp_path / "store")["run"].journal.entries
    steps = [e for e in entries if isinstance(e, Step)]
    assert [s.kind for s in steps] == ["step", "step", "step", "value"]
    assert len({s.workspace for s in steps[:3]}) == 1
    assert steps[3].workspace is None
    refs = Snapshots(home(look.storage)).run("for-each-ref", what="count").splitlines()
    assert len(refs) == 1
    log = Snapshots(home(look.storage)).run("rev-list", "--all", what="count").splitlines()
    assert len(log) == 1


def test_attempts_never_share_a_tree_and_can_be_forked_again(tmp_path: Path, tree: Path) -> None:
    wf = counter(tmp_path / "store", tree)
    wf.start_sync(2, run_id="run")
    one = asyncio.run(wf.fork("run", at="write#2"))
    two = asyncio.run(wf.fork("run", at="write#2"))
    assert wf.start_sync(run_id=one).value == ["0.txt", "1.txt", "a.txt"]
    three = asyncio.run(wf.fork(one, at="write"))
    runs = kb.open(tmp_path / "store")
    places = [directory(runs[run_id]) for run_id in ("run", one, two, three)]
    assert len(set(places)) == 4
    assert [sorted(p.name for p in place.iterdir()) for place in places] == [
        ["0.txt", "1.txt", "a.txt"],
        ["0.txt", "1.txt", "a.txt"],
        ["0.txt", "a.txt"],
        ["a.txt"],
    ]


def test_files_are_compared_and_checked_out_at_any_step(tmp_path: Path, tree: Path) -> None:
    wf = counter(tmp_path / "store", tree)
    wf.start_sync(2, run_id="run")
    files = kb.open(tmp_path / "store")["run"].workspace
    assert [str(change) for change in files.changes(None, "write#2")] == ["A 0.txt", "A 1.txt"]
    assert "+0\n" in files.diff(None, "write")
    assert "1.txt" not in files.diff(None, "write")
    out = files.checkout("write", tmp_path / "out")
    assert sorted(p.name for p in out.iterdir()) == ["0.txt", "a.txt"]
    with pytest.raises(kb.errors.WorkspaceError, match="has something in it"):
        files.checkout("write", tmp_path / "out")
    with pytest.raises(kb.errors.WorkspaceError, match=r"no step 'wrote' .* write, write#2"):
        files.diff(None, "wrote")
    assert isinstance(files, Files)


def test_a_session_that_finds_other_files_says_which_and_executes_nothing(
    tmp_path: Path, tree: Path
) -> None:
    wf = counter(tmp_path / "store", tree)
    wf.start_sync(1, True, run_id="run")
    before = (tmp_path / "store" / "run.jsonl").read_bytes()
    (tree / "0.txt").write_text("changed by hand\n")
    (tree / "new").mkdir()
    with pytest.raises(kb.errors.WorkspaceChangedError, match="2 differ") as caught:
        wf.resume_sync("run", "go-on", True)
    assert caught.value.changes == ("M 0.txt", "A new/")
    run = kb.open(tmp_path / "store")["run"]
    with pytest.raises(kb.errors.WorkspaceChangedError):
        run.approve()
    assert (tmp_path / "store" / "run.jsonl").read_bytes() == before
    assert run.workspace.restore().changes == ("M 0.txt", "A new/")
    assert wf.resume_sync("run", "go-on", True).value == ["0.txt", "1.txt", "a.txt"]


@pytest.mark.parametrize(("differs", "text"), [("keep", "by hand\n"), ("restore", "0\n")])
def test_a_session_keeps_or_restores_other_files_where_told_to(
    tmp_path: Path, tree: Path, differs: str, text: str
) -> None:
    wf = counter(tmp_path / "store", tree, differs=differs)
    wf.start_sync(1, True, run_id="run")
    (tree / "0.txt").write_text("by hand\n")
    assert wf.resume_sync("run", "go-on", True).status == "success"
    assert (tree / "0.txt").read_text() == text
    fork = asyncio.run(wf.fork("run", at="write#2"))
    made = directory(kb.open(tmp_path / "store")[fork])
    assert (made / "0.txt").read_text() == text


def test_what_is_not_kept_is_named(tmp_path: Path, tree: Path) -> None:
    (tree / ".gitignore").write_text("cache/\n")
    (tree / "cache").mkdir()
    (tree / "cache" / "x").write_text("x")
    wf = counter(tmp_path / "store", tree, max_file=1_000)
    (tree / "big.bin").write_bytes(b"0" * 2_000)
    (tree / "sub").mkdir()
    (tree / "sub" / os.fsdecode(b"big-\xff.bin")).write_bytes(b"0" * 2_000)
    wf.start_sync(1, run_id="run")
    run = kb.open(tmp_path / "store")["run"]
    assert b"big.bin" in run.journal.line(1)
    assert b"big-\\\\udcff.bin" in run.journal.line(1)
    assert b"larger than 1,000 bytes" in run.journal.line(1)
    kept = Snapshots(home(wf.storage)).extras(run.workspace.commit("write"))
    assert kept.ignored == ("cache/",)
    assert sorted(p.name for p in run.workspace.checkout("write", tmp_path / "out").iterdir()) == [
        ".gitignore",
        "0.txt",
        "a.txt",
    ]
    all_of_it = counter(tmp_path / "store", tree, ignored=True)
    all_of_it.start_sync(1, run_id="all")
    run = kb.open(tmp_path / "store")["all"]
    assert (run.workspace.checkout("write", tmp_path / "all") / "cache" / "x").exists()


def test_a_file_that_is_small_enough_by_now_is_kept(tmp_path: Path, tree: Path) -> None:
    (tree / "big.bin").write_bytes(b"0" * 2_000)

    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=kb.Workspace(tree, max_file=1000))
    async def shrinking(ctx):
        await ctx.step("one", lambda: 1)
        await ctx.step("shrink", lambda: (ctx.workspace / "big.bin").write_bytes(b"small"))
        await ctx.step("two", lambda: 2)

    shrinking.start_sync(run_id="run")
    run = kb.open(tmp_path / "store")["run"]
    assert [str(change) for change in run.workspace.changes("one", "shrink")] == ["A big.bin"]
    assert (directory(run.fork(at="two")) / "big.bin").read_bytes() == b"small"


def test_journals_inside_the_tree_are_not_part_of_it(tmp_path: Path, tree: Path) -> None:
    wf = counter(tree / "a [strange] name", tree)
    wf.start_sync(1, run_id="run")
    out = kb.open(wf.storage)["run"].workspace.checkout("write", tmp_path / "out")
    assert sorted(p.name for p in out.iterdir()) == ["0.txt", "a.txt"]


def test_journals_two_levels_inside_the_tree_are_not_part_of_it(tmp_path: Path, tree: Path) -> None:
    (tree / "data").mkdir()
    (tree / "new" / "hollow").mkdir(parents=True)
    wf = counter(tree / "data" / "store", tree)
    wf.start_sync(1, True, run_id="run")
    run = kb.open(wf.storage)["run"]
    kept = Snapshots(home(wf.storage)).extras(run.workspace.commit("write"))
    assert kept.empty == ("data", "new/hollow")
    made = directory(run.fork(at="write"))
    assert [*(made / "data").iterdir()] == []
    assert wf.resume_sync("run", "go-on", True).status == "success"


def test_a_step_whose_files_could_not_be_kept_is_recorded_and_no_fork_point(
    tmp_path: Path, tree: Path
) -> None:
    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tree)
    async def work(ctx):
        def act(number: int) -> None:
            kept = home(work.storage) / "snapshots.git"
            if number == 1:
                kept.rename(kept.with_name("gone"))
            elif number == 2:
                kept.with_name("gone").rename(kept)

        for number in range(4):
            await ctx.step("act", act, number)

    assert work.start_sync(run_id="run").status == "success"
    run = kb.open(tmp_path / "store")["run"]
    assert run["act#2"].entry.get("workspace") is None
    notes = run.entries().query("type == 'note'")
    assert len(notes) == 2
    listed = sorted(p.name for p in (tmp_path / "store").iterdir())
    with pytest.raises(kb.errors.WorkspaceError, match=r"Use at='act#2'.*or at='act#4'"):
        run.fork(at="act#3")
    assert sorted(p.name for p in (tmp_path / "store").iterdir()) == listed
    assert directory(run.fork(at="act#2")).is_dir()
    assert directory(run.fork(at="act#4")).is_dir()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (".git", b"\xff\xfe binary"),
        (".git", b"gitdir: \xff\0"),
        (".git/HEAD", b"\xff\xfe binary"),
        (".git/HEAD", b"ref: refs/heads/\xff"),
        (".git/HEAD", b"ref: \0"),
        (".git/commondir", b"\0"),
    ],
)
def test_a_step_that_writes_anything_where_git_keeps_its_own_is_recorded(
    tmp_path: Path, tree: Path, name: str, content: bytes
) -> None:
    ran = 0

    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tree)
    async def work(ctx):
        def act() -> None:
            nonlocal ran
            ran += 1
            place = ctx.workspace / "sub" / name
            place.parent.mkdir(parents=True)
            if place.name != ".git":
                (place.parent / "HEAD").write_text("ref: refs/heads/main\n")
            place.write_bytes(content)

        await ctx.step("act", act)
        await ctx.suspend("go-on")

    assert work.start_sync(run_id="run").status == "suspended"
    assert kb.open(tmp_path / "store")["run"]["act"].entry["stepId"] == "act"
    with contextlib.suppress(kb.errors.WorkspaceError):
        assert work.resume_sync("run", "go-on", True).status == "success"
    assert ran == 1


def test_a_step_is_recorded_whatever_goes_wrong_with_its_files(
    tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tree)
    async def work(ctx):
        def fail(*_: object) -> None:
            raise RecursionError

        await ctx.step("act", lambda: monkeypatch.setattr(Tree, "_take", fail))

    assert work.start_sync(run_id="run").status == "success"
    assert b"RecursionError()" in kb.open(tmp_path / "store")["run"].journal.data


def test_bad_workspaces_are_refused_before_anything_runs(
    tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = counter(tmp_path / "store", tmp_path / "gone")
    with pytest.raises(kb.errors.WorkspaceError, match="does not exist; nothing was executed"):
        gone.start_sync(1)
    wf = counter(tmp_path / "store", tree)
    from kassette_nb import git as program

    program.check_version.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing-here"))
    with pytest.raises(kb.errors.WorkspaceError, match="needs the git program"):
        wf.start_sync(1)
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho git version 2.17.1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent))
    with pytest.raises(kb.errors.WorkspaceError, match=r"needs git 2\.36 or newer"):
        wf.start_sync(1)
    monkeypatch.undo()
    assert not list((tmp_path / "store").glob("*.jsonl"))


def test_a_missing_git_is_not_taken_for_missing_snapshots(
    tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wf = counter(tmp_path / "store", tree)
    wf.start_sync(2, run_id="run")
    run = kb.open(tmp_path / "store")["run"]
    monkeypatch.setenv("PATH", str(tmp_path / "nothing-here"))
    for ask in (
        lambda: run.workspace.diff(None, "write"),
        lambda: run.workspace.changes(None, "write"),
        lambda: run.workspace.checkout("write", tmp_path / "out"),
        lambda: run.workspace.restore(),
        lambda: run.fork(at="write"),
    ):
        with pytest.raises(kb.errors.WorkspaceError, match="needs the git program"):
            ask()
    assert [p.name for p in (tmp_path / "store").glob("*.jsonl")] == ["run.jsonl"]


def test_a_workflow_without_a_workspace_is_told_so(tmp_path: Path) -> None:
    @kassette(storage=LocalStorage(tmp_path))
    async def bare(ctx):
        return str(ctx.workspace)

    with pytest.raises(kb.errors.WorkspaceError, match="has no workspace: declare one"):
        bare.start_sync(run_id="run")


def test_a_fork_whose_snapshots_are_gone_is_refused(tmp_path: Path, tree: Path) -> None:
    wf = counter(tmp_path / "store", tree)
    wf.start_sync(2, run_id="run")
    kept = home(wf.storage) / "snapshots.git"
    kept.rename(kept.with_name("elsewhere"))
    with pytest.raises(kb.errors.WorkspaceError, match=r"is not in .*snapshots\.git"):
        asyncio.run(wf.fork("run", at="write"))
    assert [p.name for p in (tmp_path / "store").glob("*.jsonl")] == ["run.jsonl"]


def test_a_tree_that_is_gone_still_forks_with_its_commits(tmp_path: Path) -> None:
    trees.sample(tmp_path / "tree")
    wf = counter(tmp_path / "store", tmp_path / "tree")
    wf.start_sync(1, run_id="run")
    head = git(tmp_path / "tree", "rev-parse", "HEAD")
    (tmp_path / "tree").rename(tmp_path / "away")
    made = directory(kb.open(wf.storage)[asyncio.run(wf.fork("run", at="write"))])
    assert git(made, "rev-parse", "HEAD") == head
    assert git(made, "branch", "--show-current") == "work\n"


def test_a_run_under_a_name_that_no_ref_can_have(tmp_path: Path, tree: Path) -> None:
    wf = counter(tmp_path / "store", tree)
    for run_id in ("a..b", "c.lock", "d."):
        assert wf.start_sync(1, run_id=run_id).status == "success"


def test_a_snapshot_is_seen_within_the_same_second(tmp_path: Path, tree: Path) -> None:
    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tree)
    async def quick(ctx):
        for number in range(8):
            await ctx.step("write", (ctx.workspace / "same").write_text, f"{number}")

    quick.start_sync(run_id="run")
    steps = kb.open(tmp_path / "store")["run"].fold().steps
    assert len({step.workspace for step in steps}) == 8


def test_many_files_at_once_are_kept_byte_for_byte(tmp_path: Path, tree: Path) -> None:
    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tree)
    async def fill(ctx):
        def write() -> None:
            for number in range(700):
                path = ctx.workspace / f"d{number % 9}" / f"[{number}]*.txt"
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(b"%d\r\n" % number)
            (ctx.workspace / "d1" / "link").symlink_to("../a.txt")

        await ctx.step("write", write)
        await ctx.step("clear", lambda: [p.unlink() for p in ctx.workspace.glob("d3/*")] and None)

    fill.start_sync(run_id="run")
    run = kb.open(tmp_path / "store")["run"]
    assert picture(run.workspace.checkout("clear", tmp_path / "after")) == picture(tree)
    assert len(picture(run.workspace.checkout("write", tmp_path / "before"))) == 702


def test_a_repository_without_a_commit_and_a_detached_head_are_given_back(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    git(tree, "init", "-q", "-b", "fresh")

    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tree)
    async def begin(ctx):
        def commit() -> None:
            git(ctx.workspace, "commit", "-q", "--allow-empty", "-m", "first")

        await ctx.step("write", (ctx.workspace / "a.txt").write_text, "a")
        await ctx.step("commit", commit)
        await ctx.step("detach", lambda: git(ctx.workspace, "checkout", "-q", "--detach"))
        await ctx.step("amend", lambda: git(
            ctx.workspace, "commit", "-q", "--amend", "--allow-empty", "-m", "second"))  # fmt: skip

    begin.start_sync(run_id="run")
    files = kb.open(tmp_path / "store")["run"].workspace
    unborn = files.checkout("write", tmp_path / "unborn")
    assert "On branch fresh\n\nNo commits yet" in git(unborn, "status")
    first = files.checkout("commit", tmp_path / "first")
    assert git(first, "log", "--format=%s") == "first\n"
    assert git(first, "branch", "--show-current") == "fresh\n"
    # The commit that was replaced is not in any branch of the tree any more.
    detached = files.checkout("detach", tmp_path / "detached")
    assert git(detached, "log", "--format=%s") == "first\n"
    assert git(detached, "branch", "--show-current") == ""
    assert git(files.checkout("amend", tmp_path / "amend"), "log", "--format=%s") == "second\n"


def test_a_snapshot_that_failed_half_way_is_made_up_for_by_the_next(
    tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_git, full = Snapshots.run, [False]

    def failing(self: Snapshots, *args: str, **kwargs: Any) -> bytes:
        if full[0] and args[0] == "commit-tree":
            raise kb.errors.WorkspaceError("no space left on device")
        return run_git(self, *args, **kwargs)

    monkeypatch.setattr(Snapshots, "run", failing)

    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tree)
    async def work(ctx):
        def write(number: int) -> None:
            full[0] = number == 1
            (ctx.workspace / f"{number}.txt").write_text("x")

        for number in range(2):
            await ctx.step("write", write, number)
        await ctx.step("free", lambda: full.__setitem__(0, False))

    work.start_sync(run_id="run")
    files = kb.open(tmp_path / "store")["run"].workspace
    assert files.steps() == ["write", "free"]
    out = files.checkout("free", tmp_path / "out")
    assert sorted(p.name for p in out.iterdir()) == ["0.txt", "1.txt", "a.txt"]


def test_what_a_killed_git_left_locked_stops_no_later_session(tmp_path: Path, tree: Path) -> None:
    wf = counter(tmp_path / "store", tree)
    wf.start_sync(1, True, run_id="run")
    kept = home(wf.storage)
    (tree / "new.txt").write_text("new\n")
    # It dies before its first line, so the next one has its number.
    with pytest.raises(kb.errors.WorkspaceChangedError):
        wf.resume_sync("run", "go-on", True)
    left = [place for place in (kept / "index" / "run").iterdir() if place.name.startswith("2")]
    refs = list((kept / "snapshots.git" / "refs" / "runs" / "run").iterdir())
    for place in [*left, *refs]:
        (place / "root.lock" if place.is_dir() else place.with_name(f"{place.name}.lock")).touch()
    assert left
    wf = counter(tmp_path / "store", tree, differs="keep")
    assert wf.resume_sync("run", "go-on", True).status == "success"
    assert b'"error"' not in kb.open(wf.storage)["run"].journal.data
    assert len(list((kept / "index" / "run").iterdir())) <= 2


def test_an_ignored_file_that_git_tracks_is_kept_also_when_it_comes_back(tmp_path: Path) -> None:
    trees.sample(tmp_path / "tree")

    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tmp_path / "tree")
    async def work(ctx):
        log = ctx.workspace / "kept.log"
        await ctx.step("delete", log.unlink)
        await ctx.step("write", log.write_text, "again")
        await ctx.step("change", log.write_text, "and again")

    work.start_sync(run_id="run")
    files = kb.open(tmp_path / "store")["run"].workspace
    assert [str(c) for c in files.changes(None, "delete")] == ["D kept.log"]
    assert [str(c) for c in files.changes("delete", "write")] == ["A kept.log"]
    assert [str(c) for c in files.changes("write", "change")] == ["M kept.log"]


def test_a_directory_that_became_a_link_is_kept_as_one(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for place in (tree / "deep", tmp_path / "other"):
        place.mkdir(parents=True)
        (place / "x").write_text(place.name)

    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tree)
    async def linking(ctx):
        def link() -> None:
            (ctx.workspace / "deep" / "x").unlink()
            (ctx.workspace / "deep").rmdir()
            (ctx.workspace / "deep").symlink_to(tmp_path / "other")

        await ctx.step("link", link)
        await ctx.step("two", lambda: 2)

    linking.start_sync(run_id="run")
    run = kb.open(tmp_path / "store")["run"]
    assert [str(c) for c in run.workspace.changes(None, "link")] == ["A deep", "D deep/x"]
    made = directory(run.fork(at="two"))
    assert os.readlink(made / "deep") == str(tmp_path / "other")
    assert (tmp_path / "other" / "x").read_text() == "other"


def test_a_directory_that_became_a_repository_is_kept_as_one(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub" / "deep").mkdir(parents=True)
    for name in ("x", "sub/f", "sub/deep/g"):
        (tree / name).write_text("1")

    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tree, name="beginning")
    async def beginning(ctx):
        def begin() -> None:
            git(ctx.workspace / "sub", "init", "-q", "-b", "main")
            git(ctx.workspace / "sub", "add", "-A")
            git(ctx.workspace / "sub", "commit", "-q", "-m", "the agent's")

        await ctx.step("begin", begin)
        await ctx.step("edit", lambda: (ctx.workspace / "sub" / "f").write_text("2"))
        await ctx.suspend("go-on")

    beginning.start_sync(run_id="run")
    run = kb.open(tmp_path / "store")["run"]
    made = directory(run.fork(at="edit"))
    assert git(made / "sub", "log", "--format=%s") == "the agent's\n"
    assert git(made / "sub", "status", "--porcelain") == ""
    assert picture(made) == {**picture(tree), "sub/f": ("-", b"1")}
    assert [str(c) for c in run.workspace.changes("begin", "edit")] == ["M sub/f"]
    run.workspace.restore(run.workspace.commit())
    assert not (tree / "sub" / ".git").exists()
    assert (tree / "sub" / "f").read_text() == "1"
    done = run.workspace.restore()
    assert (tree / "sub" / "f").read_text() == "2"
    assert git(tree / "sub", "log", "--format=%s") == "the agent's\n"
    assert done.aside is None
    assert beginning.resume_sync("run", "go-on", True).status == "success"


def test_what_only_looks_like_a_repository_is_the_same_at_every_look(tmp_path: Path) -> None:
    place = tmp_path / "tree" / "new" / "sub"
    (place / ".git").mkdir(parents=True)
    (place / "f").write_text("1")
    (place.parent / "g").write_text("1")

    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tmp_path / "tree")
    async def looking(ctx):
        await ctx.step("one", lambda: 1)
        await ctx.step("two", lambda: 2)

    looking.start_sync(run_id="run")
    files = kb.open(tmp_path / "store")["run"].workspace
    assert files.commit() == files.commit("one") == files.commit("two")
    assert [*Snapshots(home(looking.storage)).extras(files.commit()).nested] == ["new/sub"]


def test_two_runs_are_never_at_work_in_one_directory(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()

    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tree)
    async def slow(ctx: kb.Context, other: str | None = None) -> str:
        if other is not None:
            with pytest.raises(kb.errors.WorkspaceError, match=f"run {ctx.run_id!r} is at work in"):
                await slow.start(run_id=other)
            assert other not in kb.open(tmp_path / "store"), "nothing was begun"
        return str(await ctx.step("write", (ctx.workspace / "a").write_text, "1"))

    async def scenario() -> None:
        assert (await slow.start("second", run_id="first")).status == "success"
        assert (await slow.start(run_id="second")).status == "success", "one after the other may"
        elsewhere = os.open(tree, os.O_RDONLY)
        fcntl.flock(elsewhere, fcntl.LOCK_EX)  # as a session of another process would
        with pytest.raises(kb.errors.WorkspaceError, match="a run of another process is at work"):
            await slow.start(run_id="third")
        os.close(elsewhere)
        assert (await slow.start(run_id="third")).status == "success"

    asyncio.run(scenario())


def test_a_child_process_does_not_keep_a_directory_from_others(tmp_path: Path) -> None:
    first = Occupied(tmp_path, "a")
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"1")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    first.release()
    Occupied(tmp_path, "b").release()
    os.write(done[1], b"1")
    os.waitpid(child, 0)
    for end in (*ready, *done):
        os.close(end)
