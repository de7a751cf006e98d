"""A process killed in the middle of a run: the next one goes on at the first unrecorded step."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kassette_nb as kb

AGENT = """
import asyncio, os, sys, time
from kassette_nb import kassette

folder, pause, block_at = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])

def act(number):
    with open(os.path.join(folder, "effects"), "a") as log:
        log.write(f"{number}\\n")
    if number == block_at:
        print("inside", flush=True)
        time.sleep(60)
    time.sleep(pause)
    return number * number

@kassette(storage=os.path.join(folder, "runs"), name="agent")
async def agent(ctx, steps):
    total = 0
    for number in range(steps):
        total += await ctx.step("act", act, number)
    return total

print("ready", flush=True)
print(asyncio.run(agent.start(12, run_id="r")).result, flush=True)
"""


def start(folder: Path, pause: float = 0.0, block_at: int = -1) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", AGENT, str(folder), str(pause), str(block_at)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return out.split()[-1]


def kill(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def effects(folder: Path) -> list[int]:
    path = folder / "effects"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def test_a_run_killed_inside_a_step_goes_on_at_that_step(tmp_path: Path) -> None:
    process = start(tmp_path, block_at=5)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "inside\n"]
    assert kb.open(tmp_path / "runs")["r"].state == "running"
    kill(process)
    run = kb.open(tmp_path / "runs")["r"]
    assert run.state == "interrupted"
    assert len(run.fold().steps) == 5
    assert finish(start(tmp_path)) == str(sum(n * n for n in range(12)))
    assert effects(tmp_path) == [0, 1, 2, 3, 4, 5, *range(5, 12)]


def test_random_kills_never_run_a_recorded_step_again(tmp_path: Path) -> None:
    chance = random.Random(20261130)
    kills = again = runs = 0
    while kills < 20:
        folder = tmp_path / str(runs)
        folder.mkdir()
        killed = _killed_until_done(folder, chance)
        done = effects(folder)
        # Every effect once, but for the ones that were under way when a process was killed.
        assert sorted(set(done)) == list(range(12))
        assert len(done) - 12 <= killed
        run = kb.open(folder / "runs")["r"]
        assert run.result == sum(n * n for n in range(12))
        assert len(run.fold().sessions) <= killed + 1
        kills, again, runs = kills + killed, again + len(done) - 12, runs + 1
    print(f"\n{kills} kills over {runs} runs: {again} steps ran again, none that was recorded")


def _killed_until_done(folder: Path, chance: random.Random) -> int:
    killed = recorded = 0
    while True:
        process = start(folder, pause=0.01)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.06))
        kill(process)
        killed += process.returncode == -signal.SIGKILL
        runs = kb.open(folder / "runs")
        if "r" not in runs:
            continue
        steps = [step.result for step in runs["r"].fold().steps]
        assert len(steps) >= recorded, "a recorded step was lost"
        recorded = len(steps)
        # What is recorded ran exactly once after its record: its effect is never repeated.
        seen = effects(folder)
        assert seen[-1:] <= [recorded], "a recorded step ran again"
        if runs["r"].state == "completed":
            return killed


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_line_torn_by_a_power_cut_is_not_believed(tmp_path: Path, cut: int) -> None:
    assert finish(start(tmp_path))
    path = tmp_path / "runs" / "r.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]) + lines[5][:-cut])
    (tmp_path / "effects").unlink()
    assert finish(start(tmp_path)) == str(sum(n * n for n in range(12)))
    assert effects(tmp_path) == list(range(4, 12))
