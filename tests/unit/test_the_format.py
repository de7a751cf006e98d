"""The shipped schema is the structs', and every line that is written fits it."""

import asyncio
import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

import kassette_nb as kb
from kassette_nb import MemoryStorage, kassette
from kassette_nb import format as journal_format
from kassette_nb.entries import TYPES
from kassette_nb.errors import ReplayMismatchError
from kassette_nb.storage.base import Storage
from kassette_nb.testing import Fault, FaultyStorage, How, always_replay

GOLDEN = Path(__file__).parent.parent / "golden"


def test_the_shipped_schema_is_up_to_date() -> None:
    shipped = (files("kassette_nb") / "journal.schema.json").read_text()
    assert shipped == journal_format.text(), "python -m kassette_nb.format"


def test_the_specification_names_every_entry_and_every_field() -> None:
    text = (files("kassette_nb") / "FORMAT.md").read_text()
    for kind, struct in TYPES.items():
        assert f"`{kind}`" in text
        for field in struct.__struct_encode_fields__:
            assert f"`{field}" in text, f"{kind}.{field}"


def test_journals_of_kassettes_own_form_fit_the_schema() -> None:
    checker = jsonschema.Draft202012Validator(journal_format.json_schema())
    for path in (GOLDEN / "good").iterdir():
        for line in path.read_bytes().splitlines():
            if path.stem != "unknown-type":
                checker.validate(json.loads(line))


def test_a_line_that_breaks_the_format_does_not_fit_the_schema() -> None:
    checker = jsonschema.Draft202012Validator(journal_format.json_schema())
    good = {"type": "step", "session": 1, "offset": 0, "timestamp": "2026-01-01T00:00:00.000Z"}
    good |= {"stepId": "a", "name": "a"}
    assert checker.is_valid(good)
    for change in ({"session": 0}, {"offset": -1}, {"timestamp": "now"}, {"stepId": 1}):
        assert not checker.is_valid(good | change)


# ------------------------------------------------------------------ what the package offers tests


def test_always_replay_finds_code_that_decides_differently() -> None:
    decisions = iter("abcdefgh")

    @kassette(storage="memory:unused", name="flips")
    async def flips(ctx: kb.Context) -> None:
        await ctx.step(next(decisions), lambda: 1)
        await ctx.step("then", lambda: 1)

    with pytest.raises(ReplayMismatchError):
        asyncio.run(always_replay(flips))


def test_always_replay_runs_each_step_once_through_waits_and_branches() -> None:
    ran: list[str] = []

    async def work() -> None:  # not in a thread: both branches are ready in the same turn
        ran.append("branch")

    async def branch(ctx: kb.Context) -> object:
        await ctx.step("work", work)
        return await ctx.suspend("inner")

    @kassette(storage="memory:unused", name="steady")
    async def steady(ctx: kb.Context, n: int) -> object:
        await ctx.step("first", ran.append, "first")
        await ctx.sleep(3600)
        found = await ctx.parallel({"a": branch, "b": branch})
        answer = await ctx.suspend("outer")
        return [n, found, answer]

    answers = {"a/inner": 1, "inner": 2, "outer": 3}
    result = asyncio.run(always_replay(steady, 7, answers=answers))
    assert result.result == [7, {"a": 1, "b": 2}, 3]
    assert sorted(ran) == ["branch", "branch", "first"]
    unanswered = asyncio.run(always_replay(steady, 7, answers={"inner": 0}))
    assert unanswered.events == ("outer",)


@pytest.mark.parametrize("how", ["crash", "torn write", "lost reply", "failed sync", "full disk"])
@pytest.mark.parametrize("at", range(1, 6))
def test_a_run_survives_every_fault_at_every_write(how: How, at: int) -> None:
    ran: list[int] = []
    storage: Storage = MemoryStorage("faults")
    faulty = FaultyStorage(storage)
    faulty.how, faulty.fail_at = how, at

    @kassette(storage=faulty, name="faulty")
    async def workflow(ctx: kb.Context) -> str:
        for number in range(3):
            await ctx.step("act", ran.append, number)
        return "done"

    with pytest.raises((Fault, kb.KassetteError)):
        asyncio.run(workflow.start(run_id="r"))
    faulty.fail_at = None
    assert asyncio.run(workflow.start(run_id="r")).result == "done"
    # At most the step whose record was lost ran again.
    assert sorted(set(ran)) == [0, 1, 2]
    assert len(ran) <= 4
