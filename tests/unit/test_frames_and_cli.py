"""The command line sees the same runs as the panel."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import kassette_nb as kb
from kassette_nb import cli, kassette

GOLDEN = Path(__file__).parent.parent / "golden"
GOOD = str(GOLDEN / "good")


def test_a_comparison_is_a_tidy_frame() -> None:
    runs = kb.open(GOOD)
    frame = runs["attempt-a"].diff(runs["attempt-b"]).frame()
    status = frame[frame.run_id == "attempt-b"].set_index("row").status
    assert list(status) == ["same", "same", "same", "changed", "changed", "inserted"]


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.main, list(args))
    return result.exit_code, result.output


def test_list_prints_an_id_a_line() -> None:
    code, out = run("--storage", GOOD, "list", "--limit", "2")
    assert code == 0
    assert out == '{"runId":"INC-4821"}\n{"runId":"INC-4900-suspended"}\n'


def test_a_long_list_has_the_state_of_each_run_and_the_damage_of_others(tmp_path: Path) -> None:
    good = GOLDEN / "good" / "loan-two-pending.jsonl"
    (tmp_path / "a.jsonl").write_bytes(good.read_bytes())
    (tmp_path / "b.jsonl").write_bytes(b"{}\n")
    code, out = run("--storage", str(tmp_path), "list", "--long")
    one, two = (json.loads(line) for line in out.splitlines())
    assert (code, one["runId"], one["status"]) == (0, "a", "suspended")
    assert one == json.loads(run("--storage", str(tmp_path), "status", "a")[1])
    assert (two["runId"], two["status"]) == ("b", "damaged")
    assert "line 1" in two["damage"]


def test_status_prints_one_object() -> None:
    code, out = run("--storage", GOOD, "status", "loan-two-pending")
    assert code == 0
    status = json.loads(out)
    assert status["status"] == "suspended"
    assert [q["stepId"] for q in status["waitingOn"]] == ["appraisal/visit", "credit/override"]
    assert json.loads(run("--storage", GOOD, "status", "failed")[1])["error"]["name"] == "ToolError"


def test_dump_prints_the_lines_as_they_are() -> None:
    code, out = run("--storage", GOOD, "dump", "unknown-fields", "--offset", "1")
    assert code == 0
    lines = (GOLDEN / "good" / "unknown-fields.jsonl").read_text().splitlines(keepends=True)
    assert out == "".join(lines[1:])


def test_fork_prints_the_new_id(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes((GOLDEN / "good" / "attempt-a.jsonl").read_bytes())
    here = ("--storage", str(tmp_path))
    assert run(*here, "fork", "a", "--from-step", "edit") == (0, '{"runId":"a.2"}\n')
    assert (
        run(*here, "fork", "a", "--from-offset", "3", "--new-run-id", "b")[1] == '{"runId":"b"}\n'
    )
    assert run(*here, "fork", "a")[0] == 2
    code, out = run(*here, "fork", "a", "--from-step", "nowhere")
    assert (code, "no step 'nowhere'" in out) == (1, True)
    assert run(*here, "fork", "a", "--at", "edit", "--new-run-id", "c")[1] == '{"runId":"c"}\n'
    assert sorted(p.stem for p in tmp_path.glob("*.jsonl")) == ["a", "a.2", "b", "c"]


def test_decisions_from_the_command_line_are_recorded(tmp_path: Path) -> None:
    for name in ("INC-4900-suspended", "loan-two-pending"):
        (tmp_path / f"{name}.jsonl").write_bytes((GOLDEN / "good" / f"{name}.jsonl").read_bytes())
    here = ("--storage", str(tmp_path))
    code, out = run(*here, "approve", "INC-4900-suspended", "--by", "ana")
    assert (code, json.loads(out)["status"]) == (0, "ready")
    code, out = run(*here, "reject", "INC-4900-suspended", "--by", "bob")
    assert (code, "answered first by ana" in out) == (1, True)
    loan = (*here, "respond", "loan-two-pending")
    answer = '{"score": 712, "approved": true}'
    assert run(*loan, "{score: 1}", "--event", "override")[0] == 2
    assert run(*loan, answer, "--event", "override")[0] == 0
    code, out = run(*here, "cancel", "loan-two-pending", "--reason", "withdrawn")
    assert (code, json.loads(out)["reason"]) == (0, "withdrawn")


def test_a_tool_in_doubt_is_settled_and_a_failed_run_retried(tmp_path: Path) -> None:
    for name in ("in-doubt", "attempt-b"):
        (tmp_path / f"{name}.jsonl").write_bytes((GOLDEN / "good" / f"{name}.jsonl").read_bytes())
    here = ("--storage", str(tmp_path))
    code, out = run(*here, "approve", "in-doubt")
    assert (code, "kassette-nb settle in-doubt record RESULT" in out) == (1, True)
    assert run(*here, "settle", "in-doubt", "record")[0] == 2
    assert run(*here, "settle", "in-doubt", "record", "{id: 7}")[0] == 2
    code, out = run(*here, "settle", "in-doubt", "record", '{"id": 7}', "--by", "ana")
    assert (code, json.loads(out)["status"]) == (0, "ready")
    code, out = run(*here, "settle", "in-doubt", "retry")
    assert code == 1
    assert out.startswith("Error: ")
    code, out = run(*here, "retry", "attempt-b")
    assert (code, out.startswith("Error: ")) == (1, True), "its own code failed, not a step"


def test_export_writes_a_notebook_once(tmp_path: Path) -> None:
    file = str(tmp_path / "report.ipynb")
    export = ("--storage", GOOD, "export", "INC-4821", file)
    assert run(*export) == (0, json.dumps({"path": file}, separators=(",", ":")) + "\n")
    assert json.loads(Path(file).read_text())["nbformat"] == 4
    code, out = run(*export)
    assert (code, "exists already; --overwrite" in out) == (1, True)
    assert run(*export, "--overwrite")[0] == 0


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("status", "nope"), "no run 'nope'"),
        (("status", "../nope"), "is not a run id"),
        (("dump", "nope"), "no run 'nope'"),
    ],
)
def test_a_bad_id_is_one_line_and_no_traceback(args: tuple[str, ...], reason: str) -> None:
    code, out = run("--storage", GOOD, *args)
    assert code == 1
    assert out.startswith("Error: ")
    assert reason in out


def test_a_damaged_journal_is_named_on_the_command_line() -> None:
    code, out = run("--storage", str(GOLDEN / "damaged"), "status", "bad-middle")
    assert code == 1
    assert "bad-middle.jsonl, line 2: not valid JSON" in out


def test_an_agent_starts_without_paying_for_the_notebook(tmp_path: Path) -> None:
    agent = (
        "import sys, asyncio, kassette_nb\n"
        "@kassette_nb.kassette(storage=sys.argv[1])\n"
        "async def hello(ctx): return await ctx.step('greet', lambda: 'hi')\n"
        "asyncio.run(hello.start(run_id='r'))\n"
        "heavy = {'pandas', 'plotly', 'ipywidgets', 'anywidget', 'IPython', 'nbformat', 'numpy',\n"
        "         'jsonschema'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", agent, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert out.stdout == "[]\n"


def test_the_public_names_are_few_and_all_there() -> None:
    assert len(kb.__all__) <= 25
    for name in kb.__all__:
        assert getattr(kb, name) is not None
    assert kb.open is not None
    assert "open" not in kb.__all__
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = kb.nothing


def test_awaiting_a_run_waits_for_another_session_to_settle(tmp_path: Path) -> None:
    @kassette(storage=tmp_path, name="slow")
    async def slow(ctx: kb.Context) -> str:
        await ctx.step("wait", asyncio.sleep, 0.2)
        return "done"

    async def scenario() -> None:
        task = asyncio.create_task(slow.start(run_id="r"))
        await asyncio.sleep(0.05)
        run = kb.open(tmp_path)["r"]
        assert run.state == "running"
        await run
        assert run.state == "completed"
        await task

    asyncio.run(scenario())
