"""Runs of steps with results of 1 KB."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from kassette_nb import LocalStorage, Workflow, entries, kassette, values
from kassette_nb.clock import stamp
from kassette_nb.entries import Known, Start, Step

BEGAN = datetime(2026, 3, 1, 9, tzinfo=UTC)
#: 1,024 bytes of JSON, of the shape of a tool's answer.
RESULT: dict[str, Any] = {"exit": 0, "seconds": 1.25, "files": ["a.py", "b.py"], "stdout": ""}
RESULT["stdout"] = "y" * (1024 - len(values.encode(RESULT)))


async def answer() -> dict[str, Any]:
    """A step's function that costs nothing."""
    return RESULT


def plain_answer() -> dict[str, Any]:
    """The same as a plain function, which runs in a thread."""
    return RESULT


def journal(steps: int) -> bytes:
    """A run of `steps` steps named ``work``, and still open."""
    lines: list[Known] = [Start(session=1, workflow="bench", metadata=values.encode({}))]
    lines += [
        Step(
            session=1,
            step_id="work" if number == 1 else f"work#{number}",
            name="work",
            kind="step",
            started_at=stamp(BEGAN + timedelta(milliseconds=700 * number)),
            result=values.encode(RESULT),
        )
        for number in range(1, steps + 1)
    ]
    for offset, line in enumerate(lines):
        line.offset = offset
        line.timestamp = stamp(BEGAN + timedelta(milliseconds=700 * offset + 600))
    return b"".join(map(entries.encode, lines))


def workflow(storage: LocalStorage, steps: int) -> Workflow:
    """The code of such a run; it goes live after `steps` steps."""

    async def bench(ctx: Any) -> None:
        for _ in range(steps + 1):
            await ctx.step("work", answer)

    return kassette(name="bench", storage=storage)(bench)
