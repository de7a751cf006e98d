"""Calls in any order, crashed at any write, leave exactly the lines that a simple model says.

The model knows one workflow and the rules of FORMAT.md: what a session writes, one write after
the other. A crash lets some of the writes happen, and perhaps one more whose reply is lost.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kassette_nb import Context, MemoryStorage, Workflow, kassette, state
from kassette_nb.clock import stamp
from kassette_nb.errors import (
    EventAlreadyAnsweredError,
    EventMismatchError,
    KassetteError,
    RunCancelledError,
    StepFailedError,
    StorageError,
    TerminalRunError,
    UnknownRunError,
)
from kassette_nb.journal import parse
from kassette_nb.storage import Storage
from kassette_nb.testing import Fault, FaultyStorage, How, ManualClock
from tests.properties import journals

PATIENCE = 100.0  # seconds until nobody may approve any more
GATES = ("left/ok", "right/ok")
#: The steps and questions in the order of the workflow; the gates are one block.
PLAN = ("plan", "look", "approve", "gates", "act", "pay")
#: The tools among them: the first asks when in doubt, the second takes the key and runs again.
TOOLS = ("act", "pay")
ENDED = ("completed", "failed", "cancelled")


#: How a write fails, and whether it happened all the same.
WAYS: dict[How, bool] = {
    "crash": False, "torn write": False, "lost reply": True, "failed sync": False,
}  # fmt: skip


@dataclass
class Line:
    """An entry as the model sees it."""

    kind: str
    id: str = ""
    value: Any = None
    failed: bool = False
    more: bool = False
    deadline: str | None = None
    attempt: int | None = None


@dataclass
class Run:
    """A run as the model sees it; lines before ``copied`` are its source's.

    Intents before ``scope`` are of another logical execution.
    """

    name: str
    lines: list[Line] = field(default_factory=list)
    copied: int = 0
    scope: int = 0

    def attempt(self, tool: str) -> tuple[int, Any]:
        """Return the newest attempt that has no outcome, and what was said of it; 0 without one."""
        found: tuple[int, Any] = 0, None
        for number, line in enumerate(self.lines):
            if line.id == tool and number >= self.scope:
                if line.kind == "intent":
                    found = line.attempt or 0, None
                elif line.kind == "resume" and found[0]:
                    found = found[0], line.value
                elif line.kind == "step":
                    found = 0, None
        return found

    def steps(self) -> dict[str, Line]:
        return {line.id: line for line in self.lines if line.kind == "step"}

    def answers(self) -> dict[str, Any]:
        return {line.id: line.value for line in self.lines if line.kind == "resume"}

    def pending(self) -> list[Line]:
        group: list[Line] = []
        last = ""
        for number, line in enumerate(self.lines):
            if line.kind == "suspend" and line.id in TOOLS and number < self.scope:
                pass
            elif line.kind == "suspend":
                group = [*group, line] if last == "suspend" else [line]
            elif line.kind == "resume":
                group = [each for each in group if each.id != line.id]
            elif line.kind in ("complete", "error", "cancel"):
                group = []
            last = line.kind
        return group

    @property
    def unstarted(self) -> bool:
        return bool(self.copied) and len(self.lines) <= self.copied

    def status(self) -> str:
        last = self.lines[-1]
        ends = {"complete": "completed", "error": "failed", "cancel": "cancelled"}
        if last.kind in ends:
            return ends[last.kind]
        if self.unstarted:
            return "ready"
        if last.kind == "suspend":
            return "interrupted" if last.more else "suspended"
        return "ready" if last.kind == "resume" else "interrupted"


class Machine(RuleBasedStateMachine):
    """The real thing and the model, side by side."""

    runs = Bundle("runs")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.disk = MemoryStorage()
        self.storage = FaultyStorage(self.disk)
        self.model: dict[str, Run] = {}
        self.broken = False
        self.ran: list[str] = []
        self.snapshots: dict[str, bytes] = {}
        self.touched: set[str] = set()
        self.crash: tuple[int, How] | None = None
        self.workflow = self._workflow(self.storage)

    def _workflow(self, storage: Storage) -> Workflow:
        async def work(name: str) -> str:
            self.ran.append(name)
            if name == "act" and self.broken:
                raise LookupError("nothing to act on")
            return f"{name} done"

        def pay(idempotency_key: str) -> str:
            self.ran.append("pay")
            assert idempotency_key.startswith("k1:")
            return "pay done"

        async def fails() -> None:
            self.ran.append("look")
            raise ValueError("nothing to see")

        async def gate(ctx: Context) -> Any:
            return await ctx.suspend("ok")

        @kassette(name="machine", storage=storage, clock=self.clock)
        async def machine(ctx: Context, number: int) -> Any:
            plan = await ctx.step("plan", work, "plan")
            try:
                look = await ctx.step("look", fails)
            except StepFailedError as failed:
                look = failed.message
            approve = await ctx.suspend("approve", timeout=PATIENCE)
            gates = await ctx.parallel({"left": gate, "right": gate})
            act = await ctx.tool("act", work, name="act")
            paid = await ctx.tool("pay", pay)
            return [number, plan, look, approve, *gates.values(), act, paid]

        return machine

    # ------------------------------------------------------------------------------ the model

    def _session(self, run: Run, opening: Line) -> list[list[Line]]:
        """Return the writes of a session that nothing happens to."""
        steps = run.steps()
        answers = {**run.answers(), opening.id: opening.value} if opening.id else run.answers()
        run = Run(run.name, [*run.lines, opening], run.copied, run.scope)
        writes = [[opening]]
        for item in PLAN:
            if item == "approve" and item not in answers:
                asked = next(
                    (li for li in run.lines if (li.kind, li.id) == ("suspend", item)), None
                )
                late = asked.deadline if asked else self._stamp(PATIENCE)
                return [*writes, [Line("suspend", item, deadline=late)]]
            if item == "gates":
                open_ = [gate for gate in GATES if gate not in answers]
                if open_:
                    group = [Line("suspend", gate, more=gate != open_[-1]) for gate in open_]
                    return [*writes, group]
            if item in ("approve", "gates"):
                continue
            line = steps.get(item)
            attempt, said = run.attempt(item)
            if attempt and said is None and item == "act":
                return [*writes, [Line("suspend", item)]]
            if said is not None and said["action"] != "retry":
                line = Line("step", item, said.get("result"), said["action"] == "fail")
                writes.append([line])
            elif line is None:
                if item in TOOLS:
                    writes.append([Line("intent", item, attempt=attempt + 1)])
                failed = item == "look" or (item == "act" and self.broken)
                line = Line("step", item, None if failed else f"{item} done", failed)
                writes.append([line])
            if line.failed and item != "look":
                return [*writes, [Line("error", item)]]
        return [*writes, [Line("complete")]]

    def _stamp(self, ahead: float = 0) -> str:
        return stamp(self.clock.now() + timedelta(seconds=ahead))

    def _overdue(self, run: Run) -> bool:
        now = self._stamp()
        return any(line.deadline and line.deadline <= now for line in run.pending())

    def _apply(self, run: Run, opening: Line) -> bool:
        """Apply a session to the model, as far as the armed crash lets it; tell if it lived."""
        writes = self._session(run, opening)
        crash, self.crash = self.crash, None
        if crash is not None and crash[0] <= len(writes):
            at, how = crash
            for write in writes[: at if WAYS[how] else at - 1]:
                run.lines += write
            return False
        for write in writes:
            run.lines += write
        return True

    # -------------------------------------------------------------------------------- doing it

    def _do(self, call: Any, crash: tuple[int, How] | None = None) -> Any:
        """Make a call in a fresh loop, and return its result or what it raised."""
        self.storage.writes = 0
        self.storage.fail_at = crash[0] if crash else None
        self.storage.how = crash[1] if crash else "crash"
        self.ran.clear()
        try:
            return asyncio.run(call)
        except (KassetteError, Fault) as problem:
            return problem
        finally:
            self.storage.fail_at = None

    def _go(self, run: Run, call: Any, opening: Line) -> None:
        """Make a call that opens a session, and compare what it says with the model."""
        self.touched.add(run.name)
        before = run.steps().keys()
        crash = self.crash
        lived = self._apply(run, opening)
        found = self._do(call, crash if not lived else None)
        assert not before & set(self.ran), "a recorded step ran again"
        if not lived:
            assert isinstance(found, Fault | StorageError), found
            return
        self._same_result(run, found)

    def _same_result(self, run: Run, found: Any) -> None:
        words = {"completed": "success", "failed": "failed", "suspended": "suspended"}
        words["cancelled"] = "cancelled"
        status = run.status()
        assert found.status == words[status], found
        if status == "suspended":
            assert list(found.events) == [line.id for line in run.pending()]
        elif status == "completed":
            steps, answers = run.steps(), run.answers()
            look = steps["look"]
            assert found.result == [
                7,
                steps["plan"].value,
                "nothing to see" if look.failed else look.value,
                *(answers[event] for event in ("approve", *GATES)),
                steps["act"].value,
                steps["pay"].value,
            ]

    def _cancelled_late(self, run: Run) -> None:
        self.touched.add(run.name)
        run.lines.append(Line("cancel"))

    # ----------------------------------------------------------------------------------- rules

    @rule(target=runs)
    def start_a_new_run(self) -> Any:
        name = f"r{sum(1 for each in self.model if '.' not in each)}"
        run = Run(name)
        crash = self.crash
        self._go(run, self.workflow.start(7, run_id=name), Line("start"))
        if not run.lines:  # its first write never happened: there is no run
            assert crash is not None
            assert isinstance(self._do(self.workflow.verify(name)), UnknownRunError)
            return multiple()
        self.model[name] = run
        return name

    @rule(name=runs, given=st.booleans())
    def start_again(self, name: str, given: bool) -> None:
        run = self.model[name]
        call = self.workflow.start(*([7] if given else []), run_id=name)
        status = run.status()
        if status not in ENDED and self._overdue(run):
            self._cancelled_late(run)
            self._same_result(run, self._do(call))
        elif status in (*ENDED, "suspended"):
            self._same_result(run, self._do(call))
            assert self.ran == []
        else:
            self._go(run, call, Line("start"))

    @rule(name=runs, event=st.sampled_from(("approve", *GATES)), value=st.integers())
    def answer(self, name: str, event: str, value: int) -> None:
        run = self.model[name]
        call = self.workflow.resume(name, event, value, by="ana")
        if event in [line.id for line in run.pending()]:
            if self._overdue(run):
                self._cancelled_late(run)
                assert isinstance(self._do(call), RunCancelledError)
            else:
                self._go(run, call, Line("resume", event, value))
            return
        found = self._do(call)
        if event in run.answers():
            assert isinstance(found, EventAlreadyAnsweredError)
            assert found.value == run.answers()[event]
        elif run.status() in ENDED:
            assert isinstance(found, TerminalRunError)
        else:
            assert isinstance(found, EventMismatchError)

    @rule(target=runs, at=st.integers(2, 5), how=st.sampled_from(sorted(WAYS)))
    def start_a_run_that_dies_at_its_tools(self, at: int, how: How) -> Any:
        self.crash = None
        name = self.start_a_new_run()
        self.answer(name, "approve", 1)
        self.answer(name, "left/ok", 2)
        self.crash = (at, how)
        self.answer(name, "right/ok", 3)
        return name

    @rule(
        name=runs, tool=st.sampled_from(TOOLS), action=st.sampled_from(("record", "retry", "fail"))
    )
    def settle(self, name: str, tool: str, action: str) -> None:
        run = self.model[name]
        value = self._said(action)
        if run.status() not in ENDED and tool in dict(self._doubts(name)):
            self._go(run, self.workflow.resume(name, tool, value), Line("resume", tool, value))
            return
        found = self._do(self.workflow.resume(name, tool, value))
        if tool in run.answers():
            assert isinstance(found, EventAlreadyAnsweredError)
        elif run.status() in ENDED:
            assert isinstance(found, TerminalRunError)
        else:
            assert isinstance(found, EventMismatchError)

    @precondition(lambda self: self._open_doubts())
    @rule(data=st.data(), action=st.sampled_from(("record", "retry", "retry", "fail")))
    def settle_what_is_in_doubt(self, data: st.DataObject, action: str) -> None:
        name, tool, attempt = data.draw(st.sampled_from(self._open_doubts()))
        if data.draw(st.booleans()):
            other = {**self._said(action), "attempt": attempt + 1}
            found = self._do(self.workflow.resume(name, tool, other))
            assert isinstance(found, EventMismatchError | EventAlreadyAnsweredError)
        value = {**self._said(action), "attempt": attempt}
        run = self.model[name]
        self._go(run, self.workflow.resume(name, tool, value), Line("resume", tool, value))

    @precondition(lambda self: self._open_doubts())
    @rule(target=runs, data=st.data(), same=st.booleans())
    def fork_what_is_in_doubt(self, data: st.DataObject, same: bool) -> Any:
        name = data.draw(st.sampled_from(self._open_doubts()))[0]
        run = self.model[name]
        cut = data.draw(st.integers(1, len(run.lines)))
        made = self._do(self.workflow.fork(name, at=cut, same_effects=same))
        return self._forked(run, made, run.lines[:cut], min(run.scope, cut) if same else cut)

    def _said(self, action: str) -> dict[str, Any]:
        return {"action": action, "result": "seen"} if action == "record" else {"action": action}

    def _open_doubts(self) -> list[tuple[str, str, int]]:
        return [
            (name, *doubt)
            for name, run in self.model.items()
            if run.status() not in ENDED
            for doubt in self._doubts(name)
        ]

    @rule(name=runs, event=st.sampled_from(("approved", "plan", "gates", "timer", "in-doubt")))
    def answer_what_nobody_asked(self, name: str, event: str) -> None:
        if event == "in-doubt" and (self._doubts(name) or set(TOOLS) & self._answers(name)):
            return
        found = self._do(self.workflow.resume(name, event, True))
        ended = self.model[name].status() in ENDED
        assert isinstance(found, TerminalRunError if ended else EventMismatchError)

    def _doubts(self, name: str) -> list[tuple[str, int]]:
        run = self.model[name]
        found = {tool: run.attempt(tool) for tool in TOOLS}
        return [(tool, attempt) for tool, (attempt, said) in found.items() if attempt and not said]

    def _answers(self, name: str) -> set[str]:
        return set(self.model[name].answers())

    @rule(target=runs, name=runs, data=st.data(), same=st.booleans())
    def fork(self, name: str, data: st.DataObject, same: bool) -> Any:
        run = self.model[name]
        last = len(run.lines) - (run.status() in ENDED)
        kinds = ("step", "suspend", "intent")
        ids = [line.id for line in run.lines if line.kind in kinds]
        at = data.draw(st.one_of(st.integers(0, last), *([st.sampled_from(ids)] if ids else [])))
        made = self._do(self.workflow.fork(name, at=at, same_effects=same))
        cut = max(1, at if isinstance(at, int) else self._offset(run, at, kinds))
        return self._forked(run, made, run.lines[:cut], min(run.scope, cut) if same else cut)

    @rule(target=runs, name=runs, data=st.data(), value=st.text(max_size=3))
    def fork_with_another_value(self, name: str, data: st.DataObject, value: str) -> Any:
        run = self.model[name]
        steps = run.steps()
        if not steps:
            return multiple()
        step = data.draw(st.sampled_from(sorted(steps)))
        made = self._do(self.workflow.fork(name, override={step: value}))
        cut = self._offset(run, step, ("step",))
        lines = [*run.lines[:cut], Line("step", step, value)]
        return self._forked(run, made, lines, len(lines))

    @rule(target=runs, name=runs)
    def retry(self, name: str) -> Any:
        run = self.model[name]
        made = self._do(self.workflow.retry(name))
        if run.status() != "failed":
            assert isinstance(made, KassetteError)
            return multiple()
        failed = self._offset(run, run.lines[-1].id, ("step",))
        lines = list(run.lines[:-1])
        branch = lines[failed].id.rpartition("/")[0]
        for line in lines[failed + 1 :]:
            # The start of a session that found it, and what a sibling did meanwhile, are kept; in
            # this workflow nothing else is behind it.
            apart = branch and line.id.rpartition("/")[0] not in ("", branch)
            assert line.kind == "start" or apart, line
        for number, line in enumerate(lines):
            # What was said of the failed call was said of that attempt.
            decided = line.kind in ("suspend", "resume") and line.id == lines[failed].id
            if decided or number == failed:
                lines[number] = dataclasses.replace(line, kind="note", id="")
        lines[failed] = Line("note")
        return self._forked(run, made, lines, run.scope)

    def _offset(self, run: Run, step_id: str, kinds: tuple[str, ...]) -> int:
        return next(i for i, li in enumerate(run.lines) if li.id == step_id and li.kind in kinds)

    def _forked(self, run: Run, made: Any, lines: list[Line], scope: int) -> str:
        stem = run.name
        names = (f"{stem}.{n}" for n in range(2, 1000))
        assert made == next(name for name in names if name not in self.model)
        self.touched.add(made)
        self.model[made] = Run(made, list(lines), len(lines), scope)
        return str(made)

    @rule(name=runs)
    def cancel(self, name: str) -> None:
        run = self.model[name]
        found = self._do(self.workflow.cancel(name, reason="enough"))
        if run.status() in ENDED:
            assert isinstance(found, TerminalRunError)
        else:
            self.touched.add(name)
            run.lines.append(Line("cancel"))
            assert (found.status, found.reason) == ("cancelled", "enough")

    @rule()
    def recover(self) -> None:
        self.crash = None
        due = {}
        for name, run in self.model.items():
            status = run.status()
            if status in ENDED:
                continue
            if self._overdue(run):
                run.lines.append(Line("cancel"))
            elif status in ("interrupted", "ready") and not run.unstarted:
                self._apply(run, Line("start"))
            else:
                continue
            due[name] = run
        self.touched |= due.keys()
        found = self._do(self.workflow.recover())
        assert [each.run_id for each in found] == sorted(due)
        for each in found:
            assert each.error is None
            self._same_result(due[each.run_id], each.result)

    @rule(name=runs)
    def verify(self, name: str) -> None:
        found = self._do(self.workflow.verify(name))
        assert found.fits, found
        assert found.live == 0
        assert self.ran == []

    @rule(at=st.integers(1, 6), how=st.sampled_from(sorted(WAYS)))
    def let_the_next_session_crash(self, at: int, how: How) -> None:
        self.crash = (at, how)

    @precondition(lambda self: not self.broken)
    @rule()
    def the_tool_breaks(self) -> None:
        self.broken = True

    @precondition(lambda self: self.broken)
    @rule()
    def the_tool_is_repaired(self) -> None:
        self.broken = False

    @rule(seconds=st.sampled_from((1.0, 60.0, 101.0)))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # ------------------------------------------------------------------------------ invariants

    @invariant()
    def journals_are_what_the_model_says(self) -> None:
        touched, self.touched = self.touched, set()
        assert list(self.disk.list()) == sorted(self.model)
        for name, run in self.model.items():
            found = self.disk.read(name)
            assert found is not None
            data = found[0]
            assert self.disk.holder(name) is None, "a lock was not freed"
            if name not in touched:
                assert data == self.snapshots[name], f"{name} was not ours to write"
            else:
                old = journals.whole(self.snapshots.get(name, b""))
                assert data.startswith(old), "a line was rewritten"
                self.snapshots[name] = data
                self._compare(run, data)
            folded = state.fold(parse(name, data, None, name).entries, self.clock.now(), False)
            assert folded.status == run.status(), name
            assert [p.step_id for p in folded.pending] == [li.id for li in run.pending()]
            assert any(p.expired for p in folded.pending) == self._overdue(run)
            doubts = [(doubt.step_id, doubt.attempt) for doubt in folded.doubts]
            assert doubts == self._doubts(name)

    def _compare(self, run: Run, data: bytes) -> None:
        lines = journals.check(data)
        assert [(e["type"], e.get("stepId", "")) for e in lines if e["type"] != "note"] == [
            (line.kind, line.id) for line in run.lines if line.kind != "note"
        ]
        for entry, line in zip(lines, run.lines, strict=True):
            if line.kind == "note":
                continue
            assert entry.get("attempt") == line.attempt
            assert ("error" in entry) == (line.failed or line.kind == "error")
            assert entry.get("result") == line.value or line.kind in ("complete", "resume")
            assert entry.get("value") == line.value or line.kind != "resume"
            assert entry.get("more", False) == line.more
            assert entry.get("deadline") == line.deadline
        assert json.loads(data.splitlines()[0]).get("source", {}).get("fromOffset", 0) == run.copied


GATE = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def test_any_sequence_of_calls_leaves_what_the_model_says() -> None:
    run_state_machine_as_test(Machine, settings=GATE)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_more_sequences_of_calls_leave_what_the_model_says() -> None:
    soak = settings(GATE, max_examples=1_000, stateful_step_count=50, derandomize=False)
    run_state_machine_as_test(Machine, settings=soak)
