"""Processes to be killed, forked from a warm one: a fresh interpreter for each kill costs 0.4 s.

The parent imports everything and opens no run; every child begins its life as a new process does,
before any session exists. `Nursery` is the harness' side, `python -m tests.crash.forking` the
parent.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KILLED = -signal.SIGKILL
FOREVER = 60.0


class Nursery:
    """The warm parent, as the harness talks to it; a context manager that ends it.

    Args:
        errors: Where the children's tracebacks go.
    """

    def __init__(self, errors: Path) -> None:
        self.errors = errors
        with errors.open("w") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.forking"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        assert self._read() == "ready"

    def __enter__(self) -> Nursery:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate(timeout=FOREVER)  # the end of its input ends it

    def live(self, told: dict[str, Any], after: float | None = None) -> bool:
        """Let a child live; kill it after so many seconds, if it lives that long.

        Returns:
            Whether it was killed, by us or by itself; otherwise it ended well.
        """
        pid = int(self._ask(json.dumps(told)))
        # A pidfd names this very process, and polls readable when all its threads are gone.
        watch = os.pidfd_open(pid)
        try:
            alive = select.poll()
            alive.register(watch, select.POLLIN)
            if not alive.poll(FOREVER * 1000 if after is None else after * 1000):
                signal.pidfd_send_signal(watch, signal.SIGKILL)
                assert after is not None, f"a child hangs: {told}"
        finally:
            os.close(watch)
            code = int(self._ask("bury"))
        assert code in (0, KILLED), self.errors.read_text()
        return code == KILLED

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, self.errors.read_text()
        return line


def serve(live: Callable[[dict[str, Any]], None]) -> None:
    """Fork a child for each line of input, and bury it when told to."""
    print("ready", flush=True)
    while line := sys.stdin.readline():
        child = os.fork()
        if not child:
            code = 1
            try:
                live(json.loads(line))
                code = 0
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)
        print(child, flush=True)
        sys.stdin.readline()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    from tests.crash.dying import live

    serve(live)
