"""A thousand journals are a data frame in little more time than it takes to decode them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import kassette_nb as kb
from kassette_nb import entries
from tests.benchmarks import measure, sample

FILES, LINES, ROUNDS = 1_000, 100, 5
FRAMES: dict[str, Callable[[kb.Runs], object]] = {
    "entries": lambda runs: runs.entries(),
    "steps": lambda runs: runs.steps(),
    "frame": lambda runs: runs.frame(),
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_of_100000_entries_against_reading_and_decoding_them(
    tmp_path: Path, name: str
) -> None:
    data = sample.journal(LINES - 1)
    for number in range(FILES):
        (tmp_path / f"run-{number:04}.jsonl").write_bytes(data)
    typed = msgspec.json.Decoder(entries.Known).decode

    def decoded(decode: Callable[[bytes], object]) -> object:
        files = sorted(tmp_path.glob("*.jsonl"))
        return [[decode(line) for line in path.read_bytes().splitlines()] for path in files]

    frame = FRAMES[name]
    sides: dict[str, measure.Operation] = {
        "ours": lambda: frame(kb.open(tmp_path)),
        "decoding": lambda: decoded(msgspec.json.decode),
        "envelopes": lambda: decoded(typed),
    }
    measure.interleave(sides, 1)
    gc.collect()
    times = measure.interleave(sides, ROUNDS)
    measure.report(f"{name} of 100,000 entries, 1,000 files", times, "ours", "decoding", 2.5)
    # Against decoding that leaves every value as it is; told, and not a target.
    ratio = sorted(times["ours"])[ROUNDS // 2] / sorted(times["envelopes"])[ROUNDS // 2]
    print(f"{'':58} {ratio:6.2f}   × decoding the envelopes alone")
