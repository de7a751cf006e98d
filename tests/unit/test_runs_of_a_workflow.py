"""Start, suspend, answer, fork: a recorded step never runs again, and nobody answers twice."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import MemoryStorage, RunResult, Workflow, kassette
from kassette_nb.errors import (
    EventAlreadyAnsweredError,
    EventMismatchError,
    InvalidRunIdError,
    JournalValueError,
    KassetteError,
    MetadataMismatchError,
    ReplayMismatchError,
    RunBusyError,
    StepFailedError,
    TerminalRunError,
    UnknownRunError,
    VersionMismatchError,
)
from kassette_nb.storage import LocalStorage, Storage

GOLDEN = Path(__file__).parent.parent / "golden"


class Triage:
    """The workflow of the examples, with a count of what really ran."""

    def __init__(self, storage: Storage, version: str | None = "v1") -> None:
        self.ran: list[str] = []

        def diagnose(ticket: str) -> dict[str, Any]:
            self.ran.append("diagnose")
            return {"destructive": True, "action": f"restart {ticket}", "pair": (1, 2)}

        async def execute(action: str) -> str:
            self.ran.append("execute")
            return f"did {action}"

        @kassette(storage=storage, version=version, name="triage")
        async def triage(ctx: kb.Context, ticket: str, careful: bool = True) -> Any:
            analysis = await ctx.step("analyze", diagnose, ticket)
            assert analysis["pair"] == [1, 2], "live as on replay"
            answer = await ctx.suspend("approval", prompt="Restart?", context=analysis)
            if not answer["approved"]:
                return {"outcome": "skipped"}
            return {"outcome": await ctx.step("fix", execute, analysis["action"])}

        self.workflow: Workflow = triage


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage("test")


def lines(storage: Storage, run_id: str) -> int:
    found = storage.read(run_id)
    assert found is not None
    return found[0].count(b"\n")


def test_a_run_suspends_is_answered_and_completes(storage: MemoryStorage) -> None:
    triage = Triage(storage)

    async def scenario() -> RunResult:
        first = await triage.workflow.start("pod", run_id="r")
        assert (first.status, first.event, first.run_id) == ("suspended", "approval", "r")
        assert storage.holder("r") is None
        return await triage.workflow.resume("r", "approval", {"approved": True}, by="ana")

    result = asyncio.run(scenario())
    assert (result.status, result.result) == ("success", {"outcome": "did restart pod"})
    assert triage.ran == ["diagnose", "execute"]
    types = [line.split(b'"')[3].decode() for line in storage.read("r")[0].splitlines()]  # type: ignore[index]
    assert types == ["start", "step", "suspend", "resume", "step", "complete"]


def test_starting_a_suspended_or_ended_run_again_writes_and_runs_nothing(
    storage: MemoryStorage,
) -> None:
    triage = Triage(storage)

    async def scenario() -> None:
        await triage.workflow.start("pod", run_id="r")
        before = storage.read("r")
        again = await triage.workflow.start("pod", run_id="r")
        assert again.status == "suspended"
        assert storage.read("r") == before
        done = await triage.workflow.resume("r", "approval", {"approved": False})
        before = storage.read("r")
        assert await triage.workflow.start(run_id="r") == done
        assert storage.read("r") == before

    asyncio.run(scenario())
    assert triage.ran == ["diagnose"]


def test_the_first_answer_wins_and_later_ones_are_told_who_was_first(
    storage: MemoryStorage,
) -> None:
    triage = Triage(storage)

    async def scenario() -> None:
        await triage.workflow.start("pod", run_id="r")
        await triage.workflow.resume("r", "approval", {"approved": True}, by="ana")
        before = storage.read("r")
        with pytest.raises(EventAlreadyAnsweredError, match="answered first by ana") as late:
            await triage.workflow.resume("r", "approval", {"approved": False}, by="bob")
        assert (late.value.by, late.value.value) == ("ana", {"approved": True})
        assert storage.read("r") == before

    asyncio.run(scenario())


def test_bad_input_gets_its_named_error_and_no_byte_is_written(storage: MemoryStorage) -> None:
    triage = Triage(storage)

    async def scenario() -> None:
        workflow = triage.workflow
        await workflow.start("pod", run_id="r")
        before = storage.read("r")
        with pytest.raises(EventMismatchError, match="it waits for 'approval'"):
            await workflow.resume("r", "approvall", True)
        missing = rf"no run 'x' in {storage.place} \(1 runs there\)"
        with pytest.raises(UnknownRunError, match=missing):
            await workflow.resume("x", "approval", True)
        with pytest.raises(InvalidRunIdError, match="not a run id"):
            await workflow.start("pod", run_id="../r")
        with pytest.raises(InvalidRunIdError):
            await workflow.resume("../r", "approval", True)
        with pytest.raises(JournalValueError, match=r"\$\.when is an object"):
            await workflow.resume("r", "approval", {"when": object()})
        with pytest.raises(MetadataMismatchError, match="argument 'ticket' is recorded as 'pod'"):
            await workflow.start("node", run_id="r")
        with pytest.raises(JournalValueError, match="arguments of workflow 'triage'"):
            await workflow.start({1, 2}, run_id="new")
        hold = storage.hold("r", "process 1 on elsewhere")
        with pytest.raises(RunBusyError, match="process 1 on elsewhere holds it") as busy:
            await workflow.resume("r", "approval", {"approved": True})
        assert busy.value.holder == "process 1 on elsewhere"
        hold.release()
        assert storage.read("r") == before
        assert list(storage.list()) == ["r"]

    asyncio.run(scenario())


def test_a_failed_step_raises_the_same_live_and_on_replay(storage: MemoryStorage) -> None:
    seen: list[tuple[Any, ...]] = []
    calls: list[int] = []

    def boom() -> None:
        calls.append(1)
        raise ValueError("no such pod")

    @kassette(storage=storage, name="failing")
    async def failing(ctx: kb.Context) -> str:
        try:
            await ctx.step("look", boom)
        except StepFailedError as error:
            seen.append(
                (error.step_id, error.name, error.message, error.__context__, error.__cause__)
            )
        await ctx.suspend("wait")
        return "went on"

    async def scenario() -> RunResult:
        await failing.start(run_id="r")
        return await failing.resume("r", "wait", None)

    assert asyncio.run(scenario()).result == "went on"
    assert calls == [1]
    assert seen[0] == seen[1] == ("look", "ValueError", "no such pod", None, None)


def test_an_exception_that_leaves_the_workflow_ends_it(storage: MemoryStorage) -> None:
    def boom() -> None:
        raise SystemExit(3)

    @kassette(storage=storage, name="failing")
    async def failing(ctx: kb.Context, how: str) -> None:
        if how == "step":
            await ctx.step("look", boom)
        raise LookupError("nothing there")

    for how, name in (("step", "SystemExit"), ("body", "LookupError")):
        result = asyncio.run(failing.start(how, run_id=how))
        assert result.status == "failed"
        assert result.error is not None
        assert result.error.name == name
        run = kb.open(storage)[how]
        assert run.state == "failed"
        with pytest.raises(TerminalRunError):
            asyncio.run(failing.resume(how, "x", None))


def test_a_value_that_cannot_be_recorded_leaves_the_run_open(storage: MemoryStorage) -> None:
    fixed = False

    @kassette(storage=storage, name="odd")
    async def odd(ctx: kb.Context) -> Any:
        return await ctx.step("look", lambda: 1 if fixed else {"x": {1}})

    with pytest.raises(JournalValueError, match=r"result of step 'look': \$\.x is a set"):
        asyncio.run(odd.start(run_id="r"))
    assert lines(storage, "r") == 1
    assert kb.open(storage)["r"].state == "interrupted"
    fixed = True
    assert asyncio.run(odd.start(run_id="r")).result == 1


def test_changed_code_is_told_before_anything_runs_or_is_written(storage: MemoryStorage) -> None:
    ran: list[str] = []

    def workflow(*names: str) -> Workflow:
        @kassette(storage=storage, name="steps")
        async def steps(ctx: kb.Context) -> None:
            for name in names:
                await ctx.step(name, ran.append, name)
            await ctx.suspend("end")

        return steps

    asyncio.run(workflow("a", "b", "c").start(run_id="r"))
    before = storage.read("r")
    ran.clear()
    changed = [("a", "x", "c"), ("a", "c"), ("b", "a", "c"), ("a", "b"), ("a", "b", "c", "d"), ()]
    for names in changed:
        with pytest.raises(ReplayMismatchError, match="nothing was written") as told:
            asyncio.run(workflow(*names).resume("r", "end", None))
        assert told.value.offset is not None
        assert ran == []
        assert storage.read("r") == before
    assert asyncio.run(workflow("a", "b", "c").resume("r", "end", None)).status == "success"


def test_a_step_that_became_a_suspension_is_a_mismatch(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="kind")
    async def before(ctx: kb.Context) -> None:
        await ctx.step("gate", lambda: 1)
        await ctx.suspend("end")

    asyncio.run(before.start(run_id="r"))

    @kassette(storage=storage, name="kind")
    async def after(ctx: kb.Context) -> None:
        await ctx.suspend("gate")

    with pytest.raises(ReplayMismatchError, match="asks for suspend 'gate', but entry 1"):
        asyncio.run(after.resume("r", "end", None))


def test_another_version_or_workflow_is_refused(storage: MemoryStorage) -> None:
    asyncio.run(Triage(storage).workflow.start("pod", run_id="r"))
    before = storage.read("r")
    with pytest.raises(VersionMismatchError, match="version 'v1' of 'triage', this is 'v2'"):
        asyncio.run(Triage(storage, "v2").workflow.resume("r", "approval", {"approved": True}))

    @kassette(storage=storage, name="other")
    async def other(ctx: kb.Context, ticket: str) -> None: ...

    with pytest.raises(MetadataMismatchError, match="workflow is recorded as 'triage'"):
        asyncio.run(other.start("pod", run_id="r"))
    assert storage.read("r") == before


def test_a_fork_keeps_the_prefix_and_leaves_its_source_alone(storage: MemoryStorage) -> None:
    triage = Triage(storage)

    async def scenario() -> None:
        workflow = triage.workflow
        await workflow.start("pod", run_id="r")
        await workflow.resume("r", "approval", {"approved": True})
        before = storage.read("r")
        made = await workflow.fork("r", at="approval", label="the other way")
        assert made == "r.2"
        assert kb.open(storage)[made].state == "ready"
        result = await workflow.start(run_id=made)
        assert result.status == "suspended"
        result = await workflow.resume(made, "approval", {"approved": False})
        assert result.result == {"outcome": "skipped"}
        assert storage.read("r") == before
        assert await workflow.fork("r", at=2) == "r.3"

    asyncio.run(scenario())
    assert triage.ran == ["diagnose", "execute"]
    fork = kb.open(storage)["r.2"]
    assert fork.label == "the other way"
    assert fork.source is not None
    assert (fork.source.run_id, fork.source.from_offset) == ("r", 2)


def test_an_overridden_step_ends_the_prefix_and_is_marked(storage: MemoryStorage) -> None:
    triage = Triage(storage)

    async def scenario() -> RunResult:
        workflow = triage.workflow
        await workflow.start("pod", run_id="r")
        await workflow.resume("r", "approval", {"approved": True})
        plan = {"destructive": True, "action": "drain node", "pair": [1, 2]}
        made = await workflow.fork("r", override={"analyze": plan})
        await workflow.start(run_id=made)
        return await workflow.resume(made, "approval", {"approved": True})

    assert asyncio.run(scenario()).result == {"outcome": "did drain node"}
    fork = kb.open(storage)["r.2"]
    assert fork["analyze"].entry["overridden"] is True
    assert fork.waiting_on == ()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"at": "nowhere"}, "no step 'nowhere' recorded"),
        ({"at": 99}, "not an offset of it"),
        ({"at": -1}, "not an offset of it"),
        ({}, "say where to fork"),
        ({"override": {"nowhere": 1}}, "no step 'nowhere' recorded"),
        ({"override": {"analyze": 1, "fix": 2}}, "exactly one step"),
        ({"override": {"analyze": 1}, "at": "fix"}, "ends the prefix"),
        ({"override": {"analyze": {1}}}, "is a set"),
        ({"at": "fix", "new_run_id": "r"}, "exists already"),
        ({"at": "fix", "new_run_id": "a/b"}, "not a run id"),
    ],
)
def test_a_fork_that_cannot_be_made_writes_nothing(
    storage: MemoryStorage, options: dict[str, Any], reason: str
) -> None:
    triage = Triage(storage)

    async def scenario() -> None:
        await triage.workflow.start("pod", run_id="r")
        await triage.workflow.resume("r", "approval", {"approved": True})
        with pytest.raises(KassetteError, match=reason):
            await triage.workflow.fork("r", **options)

    asyncio.run(scenario())
    assert list(storage.list()) == ["r"]


def test_a_fork_keeps_unknown_fields_and_large_numbers_of_its_source(tmp_path: Path) -> None:
    for group, name in (("good", "unknown-fields"), ("hostile", "numbers")):
        (tmp_path / f"{name}.jsonl").write_bytes((GOLDEN / group / f"{name}.jsonl").read_bytes())
    storage = LocalStorage(tmp_path)
    for name in ("unknown-fields", "numbers"):
        made = kb.open(storage)[name].fork(at=2)
        old, new = (
            (tmp_path / f"{i}.jsonl").read_bytes().split(b"\n") for i in (name, made.run_id)
        )
        assert new[1] == old[1]
        assert (b'"x-team":"sre"' in new[0]) == (b'"x-team":"sre"' in old[0])


def test_a_journal_in_kassettes_own_form_replays(tmp_path: Path) -> None:
    path = tmp_path / "INC-4900-suspended.jsonl"
    path.write_bytes((GOLDEN / "good" / path.name).read_bytes())
    ran: list[str] = []

    @kassette(storage=tmp_path, name="kassette_own")
    async def triage(ctx: kb.Context, ticket: Any) -> Any:
        analysis = await ctx.step("analyze", ran.append, "analyze")
        answer = await ctx.suspend("human-approval")
        assert answer["approved"]
        return await ctx.step("apply-fix", lambda: analysis["suggestedAction"])

    result = asyncio.run(triage.resume(path.stem, "human-approval", {"approved": True}))
    assert (result.result, ran) == ("restart-pod-7f3c", [])


def test_an_entry_of_an_unknown_type_is_shown_but_not_replayed(tmp_path: Path) -> None:
    path = tmp_path / "unknown-type.jsonl"
    path.write_bytes((GOLDEN / "good" / path.name).read_bytes())

    @kassette(storage=tmp_path, name="foreign")
    async def triage(ctx: kb.Context, ticket: Any) -> None: ...

    with pytest.raises(ReplayMismatchError, match="entry 1 is of type 'annotation'"):
        asyncio.run(triage.start(run_id=path.stem))


def test_generated_ids_sort_by_time() -> None:
    from kassette_nb.runid import new_run_id

    ids = [new_run_id() for _ in range(50)]
    assert [i[:13] for i in ids] == sorted(i[:13] for i in ids)
    assert all(i[14] == "7" for i in ids)


@pytest.mark.parametrize("name", ["a/b", "a#2", "a@x", "", "a\ud800"])
def test_a_name_that_ids_are_built_with_is_refused_and_the_run_stays_open(
    storage: MemoryStorage, name: str
) -> None:
    @kassette(storage=storage, name="names")
    async def names(ctx: kb.Context) -> None:
        await ctx.step("fine", lambda: 1)
        await ctx.step(name, lambda: 1)

    with pytest.raises(JournalValueError, match="is not a name"):
        asyncio.run(names.start(run_id="r"))
    assert kb.open(storage)["r"].state == "interrupted"


def test_two_spellings_of_one_name_are_one_id(storage: MemoryStorage) -> None:
    ran: list[int] = []

    def workflow(name: str) -> Workflow:
        @kassette(storage=storage, name="spelling")
        async def spelling(ctx: kb.Context) -> None:
            await ctx.step(name, ran.append, 1)
            await ctx.suspend("end")

        return spelling

    asyncio.run(workflow("caf\u00e9").start(run_id="r"))
    asyncio.run(workflow("cafe\u0301").resume("r", "end", None))
    assert ran == [1]


def test_a_function_that_cannot_be_a_workflow_is_refused_where_it_is_defined() -> None:
    with pytest.raises(TypeError, match="async def"):
        kassette(lambda ctx: None)  # type: ignore[arg-type, return-value]

    async def no_ctx() -> None: ...
    async def star(ctx: kb.Context, *rest: int) -> None: ...
    async def clash(ctx: kb.Context, run_id: str) -> None: ...

    for fn in (no_ctx, star, clash):
        with pytest.raises(TypeError):
            kassette(fn)


def test_an_answer_must_fit_its_schema(storage: MemoryStorage) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    @kassette(storage=storage, name="schema")
    async def asks(ctx: kb.Context) -> Any:
        return await ctx.suspend("how-many", schema=schema)

    async def scenario() -> RunResult:
        await asks.start(run_id="r")
        before = storage.read("r")
        with pytest.raises(JournalValueError, match=r"\$\.n: 'three' is not of type 'integer'"):
            await asks.resume("r", "how-many", {"n": "three"})
        assert storage.read("r") == before
        return await asks.resume("r", "how-many", {"n": 3})

    assert asyncio.run(scenario()).result == {"n": 3}
