"""Keeping the files of an unchanged tree costs little more than asking git whether it changed."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from kassette_nb import LocalStorage, Workspace
from kassette_nb.kept import home
from kassette_nb.workspace import watch
from tests.benchmarks import measure
from tests.trees import git

FILES = 5_000
ROUNDS = 200


def test_an_unchanged_tree_of_5000_files_against_git_status(disk: Path) -> None:
    tree = disk / "tree"
    for number in range(FILES):
        path = tree / f"d{number % 250}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}\n" * 20)
        # Older than the index: git need not look inside.
        os.utime(path, (time.time() - 3600,) * 2)
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "all")
    storage = LocalStorage(disk / "store")
    kept = watch(storage, "run", tree, Workspace(str(tree)), 1)
    began = time.perf_counter()
    first = kept.take()
    print(f"first snapshot of {FILES:,} files: {time.perf_counter() - began:.2f} s")
    assert (home(storage) / "snapshots.git").is_dir()

    def status() -> None:
        subprocess.run(["git", "status", "--porcelain"], cwd=tree, check=True, capture_output=True)

    times = measure.interleave({"snapshot": kept.take, "git status": status}, ROUNDS)
    assert kept.take() == first
    measure.report("unchanged snapshot of 5,000 files", times, "snapshot", "git status", 1.5)
