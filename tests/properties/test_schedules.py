"""Whatever happens to the processes, a run goes on and ends as if nothing had happened.

Every seed is a program, a schedule, and what is done to it: kills in the middle of writes, between
turns of the loop and inside steps; torn lines and groups; disks that fail; cancelled callers;
several processes at once; answers in any order. A failure names its seed, and `Storm(seed).run()`
plays it again.
"""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from tests.properties.storms import Storm

KILLS = ("before a write", "within a write", "after a write", "in a step", "between turns")
OTHERS = ("write failed", "cancelled", "weather")
#: What became of tools in doubt, and how often a spent budget was raised.
DOUBTS = ("kept from doubling", "said record", "said retry", "said fail", "raised")


def play(seeds: range) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        try:
            Storm(seed, counts).run()
        except BaseException as problem:
            problem.add_note(f"this was seed {seed}: Storm({seed}).run() plays it again")
            print(f"\nseed {seed} failed")
            raise
    gc.collect()  # a coroutine nobody awaited or an exception nobody took is told now
    print(f"\n{len(seeds)} seeds: {dict(counts.most_common())}")
    return counts


@pytest.mark.timeout(300)  # 45 s on an idle machine
def test_two_thousand_storms_end_as_if_nothing_had_happened() -> None:
    counts = play(range(2_000))
    assert all(counts[phase] >= 10 for phase in (*KILLS, *OTHERS, *DOUBTS)), counts


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_thousand_storms_end_as_if_nothing_had_happened() -> None:
    play(range(2_000, 22_000))
