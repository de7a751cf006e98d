"""Forty runs on a Dask cluster, one worker of which is killed: all complete, each step once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

import kassette_nb as kb
from kassette_nb.entries import Step
from kassette_nb.workflow import Workflow
from tests.crash.farming import STEPS, farm

RUNS = 40


@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore")  # what the cluster says about its lost worker
def test_a_killed_dask_worker_loses_nothing(tmp_path: Path) -> None:
    wf = Workflow(farm.definition, tmp_path)
    wf.start_sync(str(tmp_path), run_id="run")
    (tmp_path / "calls").unlink()
    cluster = LocalCluster(
        n_workers=2,
        threads_per_worker=4,
        dashboard_address=None,
        host="127.0.0.1",
        local_directory=str(tmp_path / "dask"),
    )
    with cluster, Client(cluster) as client:
        params = [{"pause": 0.02}] * RUNS
        attempts = wf.fork_many("run", at="work#2", params=params, via=client)
        calls = tmp_path / "calls"
        deadline = time.monotonic() + 60
        while not calls.exists() or len(calls.read_text().split("\n")) < RUNS:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        victim = int(calls.read_text().split("\n")[0].split()[2])
        os.kill(victim, signal.SIGKILL)
        found = attempts.wait(150)
    assert [each.result.status for each in found if each.result] == ["success"] * RUNS
    runs = kb.open(tmp_path)
    for run_id in attempts.run_ids:
        journal = runs[run_id].journal
        assert sum(isinstance(e, Step) for e in journal.entries) == STEPS
    called = calls.read_text().split("\n")[:-1]
    sessions = [len(runs[run_id].fold().sessions) for run_id in attempts.run_ids]
    print(f"{RUNS} of {RUNS}; {len(called)} calls for {RUNS * (STEPS - 1)} steps; "
          f"{sum(n > 2 for n in sessions)} runs taken up again")  # fmt: skip
    assert any(n > 2 for n in sessions), "the killed worker had none at work"
    assert len(called) <= RUNS * (STEPS - 1) + 8  # at most what was in flight
