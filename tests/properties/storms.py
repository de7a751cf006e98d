"""A seeded storm over one run: processes that are killed, cancelled, failed and raced.

One event loop plays all processes. Its time is virtual, so that waiting costs nothing and a lost
wake-up is told at once; threads are played by it too, so that a seed says all that happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from kassette_nb import Budget, RunResult, Workflow, calls, kassette, lease, state
from kassette_nb.errors import (
    EventAlreadyAnsweredError,
    EventMismatchError,
    InterruptedRunError,
    RunBusyError,
    StorageError,
    TerminalRunError,
)
from kassette_nb.journal import parse
from tests.properties import journals
from tests.properties.machines import Clock, Disk, Killed, Process, Stuck, VirtualLoop
from tests.properties.programs import (
    TOOLS,
    Node,
    Weather,
    expected,
    perform,
    program,
    refuse_early,
)

RUN = "r"


class Player:
    """The stage of one session: every act is checked against what is recorded."""

    def __init__(self, storm: Storm, process: Process) -> None:
        self.storm = storm
        self.process = process
        self.attempts: Counter[str] = Counter()

    async def act(self, key: str, node: Node, token: str | None = None) -> None:
        """Take some turns of the loop, have the effect in the middle, and perhaps die."""
        self._begin(key, node)
        if node.kind == "slow" and self.storm.first("slow", key):
            self.process.disturbed = True
            await asyncio.sleep(0.2)
        if node.kind == "weather" and self.storm.first("weather", key):
            self.process.disturbed = True
            self.storm.count("weather")
            raise Weather("it rains")
        await self._wander(node.kind != "slow")
        self._effect(key, node, token)
        await self._wander(node.kind != "slow")
        self._perhaps_die()
        self._done(key, node)

    def act_now(self, key: str, node: Node, token: str | None = None) -> None:
        """Have the effect at once."""
        self._begin(key, node)
        self._effect(key, node, token)
        self._perhaps_die()
        self._done(key, node)

    def see(self, key: str, value: Any) -> None:
        """What a workflow got once it gets for ever."""
        self.process.check()
        known = self.storm.seen.setdefault(key, value)
        assert (type(known), known) == (type(value), value), f"{key}: {known!r}, now {value!r}"

    async def pause(self) -> None:
        """Let others run, for some turns at least."""
        await asyncio.sleep(0)
        await self._wander(True)

    def _begin(self, key: str, node: Node) -> None:
        self.process.check()
        storm = self.storm
        lines = storm.lines()
        recorded = journals.step_ids(lines)
        assert key not in recorded, f"{key} is recorded and runs again"
        if node.kind in TOOLS:
            intent = journals.doubts(lines).get(key)
            assert intent is not None, f"{key} acts without an intent on record"
            assert intent["session"] == lines[-1]["session"], f"{key} acts on an old intent"
        held = storm.disk.held.get(RUN)
        assert held is not None, "a step runs without the lock"
        assert held.process is self.process, "a step runs under another's lock"
        self.attempts[key] += 1
        repeated = node.kind in ("retried", "tired")
        assert self.attempts[key] == 1 or repeated, f"{key} runs twice in one session"
        limit = storm.limit(lines)
        if limit is not None:
            # What this session found in doubt was spent before; it may be settled after this began.
            settled = [e for e in lines if e["session"] == lines[-1]["session"]]
            settled = [e for e in settled if e.get("kind") == "tool" and "startedAt" not in e]
            spent = storm.spent(lines) + len(self.attempts.keys() - recorded) - len(settled)
            assert spent <= limit, f"{key} is step {spent} of {limit}"

    def _effect(self, key: str, node: Node, token: str | None) -> None:
        self.process.check()
        storm = self.storm
        if token is not None:
            known = storm.tokens.setdefault(key, token)
            assert known == token, f"{key} has got another key"
            if key in storm.effects:
                storm.counts["kept from doubling"] += 1
                return  # whoever honours the key does not act again
        storm.effects[key] += 1
        if node.kind in TOOLS:
            args = journals.doubts(storm.lines())[key]["args"]
            told = [key, node.number, args["seen"]]
            storm.happened[key] = None if node.kind == "bounces" else told
        assert storm.effects[key] == 1 or node.kind not in TOOLS, f"{key} acts twice"
        refuse_early(node, self.attempts[key])

    def _done(self, key: str, node: Node) -> None:
        if node.kind not in ("retried", "tired"):  # of which this is one attempt
            self.storm.done.append((self.process, key))

    def _perhaps_die(self) -> None:
        self.process.acts += 1
        if self.process.acts == self.process.deadly:
            self.process.kill("in a step")
            raise Killed

    async def _wander(self, timed: bool) -> None:
        chance = self.storm.chance
        for _ in range(chance.choice((0, 0, 0, 1, 1, 2, 5))):
            await asyncio.sleep(0)
            self.process.check()
        if timed and chance.random() < 0.1:
            await asyncio.sleep(chance.uniform(0, 0.5))
            self.process.check()


class Storm:
    """One seed: a program, and all that happens to its run until it has ended."""

    def __init__(self, seed: int, counts: Counter[str] | None = None) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.nodes = program(self.chance)
        self.disk = Disk()
        self.loop = VirtualLoop()
        self.clock = Clock(self.loop)
        self.counts = Counter() if counts is None else counts
        self.effects: Counter[str] = Counter()
        self.seen: dict[str, Any] = {}
        self.sent: dict[int, Any] = {}
        self.done: list[tuple[Process, str]] = []
        self.tokens: dict[str, str] = {}
        #: What a person finds who looks after a tool: its result, or None where it has failed.
        self.happened: dict[str, Any] = {}
        # Some programs are told how many steps they may take, and get more when they ask.
        self.budget = self.chance.randint(0, 6) if self.chance.random() < 0.2 else None
        self.jobs = 0
        self.openings = 0
        self._firsts: set[tuple[str, str]] = set()
        self._processes = 0
        self._unretrieved: list[BaseException] = []

    def run(self) -> None:
        """Play it to its end. The seed decides everything."""
        self.loop.set_exception_handler(self._lost)
        kept = random.getstate()
        random.seed(self.seed)  # what ctx.random() draws from
        try:
            with self._played():
                self.loop.run_until_complete(self._play())
        finally:
            random.setstate(kept)
            self.loop.close()
        assert not self._unretrieved, self._unretrieved

    @contextlib.contextmanager
    def _played(self) -> Iterator[None]:
        """Let the virtual clock and the loop stand for real time and for threads."""
        clock = SimpleNamespace(monotonic=self.loop.time)

        def submit(_: object, job: Callable[[], None], told: Callable[[], None]) -> None:
            def play() -> None:
                self.jobs -= 1
                job()
                told()

            self.jobs += 1
            self.loop.call_later(self.chance.choice((0, 0, 0.01, 0.3)), play)

        with (
            mock.patch.object(lease, "time", clock),
            mock.patch.object(calls.Workers, "submit", submit),
        ):
            yield

    def _lost(self, _: object, context: dict[str, Any]) -> None:
        problem = context.get("exception") or AssertionError(context["message"])
        if not isinstance(problem, Killed):
            self._unretrieved.append(problem)

    # ------------------------------------------------------------------------ what is asked

    def lines(self) -> list[journals.Entry]:
        """Return the entries that are on the disk."""
        return journals.entries(self.disk.journals.get(RUN, b""))

    def first(self, *what: str) -> bool:
        """Tell whether this happens for the first time."""
        new = what not in self._firsts
        self._firsts.add(what)  # type: ignore[arg-type]  # pairs
        return new

    def count(self, phase: str) -> None:
        """Count a disturbance, and look whether all is well."""
        self.counts[phase] += 1
        self.check()

    def now(self) -> str:
        """Return the time as the journal writes it."""
        return self.clock.now().isoformat(timespec="milliseconds")[:23] + "Z"

    def status(self) -> str:
        """Return the state as our own reading of the rules has it."""
        return journals.status(self.lines(), self.now())

    def limit(self, lines: list[journals.Entry]) -> int | None:
        """Return how many steps may have been taken in the end."""
        answers = [
            entry["value"]["max_steps"]
            for entry in lines
            if entry["type"] == "resume" and entry["eventName"] == "budget"
        ]
        return answers[-1] if answers else self.budget

    def spent(self, lines: list[journals.Entry]) -> int:
        """Return how many steps are recorded that count."""
        free = "value", "sleep"
        return sum(e["type"] == "step" and e["kind"] not in free for e in lines)

    def questions(self) -> list[str]:
        """Return the step ids that wait for an answer."""
        waiting = journals.pending(self.lines())
        return [entry["stepId"] for entry in waiting if entry["eventName"] != "timer"]

    def check(self) -> None:
        """Check all that holds at any moment."""
        data = self.disk.journals.get(RUN, b"")
        lines = journals.check(data)
        read = parse(RUN, data, None, "storm")
        assert len(read.entries) == len(lines)
        assert read.torn == len(data) - len(journals.whole(data))
        if lines:
            folded = state.fold(read.entries, self.clock.now(), held=False)
            assert folded.status == self.status()
            assert [p.step_id for p in folded.pending] == [
                entry["stepId"] for entry in journals.pending(lines)
            ]
            assert lines[-1]["session"] <= self.openings, "more sessions than calls"
        for entry in lines:
            if entry["type"] == "step" and entry.get("kind") in ("step", "tool"):
                decided = entry.get("error", {}).get("name") == "InDoubtError"
                happened = entry["stepId"] in self.effects
                assert happened or decided, f"a lost effect: {entry['stepId']}"

    # ---------------------------------------------------------------------------- what happens

    async def _play(self) -> None:
        rounds = self.chance.randint(0, 10)
        for _ in range(rounds):
            if self.status() in ("completed", "failed"):
                break
            await self._round(self.chance.choice((1, 1, 1, 2, 3)), calm=False)
        quiet = 0
        while self.status() not in ("completed", "failed"):
            await self._round(1, calm=True)
            quiet += 1
            assert quiet < 200, "the run does not come to its end"
        await self._judge()

    async def _round(self, width: int, *, calm: bool) -> None:
        """Let some processes work on the run at the same time, and settle."""
        before, lines = self.status(), len(self.lines())
        waiting = [e["stepId"] for e in journals.pending(self.lines())]
        processes = [self._process(calm) for _ in range(width)]
        work = [
            asyncio.create_task(self._session(process, alone=width == 1)) for process in processes
        ]
        for each in asyncio.as_completed(work):
            await each
        await self._settle()
        assert not self.disk.held, "a lock was not freed"
        self.check()
        # What returned is paid for: only a death or a failed write keeps it from being recorded.
        recorded = journals.step_ids(self.lines())
        for process, key in self.done:
            assert key in recorded or not process.alive or process.failed, f"{key} was not recorded"
        undisturbed = calm and not processes[0].disturbed
        if not undisturbed:
            return
        # Somebody can always go on.
        after = self.status()
        assert after in ("completed", "failed", "suspended", "ready"), after
        if before == "suspended" and waiting == [
            e["stepId"] for e in journals.pending(self.lines())
        ]:
            assert after == "ready", "only time has passed"
        else:
            assert len(self.lines()) > lines, f"{before}, and no progress"

    def _process(self, calm: bool) -> Process:
        self._processes += 1
        process = Process(self.disk, self._processes, self.chance, self.count)
        chance = self.chance
        if not calm and chance.random() < 0.8:
            how = chance.choice(
                ("kill before", "kill within", "kill within", "kill after", "fail", "lose",
                 "act", "act", "turn", "turn", "cancel", "cancel")
            )  # fmt: skip
            if how == "act":
                process.deadly = chance.randint(1, 4)
            elif how in ("turn", "cancel"):
                asyncio.create_task(self._reap(process, how))  # noqa: RUF006  # settled below
            else:
                process.strikes[chance.randint(1, 6)] = how
        return process

    async def _reap(self, process: Process, how: str) -> None:
        """Kill a process, or cancel its call, after some turns of the loop."""
        for _ in range(self.chance.randint(1, 40)):
            await asyncio.sleep(self.chance.choice((0, 0, 0, 0, 0.05)))
        if process.task is None or process.task.done():
            return
        if how == "turn":
            process.kill("between turns")
        elif process.alive:
            process.disturbed = True
            self.count("cancelled")
            process.task.cancel()

    async def _settle(self) -> None:
        """Wait until nothing moves: what a cancelled caller left behind goes on by itself."""
        me = asyncio.current_task()
        while others := [t for t in asyncio.all_tasks() if t is not me and not t.done()]:
            await asyncio.wait(others)
        while self.jobs:  # noqa: ASYNC110  # played threads
            await asyncio.sleep(0.05)

    async def _session(self, process: Process, alone: bool) -> None:
        """Make one call, as a process would that knows only the journal, and judge its outcome."""
        if not alone:
            for _ in range(self.chance.randint(0, 12)):
                await asyncio.sleep(self.chance.choice((0, 0, 0, 0.02)))
        workflow = self._workflow(process)
        action, argument = self._choose(alone)
        if action == "wait":
            self.clock.skipped += 3601
            return
        self.openings += 1
        process.task = asyncio.create_task(self._call(workflow, action, argument))
        try:
            result = await process.task
        except BaseException as problem:
            if process.alive:
                self._judge_error(process, action, argument, problem, alone)
        else:
            if process.alive:
                self._judge_result(process, action, argument, result, alone)

    def _workflow(self, process: Process) -> Workflow:
        async def body(ctx: Any, seed: int) -> Any:
            assert seed == self.seed
            return await perform(ctx, Player(self, process), self.nodes)

        made = kassette(
            name="storm",
            storage=process,
            transient=(Weather,),
            clock=self.clock,
            budget=None if self.budget is None else Budget(max_steps=self.budget),
        )
        return made(body)

    def _choose(self, alone: bool) -> tuple[str, Any]:
        chance, status, questions = self.chance, self.status(), self.questions()
        if status == "none":
            return chance.choice(
                ("start", "start", "start", "recover")
            ) if not alone else "start", 0
        menu: list[tuple[str, Any]] = []
        if status in ("interrupted", "ready"):
            menu += [("start", 0), ("start", None), ("recover", 0)]
            # A person may look after a call that was cut off before anybody asks.
            menu += [("resume", key) for key in journals.doubts(self.lines())][:1]
        if questions:
            menu += [("resume", chance.choice(questions))] * 3
        if status == "suspended" and not questions:
            menu += [("wait", 0)]
        if not alone or not menu:
            menu += [("start", None), ("recover", 0), ("resume", chance.choice("abc"))]
        return chance.choice(menu)

    async def _call(self, workflow: Workflow, action: str, argument: Any) -> Any:
        if action == "start":
            given = () if argument is None and self.status() != "none" else (self.seed,)
            return await workflow.start(*given, run_id=RUN)
        if action == "recover":
            return await workflow.recover()
        number = len(self.sent)
        self.sent[number] = self._answer(number, argument)
        return await workflow.resume(RUN, argument, self.sent[number], by=f"caller {number}")

    def _answer(self, number: int, key: str) -> dict[str, Any]:
        """Return what a person says; of a tool in doubt, after a look at what really happened."""
        lines = self.lines()
        doubt = journals.doubts(lines).get(key)
        if key.startswith("budget"):
            self.counts["raised"] += 1
            return {"max_steps": self.spent(lines) + self.chance.randint(0, 5)}
        if doubt is None:
            return {"answer": number, "to": key}
        said: dict[str, Any] = {"action": "retry", "attempt": doubt["attempt"]}
        if self.chance.random() < 0.1 or self.happened.get(key, "") is None:
            said = {**said, "action": "fail", "error": f"given up by {number}"}
        elif key in self.effects:
            said = {**said, "action": "record", "result": self.happened[key]}
        self.counts[f"said {said['action']}"] += 1
        return said

    def _judge_error(
        self, process: Process, action: str, argument: Any, problem: BaseException, alone: bool
    ) -> None:
        recorded = journals.answers(self.lines())
        if isinstance(problem, EventAlreadyAnsweredError):
            assert problem.value in recorded.values()
            assert action == "resume"
            if alone:
                raise AssertionError("nobody else could have answered") from problem
            return
        if isinstance(problem, RunBusyError | EventMismatchError | TerminalRunError) and not alone:
            return
        known = InterruptedRunError, StorageError, Weather, asyncio.CancelledError
        if process.disturbed and isinstance(problem, known):
            return
        if isinstance(problem, AssertionError | Stuck):
            raise problem
        raise AssertionError(f"{action} {argument!r} ended with {problem!r}") from problem

    def _judge_result(
        self, process: Process, action: str, argument: Any, result: Any, alone: bool
    ) -> None:
        if action == "recover":
            for each in result:
                if each.error is not None:
                    self._judge_error(process, action, argument, each.error, alone)
            return
        assert isinstance(result, RunResult)
        lines = self.lines()
        if action == "resume":
            said = [e["value"] for e in lines if e["type"] == "resume"]
            assert any(value in self.sent.values() for value in said), (
                "an answer that was taken is not on record"
            )
        if not alone or process.disturbed:
            return
        status = self.status()
        names = {"success": "completed", "failed": "failed", "suspended": "suspended"}
        assert names[result.status] == status or (result.status, status) == ("suspended", "ready")
        if result.status == "suspended":
            assert list(result.events) == [e["stepId"] for e in journals.pending(lines)]
            assert lines[-1].get("more") is None

    async def _judge(self) -> None:
        """Compare the ended run with an execution that nothing happened to."""
        lines = self.lines()
        given = {**journals.answers(lines), **journals.values(lines)}
        given_up = journals.given_up(lines)
        given.update({f"{key}!": error for key, error in given_up.items()})
        status, outcome, ideal = await expected(self.nodes, given)
        last = lines[-1]
        if status == "success":
            assert (last["type"], last.get("result")) == ("complete", outcome)
        else:
            told = last.get("error", {})
            assert (last["type"], told.get("name"), told.get("message")) == ("error", *outcome)
        # What was given up may have happened or not; all else happened.
        assert self.effects.keys() - given_up == ideal.effects.keys(), "lost or doubled effects"
        assert journals.step_ids(lines) >= ideal.effects.keys()
        for key, value in self.seen.items():
            assert ideal.values[key] == value
        # The same code replays all of it, and a look writes nothing.
        before = self.disk.journals[RUN]
        process = Process(self.disk, 0, self.chance, self.count)
        workflow = self._workflow(process)
        found = await workflow.verify(RUN)
        assert found.fits, found
        again = await workflow.start(run_id=RUN)
        assert again.status == ("success" if status == "success" else "failed")
        await self._settle()
        assert self.disk.journals[RUN] == before
        assert not self.disk.held
