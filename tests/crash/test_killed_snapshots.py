"""SIGKILL while files are being kept leaves a sound repository, and no step with wrong files."""

from __future__ import annotations

import mmap
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kassette_nb as kb
from kassette_nb.entries import Step
from kassette_nb.kept import home
from kassette_nb.snapshots import Snapshots
from tests.crash.snapshooting import seen

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize("kills", [12, pytest.param(150, marks=pytest.mark.slow)])
def test_a_killed_snapshot_breaks_nothing(tmp_path: Path, kills: int) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "tool.sh").write_text("#!/bin/sh\n")
    (tmp_path / "phase").write_bytes(b"\0\0")
    chance = random.Random(kills)
    fell = {"in a snapshot": 0, "outside": 0}
    with (tmp_path / "phase").open("r+b") as file:
        phase = mmap.mmap(file.fileno(), 2)
        for _ in range(kills):
            phase[0] = phase[1] = 0
            # Its own process group: the git that it has started dies with it.
            child = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.snapshooting", str(tmp_path)],
                cwd=CHECKOUT,
                start_new_session=True,
            )
            try:
                _until(phase, chance.randint(2, 4), child)
                time.sleep(chance.random() * 0.04)
            finally:
                fell["in a snapshot" if phase[0] else "outside"] += 1
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        phase.close()
    print(f"{kills} kills: {fell}")
    assert fell["in a snapshot"] >= 8
    run = kb.open(tmp_path / "store")["run"]
    kept = Snapshots(home(run.storage))
    kept.run("fsck", "--full", "--strict", what="check")
    steps = [e for e in run.journal.entries if isinstance(e, Step)]
    assert steps
    for number, step in enumerate(steps):
        assert step.workspace is not None
        out = run.workspace.checkout(step.step_id, tmp_path / "out" / str(number))
        assert seen(out) == run[step.step_id].value, step.step_id


def _until(phase: mmap.mmap, snapshots: int, child: subprocess.Popen[bytes]) -> None:
    """Wait until so many snapshots have begun."""
    deadline = time.monotonic() + 60
    while phase[1] < snapshots:
        assert child.poll() is None, "the child ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.0005)
