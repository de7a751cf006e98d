"""A local function that acts once per key, whatever happens to the processes that call it."""

import asyncio
import inspect
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import MemoryStorage, idempotent, kassette
from kassette_nb.errors import InDoubtError, JournalValueError


def test_the_same_key_gives_the_same_result_and_acts_once(tmp_path: Path) -> None:
    acts: list[str] = []

    @idempotent(tmp_path / "effects.db")
    def send(to: str) -> dict[str, Any]:
        """Send a mail."""
        acts.append(to)
        return {"number": len(acts), "to": to}

    first = send(to="ana", idempotency_key="k")
    assert send(to="ana", idempotency_key="k") == first == {"number": 1, "to": "ana"}
    assert send(to="ana", idempotency_key="other")["number"] == 2
    assert acts == ["ana", "ana"]
    assert (send.__name__, send.__doc__) == ("send", "Send a mail.")
    assert list(inspect.signature(send).parameters) == ["to", "idempotency_key"]


def test_a_key_with_other_arguments_is_refused(tmp_path: Path) -> None:
    @idempotent(tmp_path / "effects.db")
    def send(to: str) -> str:
        return to

    send(to="ana", idempotency_key="k")
    with pytest.raises(JournalValueError, match="other arguments"):
        send(to="bob", idempotency_key="k")
    with pytest.raises(JournalValueError, match="protects nothing"):
        send(to="bob", idempotency_key="")
    assert send(to="ana", idempotency_key="k") == "ana"


def test_a_call_that_raises_has_not_happened(tmp_path: Path) -> None:
    replies: list[Any] = [ConnectionError("reset"), "sent"]

    @idempotent(tmp_path / "effects.db")
    def send() -> Any:
        reply = replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    with pytest.raises(ConnectionError):
        send(idempotency_key="k")
    assert send(idempotency_key="k") == "sent"


def test_a_result_that_json_cannot_carry_leaves_the_call_in_doubt(tmp_path: Path) -> None:
    acts: list[int] = []

    @idempotent(tmp_path / "effects.db")
    def send() -> Any:
        acts.append(1)
        return {1, 2}

    with pytest.raises(JournalValueError):
        send(idempotency_key="k")
    with pytest.raises(InDoubtError, match="may have acted"):
        send(idempotency_key="k")
    send.settle("k", [1, 2])
    assert send(idempotency_key="k") == [1, 2]
    assert acts == [1]


def test_an_async_function_is_refused(tmp_path: Path) -> None:
    async def send() -> None: ...

    with pytest.raises(TypeError, match="async"):
        idempotent(tmp_path / "effects.db")(send)


def test_threads_with_one_key_act_once(tmp_path: Path) -> None:
    acts: list[int] = []

    @idempotent(tmp_path / "effects.db")
    def slow() -> int:
        acts.append(1)
        time.sleep(0.05)
        return 7

    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(slow(idempotency_key="k"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, acts) == ([7] * 8, [1])


PROGRAM = """
import sys, time
from kassette_nb import idempotent

@idempotent(sys.argv[1] + "/effects.db")
def send(n):
    with open(sys.argv[1] + "/log", "a") as log:
        log.write(f"{n}\\n")
    if sys.argv[2] == "hang":
        print("acted", flush=True)
        time.sleep(60)
    return n

@idempotent(sys.argv[1] + "/effects.db")
def note(n, connection):
    connection.execute("CREATE TABLE IF NOT EXISTS notes (n)")
    connection.execute("INSERT INTO notes VALUES (?)", (n,))
    if sys.argv[2] == "hang":
        print("acted", flush=True)
        time.sleep(60)
    return n

which = {"send": send, "note": note}[sys.argv[3]]
for n in range(int(sys.argv[4])):
    assert which(n=n, idempotency_key=f"key {n}") == n
"""


def child(folder: Path, how: str, which: str, count: int = 1) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(folder), how, which, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=60)
    return process.returncode


def test_processes_with_the_same_keys_act_once_each(tmp_path: Path) -> None:
    children = [child(tmp_path, "run", "send", 25) for _ in range(3)]
    assert [finished(each) for each in children] == [0, 0, 0]
    assert sorted((tmp_path / "log").read_text().split(), key=int) == [str(n) for n in range(25)]


def kill_in_the_act(folder: Path, which: str) -> None:
    dying = child(folder, "hang", which)
    assert dying.stdout is not None
    assert dying.stdout.readline() == "acted\n"
    os.kill(dying.pid, signal.SIGKILL)
    dying.wait()
    dying.stdout.close()


def test_a_process_killed_in_the_act_leaves_a_doubt_and_no_second_act(tmp_path: Path) -> None:
    kill_in_the_act(tmp_path, "send")

    @idempotent(tmp_path / "effects.db")
    def send(n: int) -> int:
        raise AssertionError("acted again")

    with pytest.raises(InDoubtError, match=r"send\.settle"):
        send(n=0, idempotency_key="key 0")
    send.settle("key 0", 0)
    assert send(n=0, idempotency_key="key 0") == 0
    assert (tmp_path / "log").read_text() == "0\n"


def test_what_is_written_in_the_same_transaction_happens_exactly_once(tmp_path: Path) -> None:
    kill_in_the_act(tmp_path, "note")
    assert finished(child(tmp_path, "run", "note", 3)) == 0
    database = sqlite3.connect(tmp_path / "effects.db")
    assert database.execute("SELECT n FROM notes").fetchall() == [(0,), (1,), (2,)]
    database.close()


def test_a_tool_that_does_not_know_itself_asks_a_person(tmp_path: Path) -> None:
    kill_in_the_act(tmp_path, "send")
    storage = MemoryStorage("idempotent")

    @idempotent(tmp_path / "effects.db")
    def send(n: int) -> int:
        return n

    @kassette(storage=storage, name="asks")
    async def flow(ctx: kb.Context) -> Any:
        keyed = ctx.with_options(idempotency_key="key 0")
        return await keyed.tool("send", send, n=0)

    asked = asyncio.run(flow.start(run_id="r"))
    assert (asked.status, asked.event) == ("suspended", "send")
    assert "key 0" in (kb.open(storage)["r"].questions[0].prompt or "")
    done = asyncio.run(flow.resume("r", "in-doubt", {"action": "record", "result": 0}))
    assert done.result == 0
