"""Sixteen processes at one run, all at once: one of them acts, and the others are told why not."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb.clock import instant
from kassette_nb.entries import Cancel, Resume
from kassette_nb.journal import Journal, read
from kassette_nb.storage import LocalStorage

from .racing import Racers, Told, make

COUNT = 16
ROUNDS = [50, pytest.param(1000, marks=pytest.mark.slow)]
#: How long a step takes, in seconds: sometimes two of them take longer than a writer has patience.
QUICK, LONG = 0.002, 0.55
#: Between two looks at the clock in two processes that share two cores with fourteen others.
SLACK = timedelta(seconds=0.5)


@pytest.fixture(scope="module")
def racers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Racers]:
    with Racers(COUNT, tmp_path_factory.mktemp("racers") / "errors") as them:
        yield them


class Round:
    """One run in a folder of its own, and what has to hold after every race for it."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder / str(number)
        self.folder.mkdir()
        self.seconds = LONG if number % 50 in (9, 10) else QUICK

    @property
    def storage(self) -> LocalStorage:
        return LocalStorage(self.folder / "runs")

    def order(self, do: str, **told: Any) -> Told:
        return {"do": do, "seconds": self.seconds, **told}

    def suspended(self) -> None:
        """Bring the run to its question, in this process."""
        result = make(self.folder, 0).start_sync(run_id="r")
        assert result.status == "suspended"

    def journal(self) -> Journal:
        """The verified journal; no line of it is torn, and nobody holds it any more."""
        found = read(self.storage, "r")
        assert found.torn == 0
        assert self.storage.holder("r") is None
        assert [p.name for p in (self.folder / "runs").glob(".r.*")] == []
        return found

    def effects(self) -> Counter[str]:
        lines = (self.folder / "effects").read_text().splitlines()
        return Counter(line.split()[0] for line in lines)


def split(told: Sequence[Told]) -> tuple[list[Told], Counter[str]]:
    """The results of those who did something, and how often which error was told."""
    return (
        [each for each in told if "error" not in each],
        Counter(each["error"] for each in told if "error" in each),
    )


def report(what: str, rounds: int, began: float, outcomes: Counter[str]) -> None:
    told = ", ".join(f"{count} {name}" for name, count in outcomes.most_common())
    print(f"\n{what}: {rounds} rounds of {COUNT} in {time.monotonic() - began:.1f} s: {told}")


@pytest.mark.parametrize("rounds", ROUNDS)
def test_of_many_answers_the_first_wins_and_all_others_are_told_which_it_was(
    racers: Racers, tmp_path: Path, rounds: int
) -> None:
    outcomes: Counter[str] = Counter()
    began = time.monotonic()
    for number in range(rounds):
        round_ = Round(tmp_path, number)
        round_.suspended()
        # In every other round some of them do not have the code, and only record their answer.
        told = racers.race(
            round_.folder,
            [
                round_.order(
                    "respond" if number % 2 and racer % 2 else "resume",
                    by=f"racer {racer}",
                    value={"answer": racer},
                )
                for racer in range(COUNT)
            ],
        )
        won, errors = split(told)
        assert len(won) == 1
        journal = round_.journal()
        answer = next(entry for entry in journal.entries if isinstance(entry, Resume))
        assert answer.by == f"racer {told.index(won[0])}"
        value = json.loads(bytes(answer.value))  # type: ignore[arg-type]  # it is there
        assert value == {"answer": told.index(won[0])}
        for each in told:
            if each.get("error") == "EventAlreadyAnsweredError":
                assert (each["by"], each["value"]) == (answer.by, value)
                assert each["at"] == answer.timestamp
            elif each is not won[0]:
                # Only while no answer is on record: the holder had not yet come that far.
                assert each["error"] == "RunBusyError"
                assert each["holder"]
                assert instant(each["told"]) - instant(answer.timestamp) < SLACK
        if won[0]["status"] == "recorded":
            assert journal.ending is None
            assert make(round_.folder, 0).start_sync(run_id="r").status == "success"
        else:
            assert won[0]["value"] == ["a", "b", value, "c", "d"]
        assert round_.effects() == dict.fromkeys("abcd", 1)
        outcomes += errors
        outcomes[f"won by {won[0]['status']}"] += 1
    report("answers", rounds, began, outcomes)
    assert outcomes["EventAlreadyAnsweredError"] > outcomes["RunBusyError"]


@pytest.mark.parametrize("rounds", ROUNDS)
def test_of_many_who_start_one_run_one_executes_it(
    racers: Racers, tmp_path: Path, rounds: int
) -> None:
    outcomes: Counter[str] = Counter()
    began = time.monotonic()
    for number in range(rounds):
        round_ = Round(tmp_path, number)
        told = racers.race(round_.folder, [round_.order("start")] * COUNT)
        won, errors = split(told)
        assert won
        assert all(each["status"] == "suspended" for each in won)
        assert errors.keys() <= {"RunBusyError"}
        log = (round_.folder / "effects").read_text().split()
        assert log[::2] == ["a", "b"]
        assert log[1] == log[3], "one process made both steps"
        holder = f"process {log[1]} on {socket.gethostname()}"
        assert {each["holder"] for each in told if "error" in each} <= {holder}
        types = [entry.__struct_config__.tag for entry in round_.journal().entries]
        assert types == ["start", "step", "step", "suspend"]
        outcomes += errors
        outcomes["got the state"] += len(won)
    report("starts", rounds, began, outcomes)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_of_answers_and_cancellations_one_wins(racers: Racers, tmp_path: Path, rounds: int) -> None:
    outcomes: Counter[str] = Counter()
    began = time.monotonic()
    for number in range(rounds):
        round_ = Round(tmp_path, number)
        round_.suspended()
        # Whoever is let off first has a small lead, so the two take turns.
        kinds = ["resume", "cancel"] if number % 2 else ["cancel", "resume"]
        told = racers.race(
            round_.folder,
            [
                round_.order(kinds[racer % 2], by=f"racer {racer}", value=racer)
                for racer in range(COUNT)
            ],
        )
        won, errors = split(told)
        assert len(won) == 1
        winner = f"racer {told.index(won[0])}"
        journal = round_.journal()
        if won[0]["status"] == "cancelled":
            assert isinstance(journal.ending, Cancel)
            assert journal.ending.reason == winner
            assert errors.keys() <= {"RunCancelledError"}
            assert all(each["reason"] == winner for each in told if "error" in each)
            assert round_.effects() == {"a": 1, "b": 1}
        else:
            assert won[0]["value"] == ["a", "b", told.index(won[0]), "c", "d"]
            assert errors.keys() <= {
                "EventAlreadyAnsweredError",
                "TerminalRunError",
                "RunBusyError",
            }
            for racer, each in enumerate(told):
                if each.get("error") == "RunBusyError":
                    assert each["holder"]
                    assert kinds[racer % 2] == "cancel", "an answer is on record"
                if each.get("error") == "EventAlreadyAnsweredError":
                    assert each["by"] == winner
            assert round_.effects() == dict.fromkeys("abcd", 1)
        outcomes += errors
        outcomes[f"won by {won[0]['status']}"] += 1
    report("answers against cancellations", rounds, began, outcomes)
    assert outcomes["won by cancelled"]
    assert outcomes["won by success"]


@pytest.mark.parametrize("rounds", ROUNDS)
def test_those_who_look_see_no_half_of_anything_and_are_in_nobodys_way(
    racers: Racers, tmp_path: Path, rounds: int
) -> None:
    outcomes: Counter[str] = Counter()
    states: Counter[str] = Counter()
    began = time.monotonic()
    for number in range(rounds):
        round_ = Round(tmp_path, number)
        round_.seconds = 5 * QUICK
        if number % 2:
            round_.suspended()
            acts = [round_.order("resume", by=f"racer {n}", value=n) for n in range(COUNT // 2)]
            end, passed = ["completed"], {"suspended", "running", "completed"}
        else:
            acts = [round_.order("start")] * (COUNT // 2)
            end, passed = ["suspended"], {"running", "suspended"}
        looks = [round_.order("view", until=end, looks=3)] * (COUNT // 2)
        # One after the other acts and looks, so that neither has a lead.
        orders = [order for pair in zip(acts, looks, strict=True) for order in pair]
        told = racers.race(round_.folder, orders)
        won, errors = split(told[::2])
        assert won
        assert errors.keys() <= {"EventAlreadyAnsweredError", "RunBusyError"}
        for each in told[1::2]:
            assert each["status"] == "viewed", each
            # Nobody was killed, so nobody sees an interrupted run.
            assert each["states"].keys() <= passed, each
            states.update(each["states"])
        round_.journal()
        outcomes += errors
        outcomes["acted or got the state"] += len(won)
        outcomes["looks"] += sum(each["looks"] for each in told[1::2])
    report("views", rounds, began, outcomes)
    print(f"  seen: {dict(states)}")


def test_a_run_at_rest_looks_the_same_to_all_who_look_at_once(
    racers: Racers, tmp_path: Path
) -> None:
    round_ = Round(tmp_path, 0)
    round_.suspended()
    orders = [round_.order("view", until=["suspended"], looks=1500, quick=True)] * COUNT
    seen: Counter[str] = Counter()
    for each in racers.race(round_.folder, orders):
        seen.update(each["states"])
    assert seen.keys() == {"suspended"}


def test_one_who_acts_among_many_who_look_is_not_held_up(racers: Racers, tmp_path: Path) -> None:
    for number in range(5):
        round_ = Round(tmp_path, number)
        round_.seconds = QUICK
        round_.suspended()
        looks = [round_.order("view", until=["completed"], looks=3)] * (COUNT - 1)
        act = round_.order("resume", by="the one", value=1)
        told = racers.race(round_.folder, [*looks, act])
        assert told[-1].get("status") == "success", told[-1]
        assert kb.open(round_.folder / "runs")["r"].state == "completed"
