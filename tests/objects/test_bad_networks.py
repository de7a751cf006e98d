"""Whatever the network does: each entry once, in order, none lost, and the loser told by name."""

import json
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from kassette_nb.clock import SystemClock
from kassette_nb.entries import Note, Start
from kassette_nb.errors import FencedError
from kassette_nb.journal import Writer, read
from kassette_nb.storage import Conflict
from kassette_nb.storage.objects import ObjectStorage
from kassette_nb.values import decode, encode
from tests.objects.proxy import FAULTS, Proxy

WRITERS = 4


def agents(*calls: tuple[str, ...]) -> list[list[dict[str, Any]]]:
    """Run processes side by side; what each has said."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.objects.agents", *call],
            stdout=subprocess.PIPE,
            env=os.environ,
            text=True,
        )
        for call in calls
    ]
    said = []
    for process in started:
        out, _ = process.communicate(timeout=600)
        assert process.returncode == 0
        said.append([json.loads(line) for line in out.splitlines()])
    return said


def marks(storage: ObjectStorage, run_id: str) -> list[tuple[str, int]]:
    """The notes of a journal, which is whole: reading it checks offsets, sessions and lines."""
    found = read(storage, run_id).entries
    ids = [entry.write_id for entry in found if isinstance(entry, Note | Start)]
    assert len(set(ids)) == len(found), "every line has a write id of its own"
    return [tuple(decode(entry.data)) for entry in found if isinstance(entry, Note)]


def storm(net: Proxy, url: str, count: int, rate: float) -> None:
    storage = ObjectStorage(url)
    net.plan(rate=rate, seed=count, delay=0.02)
    own = [("appending", url, f"own-{n}", f"w{n}", str(count)) for n in range(WRITERS)]
    alone = agents(*own)
    struck = Counter(net.faults)
    net.plan(rate=rate, seed=count + 1, delay=0.02)
    racing = [("appending", url, "shared", f"w{n}", str(count)) for n in range(WRITERS)]
    together = agents(*racing)
    struck.update(net.faults)
    net.plan()
    assert set(struck) == set(FAULTS), "every fault struck"
    for n in range(WRITERS):
        assert marks(storage, f"own-{n}") == [(f"w{n}", i) for i in range(count)]
        assert alone[n][-1]["fenced"] == 0, "a bad network alone fences nobody"
    shared = marks(storage, "shared")
    assert len(shared) == WRITERS * count
    for n in range(WRITERS):
        assert [i for who, i in shared if who == f"w{n}"] == list(range(count))
    fenced = sum(said[-1]["fenced"] for said in together)
    print(f"{2 * WRITERS * count} entries, faults {dict(struck)}, fenced {fenced} times")
    assert fenced > 0, "the race was one"


def test_four_processes_through_a_bad_network_lose_and_double_nothing(
    net: Proxy, bucket: str
) -> None:
    storm(net, bucket, count=8, rate=0.4)


@pytest.mark.slow
def test_forty_entries_each_through_a_bad_network(net: Proxy, bucket: str) -> None:
    storm(net, bucket, count=40, rate=0.3)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_by_itself_is_survived_by_every_operation(
    net: Proxy, bucket: str, fault: str
) -> None:
    storage = ObjectStorage(bucket)
    net.plan(rate=0.5, kinds=[fault], seed=3, delay=0.01)
    hold = storage.hold("r", "somebody")
    writer = Writer(storage, "r", None, SystemClock())
    writer.append(Start(session=0, workflow="w"))
    for number in range(6):
        writer.append(Note(session=0, kind="mark", data=encode(["w", number])))
    assert list(storage.list()) == ["r"]
    hold.release()
    assert storage.holder("r") is None
    assert marks(storage, "r") == [("w", number) for number in range(6)]
    assert net.faults[fault] >= 3


def test_a_write_that_arrives_after_its_session_gave_up_is_not_doubled(
    net: Proxy, bucket: str
) -> None:
    # The reply of the first write is lost and so are the looks that follow; the next session
    # finds the line.
    storage = ObjectStorage(bucket)
    writer = Writer(storage, "r", None, SystemClock())
    writer.append(Start(session=0, workflow="w"))
    writer.append(Note(session=0, kind="mark", data=encode(["a", 0])))
    again = Writer(storage, "r", read(storage, "r"), SystemClock())
    again.append(Note(session=0, kind="mark", data=encode(["b", 0])))
    with pytest.raises(FencedError, match="'r'"):
        writer.append(Note(session=0, kind="mark", data=encode(["a", 1])))
    with pytest.raises(FencedError):
        writer.append(Note(session=0, kind="mark", data=encode(["a", 2])))
    assert marks(storage, "r") == [("a", 0), ("b", 0)]


def test_a_write_applied_and_overtaken_counts_and_the_next_is_fenced(
    net: Proxy, bucket: str
) -> None:
    storage = ObjectStorage(bucket)
    first = storage.create("r", b"one\n")
    overtaken = ObjectStorage(bucket)
    swap = storage._objects._connect

    def between() -> Any:
        # Between the lost write and the look at what is there, somebody else appends.
        storage._objects._connect = swap
        found = overtaken.read("r")
        assert found is not None
        second = overtaken.append("r", b"two\n", found[1])
        overtaken.append("r", b"three\n", second)
        return swap()

    storage._objects._connect = between
    token = storage.append("r", b"two\n", first)
    with pytest.raises(Conflict):
        storage.append("r", b"four\n", token)
    found = storage.read("r")
    assert found is not None
    assert found[0] == b"one\ntwo\nthree\n"


def test_the_same_write_of_two_sessions_counts_for_one(bucket: str) -> None:
    # Two that read the same journal and write the same at the same moment differ in the write id.
    one, two = ObjectStorage(bucket), ObjectStorage(bucket)
    Writer(one, "r", None, SystemClock()).append(Start(session=0, workflow="w"))
    writers = [Writer(s, "r", read(s, "r"), SystemClock()) for s in (one, two)]
    writers[0].append(Note(session=0, kind="mark", data=encode(["x", 0])))
    with pytest.raises(FencedError):
        writers[1].append(Note(session=0, kind="mark", data=encode(["x", 0])))
    assert marks(one, "r") == [("x", 0)]
