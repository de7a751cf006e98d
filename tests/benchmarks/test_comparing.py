"""Twenty attempts of two hundred steps are compared while a person waits."""

from __future__ import annotations

import random
import time

from msgspec import Raw

import kassette_nb as kb
from kassette_nb import MemoryStorage
from kassette_nb.entries import Start, Step, encode
from kassette_nb.notebook.matrix import ComparePanel

RUNS, STEPS, SHARED = 20, 200, 40
#: Seconds of kernel time.
WANTED = 1.0


def journal(chance: random.Random) -> bytes:
    """An agent's run: the first steps as in all others, later ones with insertions and changes."""
    entries: list[Start | Step] = [Start(session=1)]
    counts: dict[str, int] = {}
    while len(entries) <= STEPS:
        number = len(entries)
        name = ["think", "run", "read"][number % 3]
        if number > SHARED and chance.random() < 0.1:
            name = "retry"
        counts[name] = counts.get(name, 0) + 1
        step_id = name if counts[name] == 1 else f"{name}#{counts[name]}"
        told = chance.randint(0, 3) if number > SHARED else 0
        result = Raw(b'{"content": "%s", "told": %d}' % (b"x" * 700, told))
        command = chance.choice(["ls", "grep"]) if number > SHARED else "ls"
        args = Raw(b'{"command": "%s -l"}' % command.encode())
        entries.append(Step(session=1, step_id=step_id, name=name, result=result, args=args))
    for offset, entry in enumerate(entries):
        entry.offset, entry.timestamp = offset, "2026-01-01T00:00:00.000Z"
    return b"".join(map(encode, entries))


def test_20_runs_of_200_steps_in_kernel_time() -> None:
    storage = MemoryStorage("comparing")
    for number in range(RUNS):
        storage.create(f"run-{number}", journal(random.Random(number)))
    runs = kb.open(storage)
    took = []
    for base in range(5):
        sent: list[object] = []
        began = time.process_time()
        made = kb.compare([runs[f"run-{n}"] for n in range(RUNS)], base=base)
        panel = ComparePanel(made, sent.append, sent.append)
        panel.handle({"type": "hello"})
        took.append(time.process_time() - began)
        assert len(sent) == 3
    print(f"compare {RUNS} × {STEPS}: {max(took):.2f} s of kernel time, {len(made.rows)} rows")
    assert min(took) < WANTED
