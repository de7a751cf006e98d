"""Typed values, retries, time limits, and exceptions that are only weather."""

import asyncio
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest

import kassette_nb as kb
from kassette_nb import MemoryStorage, kassette
from kassette_nb.codehash import code_hash
from kassette_nb.errors import JournalValueError, StepFailedError
from kassette_nb.retry import Retry

NO_WAIT = Retry(attempts=3, wait=0, jitter=0)


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage("options")


@dataclass
class Plan:
    title: str
    steps: list[int]


class Struct(msgspec.Struct):
    when: str
    ids: set[int]


class Typed(TypedDict):
    a: int


class Named(NamedTuple):
    a: int
    b: str


class Model:
    """Has the two methods by which a pydantic model is known."""

    def __init__(self, a: int) -> None:
        self.a = a

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.a == self.a

    __hash__ = None  # type: ignore[assignment]  # it is mutable

    def model_dump(self, mode: str) -> dict[str, int]:
        return {"a": self.a}

    @classmethod
    def model_validate(cls, value: dict[str, int]) -> "Model":
        return cls(value["a"])


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (Plan, Plan("t", [1, 2])),
        (Struct, Struct("now", {1, 2})),
        (Typed, {"a": 1}),
        (Named, Named(1, "x")),
        (list[Plan], [Plan("t", [])]),
        (dict[str, set[int]], {"k": {1}}),
        (tuple[int, str], (1, "x")),
        (Model, Model(3)),
    ],
)
def test_a_typed_value_is_the_same_live_and_on_replay(
    storage: MemoryStorage, declared: Any, value: Any
) -> None:
    seen: list[Any] = []

    @kassette(storage=storage, name="typed")
    async def typed(ctx: kb.Context) -> None:
        seen.append(await ctx.with_options(returns=declared).step("plan", lambda: value))
        await ctx.suspend("then")

    async def scenario() -> None:
        await typed.start(run_id="r")
        await typed.resume("r", "then", None)

    asyncio.run(scenario())
    assert seen == [value, value]
    assert {type(s) for s in seen} == {type(value)}


@pytest.mark.parametrize("value", [{"title": "t"}, object(), Plan("t", ["x"])])  # type: ignore[list-item]
def test_a_value_of_another_type_is_refused_and_nothing_recorded(
    storage: MemoryStorage, value: Any
) -> None:
    @kassette(storage=storage, name="wrong")
    async def wrong(ctx: kb.Context) -> None:
        await ctx.with_options(returns=Plan).step("plan", lambda: value)

    with pytest.raises(JournalValueError, match="is not a Plan"):
        asyncio.run(wrong.start(run_id="r"))
    assert kb.open(storage)["r"].fold().steps == []


def test_a_recorded_value_that_no_longer_fits_its_type_names_the_step(
    storage: MemoryStorage,
) -> None:
    def workflow(declared: Any) -> kb.Workflow:
        @kassette(storage=storage, name="changed")
        async def changed(ctx: kb.Context) -> None:
            await ctx.with_options(returns=declared).step("plan", lambda: {"a": 1})
            await ctx.suspend("then")

        return changed

    asyncio.run(workflow(Typed).start(run_id="r"))
    with pytest.raises(JournalValueError, match="'plan' was recorded as something else"):
        asyncio.run(workflow(Plan).resume("r", "then", None))


@pytest.mark.parametrize("plain", [True, False])
def test_failed_attempts_are_notes_and_the_last_one_counts(
    storage: MemoryStorage, plain: bool
) -> None:
    calls: list[int] = []

    def flaky() -> int:
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError("reset")
        return len(calls)

    async def async_flaky() -> int:
        return flaky()

    @kassette(storage=storage, name="retries")
    async def retries(ctx: kb.Context) -> Any:
        fn = flaky if plain else async_flaky
        return await ctx.with_options(retry=NO_WAIT).step("call", fn)

    assert asyncio.run(retries.start(run_id="r")).result == 3
    entries = kb.open(storage)["r"].entries()
    assert list(entries["type"]) == ["start", "note", "note", "step", "complete"]
    assert "ConnectionError" in entries["summary"][1]


def test_an_exception_that_retry_is_not_for_fails_at_once(storage: MemoryStorage) -> None:
    calls: list[int] = []

    def wrong() -> None:
        calls.append(1)
        raise ValueError("no")

    @kassette(storage=storage, name="at_once")
    async def at_once(ctx: kb.Context) -> None:
        policy = Retry(attempts=5, on=ConnectionError, wait=0, jitter=0)
        await ctx.with_options(retry=policy).step("call", wrong)

    assert asyncio.run(at_once.start(run_id="r")).status == "failed"
    assert calls == [1]
    with pytest.raises(ValueError, match="1 or more"):
        Retry(attempts=0)


def test_a_step_over_its_time_limit_fails_and_the_workflow_goes_on(
    storage: MemoryStorage,
) -> None:
    @kassette(storage=storage, name="limits")
    async def limits(ctx: kb.Context) -> str:
        try:
            await ctx.with_options(timeout=0.01).step("slow", asyncio.sleep, 60)
        except StepFailedError as error:
            return error.name
        return "in time"

    assert asyncio.run(limits.start(run_id="r")).result == "TimeoutError"


def test_a_time_limit_for_a_thread_is_refused(storage: MemoryStorage) -> None:
    @kassette(storage=storage, name="thread_limit")
    async def thread_limit(ctx: kb.Context) -> None:
        await ctx.with_options(timeout=1).step("plain", lambda: 1)

    with pytest.raises(JournalValueError, match="async functions only"):
        asyncio.run(thread_limit.start(run_id="r"))


@pytest.mark.parametrize("option", [{"on_doubt": "ask"}, {"idempotency_key": "mail-1"}])
def test_an_option_of_tools_is_refused_for_a_step(
    storage: MemoryStorage, option: dict[str, Any]
) -> None:
    called: list[int] = []

    @kassette(storage=storage, name="mistaken")
    async def mistaken(ctx: kb.Context) -> None:
        await ctx.with_options(**option).step("mail", called.append, 1)

    with pytest.raises(JournalValueError, match=f"{next(iter(option))} is an option of tools"):
        asyncio.run(mistaken.start(run_id="r"))
    assert called == []


@pytest.mark.parametrize("where", ["step", "thread", "body"])
def test_weather_interrupts_and_the_run_goes_on_when_it_has_passed(
    storage: MemoryStorage, where: str
) -> None:
    storm = True

    async def call() -> str:
        if storm:
            raise ConnectionResetError("reset by peer")
        return "through"

    def thread() -> str:
        return asyncio.run(call())

    @kassette(storage=storage, name="weather", transient=(ConnectionError,))
    async def weather(ctx: kb.Context) -> Any:
        if where == "body":
            await ctx.step("first", lambda: 1)
            return await call()
        return await ctx.step("call", call if where == "step" else thread)

    with pytest.raises(ConnectionResetError):
        asyncio.run(weather.start(run_id="r"))
    assert kb.open(storage)["r"].state == "interrupted"
    storm = False
    assert asyncio.run(weather.start(run_id="r")).result == "through"


def test_arguments_are_kept_unless_told_otherwise_and_secrets_never(
    storage: MemoryStorage,
) -> None:
    def fetch(url: str, api_key: str, client: object = None, deep: Any = None) -> int:
        return 1

    @kassette(storage=storage, name="args")
    async def args(ctx: kb.Context) -> None:
        deep = {"headers": {"Authorization": "Bearer xyz"}}
        await ctx.step("kept", fetch, "http://x", api_key="sk-secret", deep=deep)
        await ctx.step("not json", fetch, "http://x", "sk-secret", object())
        await ctx.with_options(record_args=False).step("told", fetch, "http://x", "sk-secret")

    asyncio.run(args.start(run_id="r"))
    run = kb.open(storage)["r"]
    assert run["kept"].args == {
        "url": "http://x",
        "api_key": "[redacted]",
        "deep": {"headers": {"Authorization": "[redacted]"}},
    }
    assert run["not json"].args is None
    assert run["told"].args is None
    found = storage.read("r")
    assert found is not None
    assert b"secret" not in found[0]
    assert b"xyz" not in found[0]


def test_the_hash_of_a_steps_code_changes_with_the_code_and_only_with_it() -> None:
    def build(source: str) -> Any:
        namespace: dict[str, Any] = {}
        exec(source, namespace)
        return namespace["f"]

    one = build("def f(a):\n    return [x + 1 for x in a if x in {'p', 'q'}]")
    same = build("\n\n# moved\ndef f(a):\n    return [x + 1 for x in a if x in {'p', 'q'}]")
    other = build("def f(a):\n    return [x + 2 for x in a if x in {'p', 'q'}]")
    assert code_hash(one) == code_hash(same) != code_hash(other)
    assert code_hash(len) is None
    assert code_hash(MemoryStorage("x").list) is not None


def test_a_step_carries_the_hash_of_its_function(storage: MemoryStorage) -> None:
    def look() -> int:
        return 1

    @kassette(storage=storage, name="hashed")
    async def hashed(ctx: kb.Context) -> None:
        await ctx.step("look", look)

    asyncio.run(hashed.start(run_id="r"))
    assert kb.open(storage)["r"]["look"].entry["codeHash"] == code_hash(look)
