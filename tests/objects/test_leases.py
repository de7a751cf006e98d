"""A killed holder's run is free within the lease; a living one is never robbed of what it wrote."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kassette_nb import lease
from kassette_nb.clock import SystemClock
from kassette_nb.entries import Note, Start
from kassette_nb.errors import FencedError, RunBusyError, StorageError
from kassette_nb.journal import Writer, read
from kassette_nb.storage import Busy
from kassette_nb.storage.objects import ObjectStorage
from tests.objects.proxy import Proxy

LEASE = 4.0


class Agent:
    """A process that works on a run and says what it does, a JSON object a line."""

    def __init__(self, *call: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.objects.agents", *call],
            stdout=subprocess.PIPE,
            env=os.environ,
            text=True,
        )
        self.pid = self.process.pid

    def wait_for(self, key: str) -> dict[str, Any]:
        """Read until it says something of this kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said: dict[str, Any] = json.loads(line)
            if key in said:
                return said
        raise AssertionError(f"it ended without saying {key!r}")

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> list[dict[str, Any]]:
        """Wait for its end; what else it said."""
        out, _ = self.process.communicate(timeout=120)
        return [json.loads(line) for line in out.splitlines()]


def takeovers(url: str, folder: Path, rounds: int) -> None:
    """Kill the holders of runs in the middle of a step; others wait to go on with each."""
    steps = 5
    seconds: list[float] = []
    guard = threading.Lock()

    def one(number: int) -> None:
        run_id, own = f"r{number}", folder / str(number)
        own.mkdir()
        call = ("stepping", url, run_id, str(LEASE), str(own), str(steps), "0.15")
        first = Agent(*call)
        for _ in range(1 + number % 3):
            first.wait_for("step")
        second = Agent(*call)
        time.sleep(0.05 * (number % 4))
        first.kill(signal.SIGKILL)
        killed = time.monotonic()
        first.process.communicate()
        second.wait_for("session")
        with guard:
            seconds.append(time.monotonic() - killed)
        assert second.end()[-1]["result"] == steps

    threads = [threading.Thread(target=one, args=(number,)) for number in range(rounds)]
    for batch in range(0, rounds, 4):
        for thread in threads[batch : batch + 4]:
            thread.start()
        for thread in threads[batch : batch + 4]:
            thread.join()
    assert len(seconds) == rounds
    print(f"taken over after {min(seconds):.1f} to {max(seconds):.1f} s of a lease of {LEASE} s")
    # A busy machine takes seconds to start a process and to let it ask.
    assert max(seconds) <= 2 * LEASE
    storage = ObjectStorage(url)
    for number in range(rounds):
        journal = read(storage, f"r{number}")
        recorded = [e.step_id for e in journal.entries if hasattr(e, "step_id")]
        assert recorded == [f"s{n}" for n in range(steps)], "each step once"
        ran = Counter(
            line.split()[0] for line in (folder / str(number) / "marks").read_text().splitlines()
        )
        # The step that the kill fell into was not recorded, so it ran again; no other did.
        assert sum(ran.values()) <= steps + 1
        assert set(ran) == {str(n) for n in range(steps)}


def test_a_killed_holders_run_goes_on_elsewhere_within_the_lease(
    bucket: str, tmp_path: Path
) -> None:
    takeovers(bucket, tmp_path, rounds=4)


def test_a_busy_run_says_when_a_dead_holder_loses_it(bucket: str) -> None:
    hold = ObjectStorage(bucket, lease=7).hold("r", "process 1 on elsewhere")
    with pytest.raises(RunBusyError, match=r"If it has died, the run becomes free within 7 s\."):
        lease.acquire_blocking(ObjectStorage(bucket), "r", 0.0)
    hold.release()


@pytest.mark.slow
def test_twenty_killed_holders(bucket: str, tmp_path: Path) -> None:
    takeovers(bucket, tmp_path, rounds=20)


def test_a_holder_that_was_paused_past_its_lease_is_fenced_before_its_tool_runs(
    bucket: str, tmp_path: Path
) -> None:
    call = ("tooling", bucket, "r", str(LEASE), str(tmp_path))
    old = Agent(*call)
    old.wait_for("at")
    old.kill(signal.SIGSTOP)
    new = Agent(*call)
    assert new.wait_for("at")  # it holds the run, and runs the step that was not recorded
    (tmp_path / "gate").touch()
    assert new.end() == [{"result": "done for 1"}]
    old.kill(signal.SIGCONT)
    said = old.end()
    assert said[-1]["error"] == "FencedError"
    assert f"process {new.pid}" in said[-1]["text"], "it is told who has it now"
    acts = (tmp_path / "acts").read_text().split()
    assert acts == [str(new.pid)], "the tool ran once, and not in the old process"


def test_a_paused_holder_is_fenced_even_where_the_new_one_has_written_nothing(
    bucket: str, tmp_path: Path
) -> None:
    old = Agent("tooling", bucket, "r", str(LEASE), str(tmp_path))
    old.wait_for("at")
    old.kill(signal.SIGSTOP)
    storage = ObjectStorage(bucket, lease=LEASE)
    before = read(storage, "r").data
    deadline = time.monotonic() + LEASE + 3
    while True:
        try:
            hold = storage.hold("r", "the next one")
            break
        except Busy:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    (tmp_path / "gate").touch()
    old.kill(signal.SIGCONT)
    said = old.end()[-1]
    assert said["error"] == "FencedError"
    assert "the next one took it over" in said["text"]
    assert not (tmp_path / "acts").exists()
    assert read(storage, "r").data == before
    hold.release()


def test_a_living_holder_keeps_its_run_however_long_it_works(bucket: str) -> None:
    storage, other = ObjectStorage(bucket, lease=LEASE), ObjectStorage(bucket, lease=LEASE)
    hold = storage.hold("r", "the first")
    until = time.monotonic() + LEASE + 0.5
    while time.monotonic() < until:
        with pytest.raises(Busy, match="the first"):
            other.hold("r", "the second")
        time.sleep(0.3)
    hold.release()
    other.hold("r", "the second").release()


@pytest.mark.parametrize("minutes", [-30, 30])
def test_a_clock_that_is_wrong_by_minutes_robs_nobody_and_waits_for_nobody(
    bucket: str, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    from kassette_nb.storage import leases

    real = ObjectStorage(bucket, lease=LEASE)
    hold = real.hold("living", "the living")
    dead = real.hold("dead", "the dead")
    dead._stop.set()  # it does not renew any more, and has told nobody
    shift = timedelta(minutes=minutes)

    class Wrong(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + shift

    monkeypatch.setattr(leases, "datetime", Wrong)
    now = time.time
    monkeypatch.setattr(
        "kassette_nb.storage.leases.time.time", lambda: now() + shift.total_seconds()
    )
    wrong = ObjectStorage(bucket, lease=LEASE)
    with pytest.raises(Busy, match="the living"):
        wrong.hold("living", "the wrong one")
    deadline = time.monotonic() + LEASE + 2
    while True:
        try:
            wrong.hold("dead", "the wrong one").release()
            break
        except Busy:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    with pytest.raises(Busy, match="the living"):
        wrong.hold("living", "the wrong one")
    hold.release()


def test_a_clock_that_is_set_while_it_is_used_robs_nobody(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    living = ObjectStorage(bucket, lease=LEASE)
    hold = living.hold("r", "the living")
    other = ObjectStorage(bucket, lease=LEASE)
    with pytest.raises(Busy, match="the living"):
        other.hold("r", "the other")  # it knows the server's time now
    now = time.time
    for jump in (30, -30):
        with monkeypatch.context() as set_to:
            set_to.setattr("kassette_nb.storage.leases.time.time", lambda by=jump: now() + by)
            with pytest.raises(Busy, match="the living"):
                other.hold("r", "the other")
    hold.release()


def test_a_viewer_with_a_wrong_clock_is_right_after_one_lease(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kassette_nb.storage import leases

    storage = ObjectStorage(bucket, lease=LEASE)
    hold = storage.hold("r", "the living")
    assert ObjectStorage(bucket).holder("r") == "the living"

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(hours=1)

    viewer = ObjectStorage(bucket)
    monkeypatch.setattr(leases, "datetime", Ahead)
    assert viewer.holder("r") is None  # by its own clock: nothing else is known yet
    deadline = time.monotonic() + LEASE
    while viewer.holder("r") is None:  # until it has seen the lease renewed
        assert time.monotonic() < deadline
        time.sleep(0.1)
    hold.release()
    assert viewer.holder("r") is None


def test_a_renewal_whose_reply_was_lost_is_not_taken_for_a_robbery(net: Proxy, bucket: str) -> None:
    storage = ObjectStorage(bucket, lease=LEASE)
    hold = storage.hold("r", "me")
    writer = Writer(storage, "r", None, SystemClock())
    writer.append(Start(session=0, workflow="w"))
    net.plan(rate=1.0, kinds=["dropped after"], methods=["PUT", "GET"])
    with pytest.raises(StorageError):
        hold._renew()  # applied, and nobody heard
    net.plan()
    hold._renew()
    writer.append(Note(session=0, kind="mark"))
    hold.release()
    assert storage.holder("r") is None


def test_a_deleted_lease_stops_its_holder(bucket: str) -> None:
    import obstore

    storage = ObjectStorage(bucket, lease=LEASE)
    hold = storage.hold("r", "me")
    writer = Writer(storage, "r", None, SystemClock())
    writer.append(Start(session=0, workflow="w"))
    obstore.delete(storage._connect(), hold._key)
    hold._renew()
    with pytest.raises(FencedError, match="its lease was deleted"):
        writer.append(Note(session=0, kind="mark"))
    hold.release()


def test_a_lease_says_who_and_how_long_in_plain_json(bucket: str) -> None:
    storage = ObjectStorage(bucket, lease=LEASE)
    hold = storage.hold("r", "process 1 on here")
    found = storage._objects.get(hold._key)
    assert found is not None
    assert found.data is not None
    lease = json.loads(found.data)
    assert (lease["owner"], lease["seconds"], lease["holds"]) == ("process 1 on here", LEASE, 1)
    left = datetime.fromisoformat(lease["expires"]) - datetime.now(UTC)
    assert 0 < left.total_seconds() <= LEASE
    hold.release()
    again = storage.hold("r", "process 2 on here")
    assert again._lease.holds == 2
    again.release()


def test_a_lease_too_short_to_be_told_is_refused(bucket: str) -> None:
    with pytest.raises(StorageError, match="at least 4"):
        ObjectStorage(bucket, lease=1)
