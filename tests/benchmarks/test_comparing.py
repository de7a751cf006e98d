"""Twenty attempts of two hundred steps are compared while a person waits."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import msgspec
from msgspec import Raw

import kassette_nb as kb
from kassette_nb import LocalStorage, MemoryStorage
from kassette_nb.entries import Note, Start, Step, encode
from kassette_nb.kept import home
from kassette_nb.notebook.matrix import ComparePanel
from kassette_nb.snapshots import Extras, Snapshots

RUNS, STEPS, SHARED, FILES = 20, 200, 40, 300
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


def with_files(storage: LocalStorage) -> None:
    """Write runs in which every other step changes one of 300 files."""
    snapshots = Snapshots(home(storage))
    snapshots.open()
    message = f"snapshot\n\n{json.dumps(msgspec.to_builtins(Extras()))}\n"
    head = f"committer a <a@b> 0 +0000\ndata {len(message)}\n{message}\n"
    told, changes = [], STEPS // 2
    for run in range(RUNS):
        for number in range(changes + 1):
            told.append(
                f"commit refs/heads/{run}\nmark :{1 + run * (changes + 1) + number}\n{head}"
            )
            names = range(FILES) if not number else [number]
            for name in names:
                text = f"{run if number > SHARED // 2 else 0} at {number}\n"
                told.append(f"M 644 inline d{name % 20}/{name}\ndata {len(text)}\n{text}\n")
    marks = snapshots.home / "marks"
    data = "".join(told).encode()
    snapshots.run("fast-import", "--quiet", f"--export-marks={marks}", data=data, what="make them")
    commits = dict(line[1:].split() for line in marks.read_text().splitlines())
    for run in range(RUNS):
        first = 1 + run * (changes + 1)
        note = Raw(msgspec.json.encode({"commit": commits[str(first)], "path": "/repo"}))
        entries: list[Start | Step | Note] = [Start(session=1)]
        entries.append(Note(session=1, kind="workspace", data=note))
        for number in range(STEPS):
            args = Raw(b'{"command": "edit /repo/%d"}' % number)
            step = Step(session=1, step_id=f"edit#{number}", name="edit", args=args)
            step.result, step.workspace = Raw(b'"ok"'), commits[str(first + (number + 1) // 2)]
            entries.append(step)
        for offset, entry in enumerate(entries):
            entry.offset, entry.timestamp = offset, "2026-01-01T00:00:00.000Z"
        storage.create(f"run-{run}", b"".join(map(encode, entries)))


def test_20_runs_of_200_steps_with_their_files(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    with_files(storage)
    runs = kb.open(storage)
    took, waited = [], []
    for _ in range(3):
        sent: list[object] = []
        began, clock = time.process_time(), time.perf_counter()
        made = kb.compare([runs[f"run-{n}"] for n in range(RUNS)])
        ComparePanel(made, sent.append, sent.append).handle({"type": "hello"})
        took.append(time.process_time() - began)
        waited.append(time.perf_counter() - clock)
    changed = sum("files" in differs for row in made.rows for differs in row.differs)
    print(f"compare {RUNS} × {STEPS} with files: {max(took):.2f} s of kernel time, "
          f"{max(waited):.2f} s with git, {changed} steps differ")  # fmt: skip
    assert changed == (RUNS - 1) * (STEPS - SHARED) // 2
    assert min(took) < WANTED


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
