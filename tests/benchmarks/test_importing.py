"""An agent's process starts without paying for what only a notebook needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.benchmarks import measure

ROUNDS = 25
SIDES = {"ours": "kassette_nb", "floor": "asyncio, msgspec, filelock"}
#: Timed inside the interpreter: its own start would hide the difference.
TIMED = "import time; began = time.perf_counter(); import {}; print(time.perf_counter() - began)"


def test_importing_the_package_against_importing_what_it_is_built_on(tmp_path: Path) -> None:
    # As installed: compiled files are written and read, whatever this checkout's environment says.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(tmp_path / "compiled")
    times: measure.Times = {name: [] for name in SIDES}
    for index, name in enumerate(measure.shuffled(SIDES, ROUNDS + 1)):
        done = subprocess.run(
            [sys.executable, "-c", TIMED.format(SIDES[name])],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env=env,
        )
        if index >= len(SIDES):  # the first of each fills the caches
            times[name].append(float(done.stdout))
    measure.report("import kassette_nb", times, "ours", "floor", 1.4)
