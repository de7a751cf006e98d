"""Journals as a coding agent would leave them: what the views are tried on and pictured with."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec import UNSET, Raw

from kassette_nb import entries, values
from kassette_nb.budget import SCHEMA
from kassette_nb.clock import stamp
from kassette_nb.entries import (
    Complete,
    ErrorInfo,
    Failure,
    Intent,
    Known,
    Resume,
    Source,
    Start,
    Step,
    Suspend,
    Usage,
)

PATCH = """\
--- a/src/fields.py
+++ b/src/fields.py
@@ -1471,5 +1471,5 @@ class TimeDelta(Field):
         if value is None:
             return None
         base_unit = dt.timedelta(**{self.precision: 1})
-        return int(value.total_seconds() / base_unit.total_seconds())
+        return round(value.total_seconds() / base_unit.total_seconds())
"""
CEIL = PATCH.replace("return round(", "return math.ceil(")
FAILED_TESTS = (
    "FAILED tests/test_fields.py::test_timedelta - assert 344 == 345\n1 failed, 1131 passed"
)


RATES = """\
def rate(total, n):
    # mean of n
    if n == 0:
        return None
    return total / n
"""


class Scribe:
    """Writes a journal line by line, with a clock of its own."""

    def __init__(self, began: datetime) -> None:
        self.lines: list[bytes] = []
        self.session = 1
        self.now = began

    def write(self, entry: Known, seconds: float = 0.0) -> None:
        self.now += timedelta(seconds=seconds)
        entry.session, entry.offset = self.session, len(self.lines)
        entry.timestamp = stamp(self.now)
        self.lines.append(entries.encode(entry))

    def start(self, **fields: Any) -> None:
        self.write(Start(session=0, **fields))

    def step(
        self,
        step_id: str,
        result: Any,
        seconds: float,
        *,
        kind: str = "step",
        args: Any = None,
        cost: float | None = None,
        tokens: int = 3_400,
        error: tuple[str, str] | None = None,
        overridden: bool = False,
    ) -> None:
        began = stamp(self.now)
        usage = None
        if kind == "llm":
            usage = Usage(model="scripted-1", input_tokens=tokens, output_tokens=240, cost_usd=cost)
        self.write(
            Step(
                session=0,
                step_id=step_id,
                name=step_id.split("/")[-1].split("#")[0],
                kind=kind,
                result=UNSET if error else values.encode(result),
                error=ErrorInfo(name=error[0], message=error[1]) if error else None,
                started_at=began,
                args=UNSET if args is None else values.encode(args),
                usage=usage,
                overridden=overridden,
            ),
            seconds,
        )

    def suspend(self, event: str, prompt: str, context: Any = None, schema: Any = None) -> None:
        self.write(
            Suspend(
                session=0,
                event_name=event,
                step_id=event,
                prompt=prompt,
                context=UNSET if context is None else values.encode(context),
                schema=UNSET if schema is None else values.encode(schema),
            ),
            0.02,
        )

    def resume(self, event: str, value: Any, after: float, by: str) -> None:
        self.session += 1
        answer = Resume(
            session=0, event_name=event, step_id=event, value=values.encode(value), by=by
        )
        self.write(answer, after)

    def save(self, folder: Path, run_id: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{run_id}.jsonl").write_bytes(b"".join(self.lines))


def _prefix(scribe: Scribe, issue: str, **fields: Any) -> None:
    issue_data = values.encode({"issue": issue})
    scribe.start(workflow="fix_bug", version="agent-v1", metadata=issue_data, **fields)
    scribe.step(
        "plan",
        {"role": "assistant", "content": "Reproduce first, then look at _serialize."},
        4.1,
        kind="llm",
        cost=0.048,
    )
    scribe.step(
        "run",
        {"exit": 0, "stdout": "344\n"},
        0.3,
        kind="tool",
        args={"cmd": "python reproduce.py"},
    )


def coding_agent(folder: Path, began: datetime) -> None:
    """Four attempts at one bug: solved, waiting for approval, failed, and interrupted."""
    issue = "TimeDelta serialisation rounds down: 345 ms becomes 344"

    first = Scribe(began)
    _prefix(first, issue)
    first.step(
        "plan#2", {"role": "assistant", "content": "int() truncates. Use math.ceil."}, 5.2,
        kind="llm", cost=0.061,
    )  # fmt: skip
    first.step("edit", CEIL, 0.2, kind="tool", args={"path": "src/fields.py"})
    first.step(
        "run#2", {"exit": 1, "stdout": FAILED_TESTS}, 9.9, kind="tool",
        args={"cmd": "python -m pytest -q"},
    )  # fmt: skip
    first.step(
        "plan#3", {"role": "assistant", "content": "Rounding up breaks exact values. Give up."},
        6.0, kind="llm", cost=0.07,
    )  # fmt: skip
    first.write(
        Failure(
            session=0,
            error=ErrorInfo(name="GaveUp", message="1 of 1132 tests still fails"),
            traceback="Traceback (most recent call last):\n  …\nGaveUp: 1 test still fails\n",
        ),
        0.1,
    )
    first.save(folder, "fix-timedelta")

    second = Scribe(began)
    _prefix(
        second, issue, label="round the quotient",
        source=Source(run_id="fix-timedelta", from_offset=4), key_scope="fix-timedelta.2",
    )  # fmt: skip
    second.step(
        "plan#2", {"role": "assistant", "content": "Round the quotient instead of truncating it."},
        5.2, kind="llm", cost=0.061, overridden=True,
    )  # fmt: skip
    second.session = 2
    second.now = began + timedelta(minutes=4)
    second.start(workflow="fix_bug", version="agent-v1")
    second.step("read", "def _serialize(self, value, attr, obj, **kwargs):\n    …\n", 0.1,
                kind="tool", args={"path": "src/fields.py"})  # fmt: skip
    second.step(
        "plan#3", {"role": "assistant", "content": "Edit line 1474, then run the tests."}, 5.2,
        kind="llm", cost=0.066,
    )  # fmt: skip
    second.step("edit", PATCH, 0.2, kind="tool", args={"path": "src/fields.py"})
    second.step(
        "run#2", {"exit": 1, "stdout": FAILED_TESTS}, 9.9, kind="tool",
        args={"cmd": "python -m pytest -q"}, error=("TestsFailed", "1 failed, 1131 passed"),
    )  # fmt: skip
    second.step(
        "plan#4", {"role": "assistant", "content": "The failing test pins the old value."},
        6.0, kind="llm", cost=0.078,
    )  # fmt: skip
    second.suspend(
        "apply-patch",
        "Apply this patch to src/fields.py and run the whole test suite?",
        PATCH,
    )
    second.save(folder, "fix-timedelta.2")

    third = Scribe(began)
    _prefix(
        third, issue, label="Decimal", source=Source(run_id="fix-timedelta", from_offset=3),
        key_scope="fix-timedelta.3",
    )  # fmt: skip
    third.session = 2
    third.now = began + timedelta(minutes=9)
    third.start(workflow="fix_bug", version="agent-v1")
    third.step(
        "plan#2", {"role": "assistant", "content": "Compute in Decimal and round half even."}, 7.0,
        kind="llm", cost=0.09,
    )  # fmt: skip
    third.step("grep", "14 matches\nsrc/fields.py:1474", 0.1, kind="tool",
               args={"pattern": "total_seconds"})  # fmt: skip
    third.step("edit", PATCH, 0.3, kind="tool", args={"path": "src/fields.py"})
    third.step(
        "run#2", {"exit": 0, "stdout": "1132 passed"}, 9.1, kind="tool",
        args={"cmd": "python -m pytest -q"},
    )  # fmt: skip
    third.suspend("apply-patch", "Apply this patch?", PATCH)
    third.resume("apply-patch", {"approved": True, "note": "looks right"}, 3600 * 9, "ana")
    third.step("apply", "1 file changed", 0.4, kind="tool")
    third.write(Complete(session=0, result=Raw(b'{"solved":true,"tests":"1132 of 1132"}')), 0.1)
    third.save(folder, "fix-timedelta.3")


def deploy(folder: Path, began: datetime) -> None:
    """A tool that may have acted, in a run with a budget."""
    scribe = Scribe(began)
    scribe.start(
        workflow="deploy", version="v4", label="release 2.14",
        budget=Raw(b'{"maxCostUsd":1.0,"maxSteps":20}'),
    )  # fmt: skip
    scribe.step("plan", TALK_1[1], 3.0, kind="llm", args=TALK_1[0], cost=0.012, tokens=900)
    scribe.step("diff", RATES, 0.3, kind="tool", args={"path": "src/rates.py"})
    scribe.step("plan#2", TALK_2[1], 3.4, kind="llm", args=TALK_2[0], cost=0.021, tokens=1_800)
    intent(scribe, "publish", {"channel": "stable", "version": "2.14.0", "notify": ["ops"]})
    scribe.save(folder, "deploy-2.14")


def spent(folder: Path, began: datetime) -> None:
    """A run that has reached its budget and asks for more."""
    scribe = Scribe(began)
    scribe.start(workflow="crawl", version="v3", label="nightly crawl",
                 budget=Raw(b'{"maxCostUsd":0.5}'))  # fmt: skip
    for number in range(1, 5):
        step_id = "think" if number == 1 else f"think#{number}"
        scribe.step(step_id, {"page": number}, 2.0, kind="llm", cost=0.13, tokens=4_000)
    over = {
        "exceeded": "max_cost_usd",
        "limits": {"max_cost_usd": 0.5},
        "spent": {"cost_usd": 0.52},
    }
    scribe.suspend("budget", "The budget is spent: $0.52 of $0.50 (max_cost_usd). Give new limits "
                   "to go on.", over, SCHEMA)  # fmt: skip
    scribe.save(folder, "nightly")


_ASKED = [
    {"role": "system", "content": "You release packages. Be brief."},
    {"role": "user", "content": "Is 2.14 ready to go out?"},
]
_CALL = {
    "role": "assistant", "content": "I look at the diff first.",
    "tool_calls": [{"function": {"name": "diff", "arguments": '{"path":"src/rates.py"}'}}],
}  # fmt: skip
TALK_1 = ({"model": "scripted-1", "messages": _ASKED}, {"choices": [{"message": _CALL}]})
TALK_2 = (
    {
        "model": "scripted-1",
        "messages": [*_ASKED, _CALL, {"role": "tool", "name": "diff", "content": "1 file, +1 −1"}],
    },
    {"choices": [{"message": {"role": "assistant", "content": "The guard for `n == 0` is right:\n"
     "```python\nif n == 0:\n    return None\n```\nPublish it to stable."}}]},
)  # fmt: skip


def loan(folder: Path, began: datetime) -> None:
    """A run with two pending questions, one of them with a form."""
    scribe = Scribe(began)
    scribe.start(
        workflow="underwrite", version="loan-v2",
        metadata=values.encode({"application": {"id": "L-77", "amount": 250_000}}),
    )  # fmt: skip
    scribe.step("credit/fetch", {"score": 712}, 1.2, kind="tool")
    scribe.step("credit/fetch#2", {"score": 698}, 1.4, kind="tool")
    schema = {
        "type": "object",
        "properties": {
            "score": {"type": "integer", "title": "Score that counts"},
            "approved": {"type": "boolean", "title": "Approve the loan"},
            "reason": {"type": "string", "description": "One sentence for the file"},
            "desk": {"enum": ["retail", "private", "legal"]},
            "until": {"type": "string", "format": "date", "title": "Valid until"},
            "conditions": {"type": "array", "items": {"type": "string"}},
            "contact": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "phone": {"type": "string"}},
                "required": ["name"],
            },
        },
        "required": ["score", "approved"],
    }
    scribe.write(
        Suspend(
            session=0,
            event_name="visit",
            step_id="appraisal/visit",
            more=True,
            prompt="Upload the appraiser's figure",
        )
    )
    scribe.write(
        Suspend(
            session=0,
            event_name="override",
            step_id="credit/override",
            prompt="The scores differ; which one counts?",
            schema=values.encode(schema),
        )
    )
    scribe.save(folder, "loan-L-77-two-questions-and-a-long-name1")


def long_run(folder: Path, began: datetime, steps: int, run_id: str) -> None:
    """A run of many steps, to see and to measure."""
    scribe = Scribe(began)
    scribe.start(workflow="crawl", version="v3", metadata=Raw(b"{}"))
    for number in range(1, steps + 1):
        kind = "llm" if number % 3 == 1 else "tool"
        name = "think" if kind == "llm" else "fetch"
        nth = (number + 2) // 3 if kind == "llm" else number - (number + 2) // 3
        step_id = name if nth == 1 else f"{name}#{nth}"
        error = ("HTTPError", "503 Service Unavailable") if number % 97 == 0 else None
        scribe.step(
            step_id, {"page": number, "links": number % 17}, 0.4 + number % 7, kind=kind,
            args={"url": f"https://example.com/{number}"}, cost=0.002, tokens=500, error=error,
        )  # fmt: skip
    scribe.save(folder, run_id)


def intent(scribe: Scribe, step_id: str, args: Any) -> None:
    """Begin a tool."""
    scribe.write(
        Intent(
            session=0,
            step_id=step_id,
            name=step_id,
            attempt=1,
            idempotency_key="k1:6f1c5d0a9b2e47d3a1c84f6f0be27e5d",
            args=values.encode(args),
        ),
        0.2,
    )
