"""Files are kept and forked where a directory is no repository of its own, or not where it was."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import LocalStorage, Workflow, kassette, modes
from kassette_nb.kept import home
from kassette_nb.workflow import registry
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


def mortal(storage: Path, tree: Path, **options: Any) -> Workflow:
    """A workflow whose second step writes and is killed before it is recorded, if told to."""

    @kassette(storage=LocalStorage(storage), workspace=kb.Workspace(tree, **options), name="mortal")
    async def work(ctx: kb.Context) -> str:
        def write(number: int) -> None:
            with (ctx.workspace / "log.txt").open("a") as log:
                log.write(f"{number}\n")
            if number and "KASSETTE_TEST_DIES" in os.environ:
                os.kill(os.getpid(), signal.SIGKILL)

        for number in range(3):
            await ctx.step("write", write, number)
        return (ctx.workspace / "log.txt").read_text()

    return work


class Killed:
    """An executor whose every worker is a process that is killed inside of a step."""

    def __init__(self, storage: Path, tree: Path) -> None:
        self._paths = repr(str(storage)), repr(str(tree))

    def submit(self, fn: Any, /, *args: Any) -> Future[int]:
        if fn is abs:  # asked beforehand whether it takes work
            return Future()
        storage, tree = self._paths
        _, run_id = args
        code = (
            f"from {mortal.__module__} import mortal\n"
            f"mortal({storage}, {tree}).start_sync(run_id={run_id!r})"
        )
        done: Future[int] = Future()
        env = {**os.environ, "KASSETTE_TEST_DIES": "1"}
        done.set_result(
            subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode
        )
        return done


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


def test_attempts_killed_behind_a_write_are_taken_up_again(tmp_path: Path) -> None:
    tree, store = tmp_path / "tree", tmp_path / "store"
    tree.mkdir()
    git(tree, "init", "-q")
    wf = mortal(store, tree)
    wf.start_sync(run_id="a")
    attempts = wf.fork_many("a", at="write#2", n=2, via=Killed(store, tree))
    attempts.wait()
    runs = kb.open(store)
    for run_id in attempts.run_ids:
        path = runs[run_id].workspace.path
        assert path is not None
        assert (path / "log.txt").read_text() == "0\n1\n", "written, not recorded"
    strict = mortal(store, tree, differs="refuse")
    (refused, other) = asyncio.run(strict.recover())
    for each in (refused, other):
        assert isinstance(each.error, kb.errors.WorkspaceChangedError)
        assert "differs='restore'" in str(each.error)
    wf = mortal(store, tree)
    assert asyncio.run(wf.recover())[0].result is not None
    attempts = wf.fork_many("a", at="write#2", n=1, via=Killed(store, tree))
    attempts.wait()
    assert attempts.reap() == attempts.run_ids
    assert attempts.wait()[0].result is not None
    for run_id in (refused.run_id, other.run_id, *attempts.run_ids):
        assert wf.start_sync(run_id=run_id).value == "0\n1\n2\n"
        notes = [line for line in runs[run_id].journal.data.split(b"\n") if b'"replaced"' in line]
        assert len(notes) == 1
        kept = json.loads(notes[0])["data"]["replaced"]
        out = runs[run_id].workspace.checkout(None, tmp_path / run_id, snapshot=kept)
        assert (out / "log.txt").read_text() == "0\n1\n"


def test_what_a_person_changed_in_a_fork_is_not_put_back(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    wf = writer(tmp_path / "store", tmp_path / "tree")
    wf.start_sync(True, run_id="a")
    made = asyncio.run(wf.fork("a", at="write#2"))
    log = home(wf.storage) / "trees" / made / "log.txt"
    log.write_text("before the first session\n")
    with pytest.raises(kb.errors.WorkspaceChangedError):
        wf.start_sync(run_id=made)
    kb.open(wf.storage)[made].workspace.restore()
    assert wf.start_sync(run_id=made).status == "suspended"
    log.write_text("while it waits\n")
    with pytest.raises(kb.errors.WorkspaceChangedError):
        wf.resume_sync(made, "go-on", True)
    assert log.read_text() == "while it waits\n"


def test_another_project_is_never_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mine", "other"):
        (tmp_path / name / "repo").mkdir(parents=True)
    (tmp_path / "other" / "repo" / "precious.txt").write_text("precious")
    monkeypatch.chdir(tmp_path / "mine")
    wf = writer(tmp_path / "store", "repo")
    wf.start_sync(True, run_id="a")
    monkeypatch.chdir(tmp_path / "other")
    files = kb.open(tmp_path / "store")["a"].workspace
    assert files.path == tmp_path / "mine" / "repo"
    (files.path / "log.txt").write_text("by hand\n")
    done = files.restore()
    assert done.path == tmp_path / "mine" / "repo"
    assert str(done).splitlines()[1:] == [
        "M log.txt",
        (
            f"what was there is snapshot {done.kept[:12]}: "
            f"run.workspace.restore({done.kept[:12]!r}) brings it back"
        ),
    ]
    assert (files.path / "log.txt").read_text() == "0\n1\n2\n"
    files.restore(done.kept[:12])
    assert (files.path / "log.txt").read_text() == "by hand\n"
    with pytest.raises(kb.errors.WorkspaceError, match="there is no snapshot 'HEAD'"):
        files.restore("HEAD")
    # A session that starts here would work here, and is told where the run was at work.
    wf = writer(tmp_path / "store", "repo", differs="restore")
    with pytest.raises(kb.errors.WorkspaceError, match=r"was at work in .*mine/repo, not in"):
        wf.resume_sync("a", "go-on", True)
    assert (tmp_path / "other" / "repo" / "precious.txt").read_text() == "precious"


def test_code_that_names_another_directory_is_told_both_and_what_to_do(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "two" / "mine.txt").write_text("mine\n")
    writer(tmp_path / "store", tmp_path / "one").start_sync(True, run_id="a")
    moved = writer(tmp_path / "store", tmp_path / "two")
    with pytest.raises(kb.errors.WorkspaceChangedError) as caught:
        moved.resume_sync("a", "go-on", True)
    said = str(caught.value)
    assert f"the files in {tmp_path / 'two'} are not" in said
    assert f"at work in {tmp_path / 'one'}, not there" in said
    assert f"Declare workspace={str(tmp_path / 'one')!r}; or" in said
    assert "restore" not in said, "it would put back the other one"
    files = kb.open(tmp_path / "store")["a"].workspace
    snapshot = said.partition("snapshot='")[2][:12]
    made = files.checkout(None, tmp_path / "three", snapshot=snapshot)
    assert writer(tmp_path / "store", made).resume_sync("a", "go-on", True).status == "success"
    assert (tmp_path / "two" / "mine.txt").read_text() == "mine\n"


def test_a_journal_that_names_its_directory_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    wf = writer(tmp_path / "store", tmp_path / "tree")
    wf.start_sync(run_id="a")
    place = tmp_path / "store" / "a.jsonl"
    old = place.read_bytes().replace(json.dumps(str(tmp_path / "tree")).encode(), b'"tree"')
    place.write_bytes(old)
    files = kb.open(tmp_path / "store")["a"].workspace
    assert files.path is None
    assert not files.restore().changes, "the loaded workflow knows it"
    del registry["writer"]
    with pytest.raises(kb.errors.WorkspaceError, match="as 'tree' only"):
        kb.open(tmp_path / "store")["a"].workspace.restore()


@pytest.mark.parametrize("differs", [None, "keep"])
def test_a_fork_whose_snapshots_are_gone_says_so_when_it_goes_on(
    tmp_path: Path, differs: str | None
) -> None:
    (tmp_path / "tree").mkdir()
    wf = writer(tmp_path / "store", tmp_path / "tree", differs=differs)
    wf.start_sync(run_id="a")
    made = asyncio.run(wf.fork("a", at="write#2"))
    kept = home(wf.storage) / "snapshots.git"
    kept.rename(kept.with_name("elsewhere"))
    if differs == "keep":
        assert wf.start_sync(run_id=made).status == "success"
        return
    with pytest.raises(kb.errors.WorkspaceError, match=r"is not in .*snapshots\.git"):
        wf.start_sync(run_id=made)


def test_a_fork_has_the_branches_and_tags_of_its_point_and_no_later_ones(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    git(tree, "init", "-q", "-b", "main")
    (tree / "a.txt").write_text("a\n")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "first")
    git(tree, "branch", "old")
    git(tree, "pack-refs", "--all")
    git(tree, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    git(tree, "update-ref", "refs/remotes/origin/main", "HEAD")
    (tree / "a.txt").write_text("put aside\n")
    git(tree, "stash")
    seen: list[str] = []

    def facts(place: Path) -> str:
        lines = git(place, "for-each-ref").splitlines(keepends=True)
        kept = [line for line in lines if "refs/stash" not in line]
        return "".join(kept) + git(place, "status", "-b", "-s")

    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tree)
    async def branching(ctx: kb.Context) -> None:
        def begin() -> None:
            git(ctx.workspace, "checkout", "-q", "-b", "attempt")
            git(ctx.workspace, "tag", "begun")

        def commit() -> None:
            git(ctx.workspace, "commit", "-q", "--allow-empty", "-m", "later")
            git(ctx.workspace, "branch", "-D", "old")
            git(ctx.workspace, "branch", "-f", "main", "HEAD")

        def fold() -> None:
            git(ctx.workspace, "checkout", "-q", "main")
            git(ctx.workspace, "branch", "-D", "attempt")

        for step in (begin, commit, fold):
            seen.append(facts(ctx.workspace))
            await ctx.step(step.__name__, step)

    assert branching.start_sync(run_id="a").status == "success"
    before = repository(tree)
    for number, step in enumerate(("begin", "commit", "fold")):
        was = seen[number]
        made = asyncio.run(branching.fork("a", at=step))
        place = home(branching.storage) / "trees" / made
        assert facts(place) == was, step
        assert ("later" in git(place, "log", "--all", "--format=%s")) == (number == 2)
        assert git(place, "stash", "list") == ""
        assert branching.start_sync(run_id=made).status == "success", "checkout -b works again"
    assert repository(tree) == before


def test_a_fork_killed_behind_its_new_branch_makes_it_again(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    git(tree, "init", "-q", "-b", "main")
    git(tree, "commit", "-q", "--allow-empty", "-m", "first")
    broken = True

    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tree)
    async def branching(ctx: kb.Context) -> None:
        def begin() -> None:
            git(ctx.workspace, "checkout", "-q", "-b", "attempt")
            if broken and ctx.run_id != "a":
                raise KeyboardInterrupt

        await ctx.step("begin", begin)

    branching.start_sync(run_id="a")
    git(tree, "checkout", "-q", "main")
    made = asyncio.run(branching.fork("a", at="begin"))
    with pytest.raises(KeyboardInterrupt):
        branching.start_sync(run_id=made)
    broken = False
    assert branching.start_sync(run_id=made).status == "success"


def test_a_fork_never_begins_with_the_files_of_a_run_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    wf = writer(tmp_path / "store", tmp_path / "tree")
    wf.start_sync(run_id="a")
    made = asyncio.run(wf.fork("a", at="write#2"))
    wf.start_sync(run_id=made)
    (tmp_path / "store" / f"{made}.jsonl").unlink()
    with pytest.warns(UserWarning, match="of a run that is gone; it was moved to"):
        assert asyncio.run(wf.fork("a", at="write#2")) == made
    place = home(wf.storage) / "trees" / made
    assert (place / "log.txt").read_text() == "0\n"
    (moved,) = (home(wf.storage) / "aside").glob(f"*/{made}/log.txt")
    assert moved.read_text() == "0\n1\n2\n"
    assert wf.start_sync(run_id=made).value == "0\n1\n2\n"


def test_a_fork_by_code_that_disagrees_about_files_is_refused_or_told(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()

    def code(declared: Path | None) -> Workflow:
        @kassette(storage=LocalStorage(tmp_path / "store"), workspace=declared, name="either")
        async def either(ctx: kb.Context) -> str:
            await ctx.step("one", lambda: 1)
            return str(await ctx.suspend("go-on"))

        return either

    code(None).start_sync(run_id="bare")
    wf = code(tmp_path / "tree")
    run = kb.open(tmp_path / "store")["bare"]
    for fork in (
        lambda: asyncio.run(wf.fork("bare", at="one")),
        lambda: wf.fork_many("bare", at="one", n=2),
        lambda: run.fork(at="one"),
        lambda: run.fork(at="go-on", answer=True),
    ):
        with pytest.raises(kb.errors.WorkspaceError, match=r"recorded without one.*Start a new"):
            fork()
    assert [p.name for p in (tmp_path / "store").glob("*.jsonl")] == ["bare.jsonl"]
    wf.start_sync(run_id="full")
    bare = code(None)
    with pytest.warns(UserWarning, match="this code declares none"):
        made = asyncio.run(bare.fork("full", at="one"))
    assert bare.start_sync(run_id=made).status == "suspended"


def test_a_private_file_stays_private_in_a_fork(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "open").write_text("x")
    (tree / "closed").write_text("x")
    wanted = {"key": 0o600, "tool": 0o700, "fixed": 0o444, "wide": 0o664, "later": 0o600}
    wanted["closed"] = 0o600
    for name, mode in wanted.items():
        if name not in ("later", "closed"):
            (tree / name).write_text("x")
            (tree / name).chmod(mode)

    def bits(path: Path) -> int:
        return path.stat().st_mode & 0o777

    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tree, name="keys")
    async def keys(ctx: kb.Context) -> None:
        def make() -> None:
            (ctx.workspace / "later").write_text("x")
            (ctx.workspace / "later").chmod(0o600)

        await ctx.step("close", lambda: (ctx.workspace / "closed").chmod(0o600))
        await ctx.step("open", lambda: (ctx.workspace / "wide").chmod(0o600))
        await ctx.step("shut", lambda: (ctx.workspace / "wide").chmod(0o664))
        await ctx.step("make", make)
        await ctx.step("read", lambda: (ctx.workspace / "later").read_text())

    keys.start_sync(run_id="a")
    before = home(keys.storage) / "trees" / asyncio.run(keys.fork("a", at="close"))
    assert bits(before / "closed") == 0o644
    made = asyncio.run(keys.fork("a", at="read"))
    place = home(keys.storage) / "trees" / made
    for name in ("key", "tool", "fixed", "later", "closed"):
        assert oct(bits(place / name)) == oct(wanted[name]), name
    assert bits(place / "open") == bits(tree / "open")
    assert keys.start_sync(run_id=made).status == "success"
    files = kb.open(keys.storage)[made].workspace
    (place / "key").unlink()
    files.restore()
    assert bits(place / "key") == 0o600
    again = home(keys.storage) / "trees" / asyncio.run(keys.fork(made, at="read"))
    assert bits(again / "key") == 0o600


def test_a_file_that_became_private_long_after_it_was_written_is_kept_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modes, "GRAIN", -60.0)  # nothing counts as just changed: git has to tell
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "key").write_text("x")

    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tree, name="closing")
    async def closing(ctx: kb.Context) -> None:
        def close() -> None:
            time.sleep(1.1)
            (ctx.workspace / "key").chmod(0o600)

        await ctx.step("close", close)
        await ctx.suspend("go-on")

    closing.start_sync(run_id="a")
    place = home(closing.storage) / "trees" / asyncio.run(closing.fork("a", at="go-on"))
    assert place.joinpath("key").stat().st_mode & 0o777 == 0o600
    # Nobody is let in by putting back, and it is no difference that stops a run.
    files = kb.open(closing.storage)["a"].workspace
    files.restore(files.commit())
    assert (tree / "key").stat().st_mode & 0o777 == 0o600
    assert closing.resume_sync("a", "go-on", True).status == "success"
