"""A fork costs little more than a copy of the journal that is as durable."""

from __future__ import annotations

import os
import time
from pathlib import Path

from kassette_nb import LocalStorage
from kassette_nb.fork import fork
from tests.benchmarks import measure, sample

STEPS = 1_000
ROUNDS = 300


def copy(source: Path, target: Path) -> None:
    """Copy a file so that neither it nor its name is lost in a power cut."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, source.read_bytes())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def test_forking_1000_steps_against_a_durable_copy_of_the_file(disk: Path) -> None:
    storage = LocalStorage(disk)
    source = disk / "long.jsonl"
    source.write_bytes(sample.journal(STEPS))
    target = disk / "made.jsonl"
    sides: dict[str, measure.Operation] = {
        "fork": lambda: fork(storage, "long", at=STEPS + 1, new_run_id="made"),
        "copy": lambda: copy(source, target),
    }
    times: measure.Times = {name: [] for name in sides}
    for name in measure.shuffled(sides, ROUNDS):
        began = time.perf_counter()
        sides[name]()
        times[name].append(time.perf_counter() - began)
        assert target.stat().st_size >= source.stat().st_size
        target.unlink()
    measure.report("fork of 1,000 steps", times, "fork", "copy", 5.0)
