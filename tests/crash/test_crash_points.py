"""A process killed at every point of a step, and at any moment of a run: what was recorded stands.

The kills are real, from inside at a named point or from outside at a random moment; what they did
is read from the journal and from a log that the steps themselves append to.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb.clock import instant
from kassette_nb.entries import Suspend
from kassette_nb.journal import read
from kassette_nb.storage import LocalStorage

from .dying import PHASES, POINTS, TOOL_PHASES, memory, phase
from .forking import Nursery

ANSWERS: dict[str, Any] = {
    "approval": {"approved": True},
    "details": ["a", 1],
    "one": 1,
    "two": {"n": 2},
}
#: Kills at named points, for the table at the end.
NAMED: Counter[str] = Counter()
#: What a person found who looked after a tool in doubt.
SAID: Counter[str] = Counter()


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("nursery") / "errors") as it:
        yield it


class Trail:
    """One run through the lives of its processes, and what must hold after each of them."""

    def __init__(self, nursery: Nursery, folder: Path, workflow: str, slow: bool = False) -> None:
        self.folder = folder
        self.told = {"folder": str(folder), "workflow": workflow, "slow": slow}
        self.lives = self.kills = 0
        self.lines: list[dict[str, Any]] = []
        self.phases: Counter[str] = Counter()
        #: Of which tools a person was asked, and whether it had happened.
        self.asked: list[tuple[str, bool]] = []
        self._nursery = nursery
        self._phase = memory(folder)
        self._whole = b""
        self._effects_when_recorded: dict[str, int] = {}
        self._kills_while_unrecorded: Counter[str] = Counter()

    @property
    def path(self) -> Path:
        return self.folder / "runs" / "r.jsonl"

    @property
    def run(self) -> kb.Run:
        found: kb.Run = kb.open(self.folder / "runs")["r"]
        return found

    @property
    def status(self) -> str:
        runs = kb.open(self.folder / "runs")
        return runs["r"].state if "r" in runs else "unknown"

    @property
    def recorded(self) -> set[str]:
        return {line["stepId"] for line in self.lines if line["type"] == "step"}

    def effects(self) -> Counter[str]:
        log = self.folder / "effects"
        lines = log.read_text().splitlines() if log.exists() else []
        return Counter(line.split()[1] for line in lines)

    def acts(self) -> Counter[str]:
        """How often each tool has acted, as its sink tells."""
        sink = self.folder / "sink"
        lines = sink.read_text().splitlines() if sink.exists() else []
        return Counter(line.split()[0] for line in lines)

    def live(self, do: str = "start", after: float | None = None, **told: Any) -> bool:
        """One process; returns whether it was killed, when all that must hold was found to hold."""
        self._phase[:] = bytes(len(self._phase))
        killed = self._nursery.live({**self.told, "do": do, **told}, after)
        self.lives += 1
        if killed:
            self.kills += 1
            self.phases[phase(self._phase)] += 1
            if "point" in told:
                NAMED[told["point"]] += 1
        self.look(killed)
        return killed

    def look(self, killed: bool) -> None:
        data = self.path.read_bytes() if self.path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        assert whole.startswith(self._whole), "a line that was seen is gone or has changed"
        self._whole = whole
        self.lines = [json.loads(line) for line in whole.splitlines()]
        # The kernel has freed the lock with the process, and what is left is a valid journal.
        assert self.status != "running"
        effects = self.effects()
        recorded = self.recorded
        for step, count in self._effects_when_recorded.items():
            assert effects[step] == count, f"{step} ran again although it was recorded"
        for step in recorded:
            self._effects_when_recorded.setdefault(step, effects[step])
        if killed:
            self._kills_while_unrecorded.update(effects.keys() - recorded)
        for step, count in effects.items():
            assert count <= 1 + self._kills_while_unrecorded[step], step
        acts = self.acts()
        assert set(acts.values()) <= {1}, f"a tool has acted twice: {acts}"
        tools = {e["stepId"] for e in self.lines if e["type"] == "step" and e["kind"] == "tool"}
        assert tools <= acts.keys(), "a tool is recorded that has not acted"

    def finish(self, value: Any) -> None:
        """What must hold at the end of it all."""
        journal = read(LocalStorage(self.folder / "runs"), "r")
        assert journal.torn == 0
        assert self.run.result == value
        assert set(self.effects()) <= self.recorded
        opened = [e for e in self.lines if e["type"] in ("start", "resume")]
        asked = [e for e in journal.entries if isinstance(e, Suspend)]
        answered = sum(e.get("by") == "the harness" for e in opened)
        assert len(opened) <= self.lives + answered
        assert sum(not e.more for e in asked) <= self.lives
        assert journal.last_session <= self.lives + answered


def travel(trail: Trail, chance: random.Random | None = None, kills: int = 1 << 30) -> None:
    """Let the run come to its end, whatever it takes."""

    def after() -> float | None:
        if chance is None or trail.kills >= kills:
            return None
        return chance.uniform(0.0, chance.choice((0.05, 0.1, 0.3)))

    while (status := trail.status) != "completed":
        if status != "suspended":
            again = status != "unknown" and chance is not None and chance.random() < 0.3
            trail.live("recover" if again else "start", after())
            continue
        folded = trail.run.fold()
        if not folded.waits:
            timer = instant(str(folded.pending[0].deadline)) - datetime.now(UTC)
            time.sleep(max(0.0, timer.total_seconds()))
            trail.live("recover", after())
            continue
        event = folded.waits[0].step_id
        if folded.waits[0].event == "in-doubt":
            value = look_after(trail, event)
        else:
            value = ANSWERS[event.rpartition("/")[2]]
        if chance and chance.random() < 0.5:
            # This process does not have the code: one line, and somebody else goes on.
            trail.run.respond(value, by="the harness", event=event)
            trail.look(killed=False)
        else:
            trail.live("resume", after(), event=event, value=value)


def look_after(trail: Trail, step: str) -> dict[str, Any]:
    """Say what a person says of a tool in doubt who has looked whether it happened."""
    happened = trail.acts()[step]
    SAID["it happened" if happened else "it did not"] += 1
    trail.asked.append((step, bool(happened)))
    return {"action": "record", "result": f"{step} done"} if happened else {"action": "retry"}


def uncrashed(nursery: Nursery, folder: Path, workflow: str) -> Any:
    trail = Trail(nursery, folder, workflow)
    travel(trail)
    assert set(trail.effects().values()) == {1}
    trail.finish(trail.run.result)
    return trail.run.result


@pytest.fixture(scope="module")
def short_result(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return uncrashed(nursery, tmp_path_factory.mktemp("short"), "short")


# ------------------------------------------------------------------------------- named points

SHAPES = {
    "an async function": "async",
    "a plain function": "plain",
    "an async function of a block": "b",
    "a plain function of a block": "c",
    "an async step of a branch": "branch/async",
    "a plain step of a branch": "branch/plain",
}
#: How often the step's effect happens in the end, when the process died there once.
EFFECTS = {
    "before call": 1,
    "inside": 2,
    "after call": 2,
    "mid-write": 2,
    "before sync": 1,  # the machine stands, so the kernel still has the whole line
    "after sync": 1,
}


#: Only a write has parts: the first byte of the line, half of it, all but its newline.
PLACES = [
    (point, cut)
    for point in POINTS
    for cut in (("byte", "half", "newline") if point == "mid-write" else ("half",))
]


@pytest.mark.parametrize("step", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(("point", "cut"), PLACES)
def test_a_step_killed_at_a_point_runs_again_only_if_it_was_not_recorded(
    nursery: Nursery, tmp_path: Path, short_result: Any, step: str, point: str, cut: str
) -> None:
    trail = Trail(nursery, tmp_path, "short")
    assert trail.live(point=point, target=step, cut=cut)
    assert trail.phases.keys() == {point}
    assert (step in trail.recorded) is (point in ("before sync", "after sync"))
    assert trail.effects()[step] == (point != "before call")
    assert trail.path.read_bytes().endswith(b"\n") is (point != "mid-write")
    travel(trail)
    trail.finish(short_result)
    assert trail.effects()[step] == EFFECTS[point]
    # Nothing before it ran again, nor did what stands behind it run before.
    told = trail.effects()
    assert all(told[other] == 1 for other in ("early", "late", "end") if other != step)


#: Lines that are no steps, with the life that writes them.
LINES = {
    "the start of a run": (0, "start"),
    "the start of a session": (1, "start"),
    "an answer": (2, "resume"),
    "the first of two questions": (1, "x/one"),
    "the second of two questions": (1, "y/two"),
    "the end": (3, "complete"),
}


@pytest.mark.parametrize(("life", "line"), LINES.values(), ids=LINES.keys())
@pytest.mark.parametrize(("point", "cut"), PLACES[PLACES.index(("mid-write", "byte")) :])
def test_a_line_that_the_process_died_over_is_there_whole_or_not_at_all(
    nursery: Nursery, tmp_path: Path, short_result: Any, life: int, line: str, point: str, cut: str
) -> None:
    trail = Trail(nursery, tmp_path, "short")
    places: list[dict[str, Any]] = [
        {"point": "inside", "target": "async"},
        {},
        {"do": "resume", "event": "one", "value": ANSWERS["one"]},
        {"do": "resume", "event": "two", "value": ANSWERS["two"]},
    ]
    for place in places[:life]:
        trail.live(**place)
    before = trail.lines
    assert trail.live(**{**places[life], "point": point, "target": line, "cut": cut})
    written = [entry for entry in trail.lines[len(before) :] if _is(entry, line)]
    # A new journal gets its name only when it is whole and synced.
    assert bool(written) is (point != "mid-write" and (life, line) != (0, "start"))
    if line == "resume":
        assert ("x/one" in trail.run.waiting_on) is not bool(written)
    if line == "y/two" and not written:
        # Half of a group: the first question says that more were to come.
        assert trail.lines[-1].get("more")
        assert trail.status == "interrupted"
    travel(trail)
    trail.finish(short_result)
    assert sum(trail.effects().values()) == sum(1 for _ in trail.effects()) + (life > 0)


def _is(entry: dict[str, Any], line: str) -> bool:
    return line in (entry["type"], entry.get("stepId"))


def test_a_run_whose_directory_was_not_yet_synced_goes_on(
    nursery: Nursery, tmp_path: Path, short_result: Any
) -> None:
    trail = Trail(nursery, tmp_path, "short")
    assert trail.live(point="before sync", target="directory")
    assert [entry["type"] for entry in trail.lines] == ["start"]
    travel(trail)
    trail.finish(short_result)


def test_k_deaths_inside_one_step_are_k_more_effects_and_k_more_sessions(
    nursery: Nursery, tmp_path: Path, short_result: Any
) -> None:
    trail = Trail(nursery, tmp_path, "short")
    for lives in range(1, 6):
        assert trail.live(point="inside", target="plain")
        assert trail.effects() == {"early": 1, "plain": lives}
        assert [e["session"] for e in trail.lines if e["type"] == "start"] == [*range(1, lives + 1)]
    travel(trail)
    trail.finish(short_result)


def test_deaths_during_replay_leave_no_trace(
    nursery: Nursery, tmp_path: Path, short_result: Any
) -> None:
    trail = Trail(nursery, tmp_path, "short")
    trail.live(point="after sync", target="plain")
    before = trail.path.read_bytes()
    for point in ("starting", "replaying"):
        assert trail.live(point=point)
    assert trail.phases == {"after sync": 1, "starting": 1, "replaying": 1}
    assert trail.path.read_bytes() == before
    travel(trail)
    trail.finish(short_result)


# ------------------------------------------------------------------------------ random moments


@pytest.mark.parametrize("wanted", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_ends_as_if_nothing_had_happened(
    nursery: Nursery, tmp_path: Path, wanted: int
) -> None:
    chance = random.Random(20261130)
    calm = tmp_path / "calm"
    calm.mkdir()
    expected = uncrashed(nursery, calm, "journey")
    phases: Counter[str] = Counter()
    again = runs = 0
    # The long one goes on until chance has hit every phase often enough.
    least = 10 if wanted >= 1000 else 0
    while phases.total() < wanted or min(phases[name] for name in PHASES) < least:
        folder = tmp_path / str(runs)
        folder.mkdir()
        trail = Trail(nursery, folder, "journey", slow=True)
        travel(trail, chance, max(20, wanted - phases.total()))
        # Drawn once, so it is another one in each run, and the same in all of a run's sessions.
        drawn = next(line["result"] for line in trail.lines if line.get("stepId") == "uuid")
        trail.finish({**expected, "uuid": drawn})
        assert len(trail.effects()) == 24
        phases += trail.phases
        again += trail.effects().total() - 24
        runs += 1
    print(f"\n{phases.total()} kills over {runs} runs; {again} unrecorded steps ran again")
    print(f"  {'at':<14}{'random':>7}{'named':>7}")
    for name in PHASES:
        print(f"  {name:<14}{phases[name]:>7}{NAMED[name]:>7}")


# --------------------------------------------------------------------------------------- tools

DONE = [
    ["send done", "shout done"],
    {name: [f"{name}/send done", f"{name}/shout done"] for name in ("left", "right")},
]
ERRANDS = {f"{path}{name}" for path in ("", "left/", "right/") for name in ("send", "shout")}


@pytest.mark.parametrize("step", sorted(ERRANDS))
@pytest.mark.parametrize("point", TOOL_PHASES)
def test_a_tool_killed_at_a_point_acts_once(
    nursery: Nursery, tmp_path: Path, step: str, point: str
) -> None:
    trail = Trail(nursery, tmp_path, "errands")
    assert trail.live(point=point, target=step)
    assert trail.phases.keys() == {point}
    intents = {line["stepId"] for line in trail.lines if line["type"] == "intent"}
    assert (step in intents) is (point != "before intent")
    assert trail.acts()[step] == (point == "between act and result")
    assert step not in trail.recorded
    travel(trail)
    trail.finish(DONE)
    assert trail.acts() == Counter(ERRANDS)
    # Without the key only a person can tell; whoever honours it needs nobody.
    asked = [happened for asked, happened in trail.asked if asked == step]
    unclear = step.endswith("shout") and point != "before intent"
    assert asked == ([point == "between act and result"] if unclear else [])


@pytest.mark.parametrize("least", [10, pytest.param(150, marks=pytest.mark.slow)])
def test_tools_killed_at_random_moments_act_once(
    nursery: Nursery, tmp_path: Path, least: int
) -> None:
    chance = random.Random(20261201)
    phases: Counter[str] = Counter()
    runs = 0
    while min(phases[name] + NAMED[name] for name in TOOL_PHASES) < least:
        folder = tmp_path / str(runs)
        folder.mkdir()
        trail = Trail(nursery, folder, "errands", slow=True)
        travel(trail, chance, kills=12)
        trail.finish(DONE)
        assert trail.acts() == Counter(ERRANDS)
        phases += trail.phases
        runs += 1
    print(f"\n{phases.total()} kills over {runs} runs of tools; {dict(SAID)}")
    print(f"  {'at':<24}{'random':>7}{'named':>7}")
    for name in (*TOOL_PHASES, *PHASES):
        if phases[name] or name in TOOL_PHASES:
            print(f"  {name:<24}{phases[name]:>7}{NAMED[name]:>7}")
