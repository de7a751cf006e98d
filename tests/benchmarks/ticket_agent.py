"""The ticket agent and its crashes: what they cost a naive loop, and what they cost here.

The workload is a published one: 24 steps, of which 6 send mail and 18 retrieve three documents of
about 400 characters, so that the prompt grows. Model and mail sink are real HTTP servers in
processes of their own, and a crash is a SIGKILL at a random moment.

``python -m tests.benchmarks.ticket_agent --runs 200`` plays it and prints the table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import random
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

import msgspec

import kassette_nb as kb
from kassette_nb.entries import Intent
from tests.benchmarks import ticket_servers, ticket_workers
from tests.benchmarks.ticket_servers import MAILS, STEPS
from tests.benchmarks.ticket_workers import Answer

#: Figures of the source, for comparison in shape: its crashes fall between steps.
PUBLISHED = (
    ("naive, 1 crash", "+39 % tokens, 9 mails"),
    ("naive, 3 crashes", "+133 % tokens, 15 mails"),
    ("naive, 200 random crashes", "a mail doubled in 184 of 200 runs"),
    ("durable, 200 random crashes", "0 of 200, nothing paid twice"),
)
SOURCE = "“Agent 崩溃之后:把 Agent Loop 做成可恢复的工作流”"


class Played(msgspec.Struct):
    """What one ticket cost in the end.

    ``phases`` says what the durable agent was doing at each kill, ``recovery`` the seconds from
    calling ``start`` to the first live call of each later session.
    """

    calls: int
    tokens: int
    mails: int
    doubled: int
    crashes: int
    asked: int = 0
    entries: int = 0
    size: int = 0
    phases: list[str] = []  # msgspec copies it
    recovery: list[float] = []  # as above


class Theatre:
    """The servers, and a process that forks workers within milliseconds.

    Args:
        folder: Where the journals go.
        sink_honours_keys: Whether the mail sink acts once per key.
        seed: Decides when workers are killed.
    """

    def __init__(self, folder: Path, sink_honours_keys: bool, seed: int = 1) -> None:
        self.folder = folder
        self.ports: dict[str, int] = {}
        self.chance = random.Random(seed)
        #: Seconds that an undisturbed worker takes; measured by `warm_up`.
        self.typical = {"naive": 0.0, "durable": 0.0, "asking": 0.0}
        self._honours = {"model": True, "sink": sink_honours_keys}
        self._took = 0.0
        self._servers: list[BaseProcess] = []
        self._forks: ForkServerContext = multiprocessing.get_context("forkserver")

    def __enter__(self) -> Theatre:
        self._forks.set_forkserver_preload([ticket_workers.__name__])
        for name, honours in self._honours.items():
            ready, theirs = self._forks.Pipe()
            server = self._forks.Process(
                target=ticket_servers.serve, args=(theirs, honours), daemon=True
            )
            server.start()
            self._servers.append(server)
            self.ports[name] = ready.recv()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.kill()
            server.join()

    def warm_up(self, mode: str) -> Played:
        """Play one ticket undisturbed, twice, and keep how long it takes."""
        self._attempt(mode, f"{mode}-warm", None)
        self._attempt(mode, f"{mode}-quiet", None)
        self.typical[mode] = self._took
        return self._counted(f"{mode}-quiet", Played(0, 0, 0, 0, 0), mode)

    def play(self, mode: str, run: str, crashes: int) -> Played:
        """Play one ticket to its end, killed so many times on the way."""
        for attempt in range(50):
            played = self._play(mode, f"{run}.{attempt}", crashes)
            if played.crashes == crashes:
                return played
        raise AssertionError(f"{run} is always over before it is killed")

    def _play(self, mode: str, run: str, crashes: int) -> Played:
        played = Played(0, 0, 0, 0, 0)
        answer: Answer | None = None
        while True:
            kill = played.crashes < crashes
            moment = self._moment(mode, played) if kill else None
            heard = self._attempt(mode, run, moment, answer)
            played.recovery += [took for what, took in heard if what == "live" and played.crashes]
            if heard and heard[-1] == ("done", "suspended"):
                answer = self._decide(run)
                played.asked += 1
            elif heard and heard[-1][0] == "done":
                break
            else:
                played.crashes += 1
                played.phases.append(self._phase(run) if mode != "naive" else "naive")
        return self._counted(run, played, mode)

    def _moment(self, mode: str, played: Played) -> float:
        """Return the seconds after which a worker is killed; later ones have less to do."""
        return self.chance.uniform(0, self.typical[mode] * 0.95 / (1 + played.crashes))

    def _attempt(
        self, mode: str, run: str, kill: float | None, answer: Answer | None = None
    ) -> list[tuple[str, Any]]:
        """Let one worker work, and return what it told before it was done or killed."""
        heard, theirs = self._forks.Pipe()
        target = ticket_workers.naive if mode == "naive" else ticket_workers.durable
        more: tuple[Any, ...] = ()
        if mode != "naive":
            more = (str(self.folder), mode == "asking", answer)
        worker = self._forks.Process(target=target, args=(run, self.ports, theirs, *more))
        worker.start()
        theirs.close()
        heard.recv()  # it is ready: before that there is nothing to kill
        began = time.perf_counter()
        worker.join(kill)
        if kill is not None and worker.is_alive():
            worker.kill()
        worker.join()
        self._took = time.perf_counter() - began
        self._quiet(run)
        told: list[tuple[str, Any]] = []
        with contextlib.suppress(EOFError):
            while True:
                told.append(heard.recv())
        heard.close()
        return told

    def _quiet(self, run: str) -> None:
        """Wait until the servers have done what a dead worker asked them for."""
        idle = 0
        while idle < 3:
            busy = self._tell("model", run)["busy"] + self._tell("sink", run)["busy"]
            idle = 0 if busy else idle + 1
            time.sleep(0.002)

    def _tell(self, server: str, run: str) -> dict[str, int]:
        address = f"http://127.0.0.1:{self.ports[server]}/{run}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            told: dict[str, int] = json.load(answer)
        return told

    def _decide(self, run: str) -> Answer:
        """Look whether the mail in doubt was delivered, as a person would, and say so."""
        (question,) = kb.open(self.folder)[run].questions
        to = question.context["args"]["to"]
        if self._tell("sink", run).get(to):
            return question.step_id, {"action": "record", "result": f"delivered to {to}"}
        return question.step_id, {"action": "retry"}

    def _phase(self, run: str) -> str:
        """Say what the journal shows a killed worker to have been doing."""
        runs = kb.open(self.folder)
        if run not in runs:
            return "before the first entry"
        last = runs[run].journal.entries[-1]
        if isinstance(last, Intent):
            return "between intent and result: " + last.name
        return "between entries"

    def _counted(self, run: str, played: Played, mode: str) -> Played:
        model, sink = self._tell("model", run), self._tell("sink", run)
        played.calls, played.tokens = model.get("calls", 0), model.get("tokens", 0)
        played.mails = sink.get("mails", 0)
        played.doubled = sum(count > 1 for to, count in sink.items() if "@" in to)
        if mode != "naive":
            journal = kb.open(self.folder)[run].journal
            played.entries, played.size = len(journal.entries), len(journal.data)
        return played


def table(rows: list[tuple[str, list[Played]]]) -> Iterator[str]:
    """Yield the lines of the table: means over the runs of a row, recovery in ms."""
    yield (
        "means over the runs of a row; doubled: runs in which a mail was sent twice; back: ms from "
        "the call of start to\nthe first live call after a crash. The model's gateway honours "
        "idempotency keys, as the sink does where nothing else is said.\n"
    )
    head = "agent", "runs", "calls", "tokens", "mails", "doubled", "entries", "kB", "p50", "p95"
    yield f"{'back':>119}"
    yield "{:50}{:>6}{:>8}{:>9}{:>7}{:>9}{:>9}{:>7}{:>7}{:>7}".format(*head)
    for name, runs in rows:
        doubled = sum(bool(played.doubled) for played in runs)
        took = [seconds * 1e3 for played in runs for seconds in played.recovery]
        half = f"{median(took):.1f}" if took else "–"
        late = f"{quantiles(took, n=20)[-1]:.1f}" if len(took) > 1 else "–"
        kept = mean(played.entries for played in runs)
        yield (
            f"{name:50}{len(runs):>6}{mean(p.calls for p in runs):>8.1f}"
            f"{mean(p.tokens for p in runs):>9,.0f}{mean(p.mails for p in runs):>7.1f}"
            f"{f'{doubled}/{len(runs)}':>9}{(f'{kept:.1f}' if kept else '–'):>9}"
            f"{mean(p.size for p in runs) / 1e3:>7.1f}{half:>7}{late:>7}"
        )


def benchmark(runs: int, few: int, seed: int = 1) -> list[tuple[str, list[Played]]]:
    """Play all rows: ``few`` tickets for each exact number of crashes, ``runs`` for random ones."""
    rows: list[tuple[str, list[Played]]] = []
    with tempfile.TemporaryDirectory() as folder:
        with Theatre(Path(folder) / "keyed", sink_honours_keys=True, seed=seed) as theatre:
            for mode in ("naive", "durable"):
                rows.append((f"{mode}, no crash", [theatre.warm_up(mode)]))
                for crashes in (1, 3):
                    named = f"{mode}, {crashes} crash{'es' if crashes > 1 else ''} each"
                    play = [
                        theatre.play(mode, f"{mode}-{crashes}-{n}", crashes) for n in range(few)
                    ]
                    rows.append((named, play))
                many = [theatre.play(mode, f"{mode}-r-{n}", 1) for n in range(runs)]
                rows.append((f"{mode}, killed at a random moment", many))
        with Theatre(Path(folder) / "blind", sink_honours_keys=False, seed=seed) as theatre:
            rows.append(("asking, sink ignores keys, no crash", [theatre.warm_up("asking")]))
            many = [theatre.play("asking", f"asking-r-{n}", 1) for n in range(runs)]
            rows.append(("asking, sink ignores keys, killed at a random moment", many))
    return rows


def check(rows: list[tuple[str, list[Played]]]) -> None:
    """Check what the table is to show."""
    by_name = dict(rows)
    (quiet,) = by_name["durable, no crash"]
    (asked,) = by_name["asking, sink ignores keys, no crash"]
    assert (quiet.calls, quiet.mails) == (STEPS, MAILS)
    for name, runs in rows:
        if name.startswith("naive"):
            continue
        plain, more = (asked, 4) if name.startswith("asking") else (quiet, 2)
        for played in runs:
            assert (played.calls, played.mails, played.tokens, played.doubled) == (
                quiet.calls,
                quiet.mails,
                quiet.tokens,
                0,
            ), (name, played)
            assert played.entries <= plain.entries + more * played.crashes, (name, played)


def phases(rows: list[tuple[str, list[Played]]]) -> Counter[str]:
    """Count what the durable agents were doing when they were killed."""
    told = Counter(phase for _, runs in rows for played in runs for phase in played.phases)
    del told["naive"]
    return told


def report(rows: list[tuple[str, list[Played]]]) -> str:
    """Return the table, the kills by phase, and the figures of the source."""
    asked = sum(played.asked for _, runs in rows for played in runs)
    told = [*table(rows), ""]
    told += [f"kills: {phase}: {count}" for phase, count in sorted(phases(rows).items())]
    told += [f"doubts that waited for a person: {asked}", ""]
    told += [f"published, {SOURCE} (its crashes fall elsewhere: only the shape compares):"]
    told += [f"  {name:32} {figures}" for name, figures in PUBLISHED]
    return "\n".join(told)


def _counts(played: Played) -> dict[str, int]:
    """Return what does not depend on the machine."""
    names = ("calls", "tokens", "mails", "doubled", "crashes", "asked", "entries", "size")
    return {name: getattr(played, name) for name in names}


def main() -> None:
    """Play it from the command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=200, help="tickets killed at random, a row")
    options.add_argument("--few", type=int, default=20, help="tickets with exact crashes, a row")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--json", help="also write the rows to this file")
    given = options.parse_args()
    if min(given.runs, given.few) < 1:
        options.error("--runs and --few are numbers of tickets, 1 or more")
    rows = benchmark(given.runs, given.few, given.seed)
    print(report(rows))
    if given.json:
        kept = [(name, [_counts(played) for played in runs]) for name, runs in rows]
        Path(given.json).write_bytes(msgspec.json.encode(kept) + b"\n")
    check(rows)


if __name__ == "__main__":
    main()
