"""Trajectories of another agent become journals to view and compare; nothing is invented."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import kassette_nb as kb
from kassette_nb import LocalStorage, kassette
from kassette_nb.cli import main
from kassette_nb.run import Run
from kassette_nb.trajectories import import_files

FIXTURE = Path(__file__).parents[1] / "trajectories" / "round.traj"
#: Real ones, too large for the repository; where they are is told, not guessed.
SHARED = Path(
    os.environ.get("KASSETTE_TRAJECTORIES")
    or Path(__file__).resolve().parents[2].parent / "shared" / "trajectories"
)


def test_a_turn_is_a_thought_and_an_action_named_by_its_command(tmp_path: Path) -> None:
    assert import_files(LocalStorage(tmp_path), [FIXTURE]) == ["round"]
    run = kb.open(tmp_path)["round"]
    assert run.state == "completed"
    assert run.result == "diff --git a/app.py b/app.py\n"
    assert [step.step_id for step in run.fold().steps] == [
        "think", "ls", "think#2", "edit", "think#3", "ls#2", "think#4", "submit",
    ]  # fmt: skip
    assert run["ls"].value == "app.py\ntests/\n"
    assert run["edit"].args == {"command": "edit 3:3\nreturn round(x)\nend_of_edit"}
    assert run["think#2"].value == {"content": "Change it. \\ud83d"}
    assert run.journal.opening.workflow is None


def test_what_was_not_recorded_stays_missing(tmp_path: Path) -> None:
    import_files(LocalStorage(tmp_path), [FIXTURE])
    run = kb.open(tmp_path)["round"]
    steps = run.steps().set_index("step_id")
    assert steps["seconds"].round(3).dropna().to_dict() == {"ls": 0.25, "edit": 0.5, "ls#2": 0.125}
    assert steps["cost_usd"].isna().all()
    assert run.fold().own.tokens is None
    note = json.loads(run.journal.line(1))
    assert note["kind"] == "imported"
    assert "synthetic" in note["data"]["timestamps"]
    assert note["data"]["api_calls"] == 4
    assert "instance_cost" not in note["data"]


def imported(tmp_path: Path, **changes: object) -> Run:
    """The fixture as it is without times, and with what its model is said to have spent."""
    content = json.loads(FIXTURE.read_text())
    for turn in content["trajectory"]:
        turn.pop("execution_time", None)
    content["info"]["model_stats"] |= changes
    (tmp_path / "bare.traj").write_text(json.dumps(content))
    import_files(LocalStorage(tmp_path / "store"), [tmp_path / "bare.traj"])
    return kb.open(tmp_path / "store")["bare"]


def test_a_run_without_times_has_no_working_time(tmp_path: Path) -> None:
    run = imported(tmp_path)
    runs = kb.open(tmp_path / "store")
    assert runs.frame()["working_seconds"].isna().all()
    assert run.sessions()["seconds"].isna().all()
    assert kb.compare([run, run]).attempts()[0]["working_ms"] is None
    import_files(LocalStorage(tmp_path / "store"), [FIXTURE])
    assert runs.frame()["working_seconds"].dropna().round(3).tolist() == [0.875]


def test_what_the_file_sums_up_is_the_usage_of_the_last_model_turn(tmp_path: Path) -> None:
    spent = {"tokens_sent": 122_612, "tokens_received": 1_369, "instance_cost": 1.25}
    run = imported(tmp_path, **spent, total_cost=7.5)
    assert run.fold().own.tokens == 122_612 + 1_369
    assert kb.compare([run, run]).attempts()[0]["cost_total"] == 1.25
    steps = run.steps().set_index("step_id")
    assert steps["cost_usd"].dropna().to_dict() == {"think#4": 1.25}
    assert steps["input_tokens"].dropna().to_dict() == {"think#4": 122_612}
    assert run.usage()["cost_usd"].tolist() == [1.25]
    assert json.loads(run.journal.line(1))["data"]["total_cost"] == 7.5


def test_an_imported_run_is_neither_forked_nor_replayed_and_says_why(tmp_path: Path) -> None:
    run = imported(tmp_path)
    storage = LocalStorage(tmp_path / "store")

    @kassette(storage=storage)
    async def agent(ctx):
        return None

    acts: list[Callable[[], object]] = [
        lambda: run.fork(at="edit"),
        lambda: run.fork(at="edit", start=True),
        lambda: run.retry(),
        run.verify,
        run.resume,
        lambda: agent.start_sync(run_id="bare"),
        lambda: asyncio.run(agent.verify("bare")),
        lambda: agent.fork_many("bare", at="edit", n=2),
    ]
    for act in acts:
        with pytest.raises(kb.KassetteError, match="imported from SWE-agent, cannot be replayed"):
            act()
    assert list(storage.list()) == ["bare"]
    panel = run.panel()
    assert panel.main["can"]["fork"] == "imported from SWE-agent, cannot be replayed"
    assert "imported from SWE-agent" in panel.main["problem"]
    panel.close()


def test_runs_of_other_agents_are_compared_like_ours(tmp_path: Path) -> None:
    content = json.loads(FIXTURE.read_text())
    content["trajectory"].insert(1, {"response": "Hm.", "action": "cat app.py", "observation": "x"})
    other = tmp_path / "other.traj"
    other.write_text(json.dumps(content))
    import_files(LocalStorage(tmp_path / "store"), [FIXTURE, other])
    runs = kb.open(tmp_path / "store")
    made = kb.compare([runs["round"], runs["other"]])
    assert sum(not row.equal for row in made.rows) == 2
    assert made.title == "2 independent attempts"


def test_a_run_without_a_submission_failed_by_its_status_or_is_open(tmp_path: Path) -> None:
    content = json.loads(FIXTURE.read_text())
    for name, info in (("failed", {"exit_status": "exit_cost"}), ("open", {})):
        (tmp_path / f"{name}.traj").write_text(json.dumps({**content, "info": info}))
        import_files(LocalStorage(tmp_path / "store"), [tmp_path / f"{name}.traj"])
    runs = kb.open(tmp_path / "store")
    assert runs["failed"].error is not None
    assert runs["failed"].error.name == "exit_cost"
    assert runs["open"].state == "interrupted"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not valid JSON"),
        ("[1]", "no list of turns"),
        ('{"trajectory": [1]}', "no list of turns"),
        ('{"trajectory": [{}, {"action": 5}]}', "the action of turn 1 is 5, no text"),
        ('{"trajectory": [{"action": "ls", "execution_time": 1e15}]}', "an execution_time of 1e"),
        ('{"trajectory": [{"thought": ["a"]}]}', r"the thought of turn 0 is \['a'\], no text"),
    ],
)
def test_what_is_not_a_trajectory_is_named_and_nothing_is_written(
    tmp_path: Path, text: str, told: str
) -> None:
    bad = tmp_path / "bad.traj"
    bad.write_text(text)
    with pytest.raises(kb.KassetteError, match=f"bad.traj .*{told}"):
        import_files(LocalStorage(tmp_path / "store"), [FIXTURE, bad])
    with pytest.raises(kb.KassetteError, match="cannot read"):
        import_files(LocalStorage(tmp_path / "store"), [FIXTURE, tmp_path / "gone.traj"])
    with pytest.raises(kb.KassetteError, match=r"is a directory; give its files: .*\*\.traj"):
        import_files(LocalStorage(tmp_path / "store"), [FIXTURE, tmp_path])
    assert not (tmp_path / "store").exists()


def test_the_command_line_imports_and_names_the_runs(tmp_path: Path) -> None:
    def run(*args: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["--storage", str(tmp_path), "import", *args])
        return result.exit_code, result.output

    assert run(str(FIXTURE)) == (0, '{"runId":"round"}\n')
    code, output = run(str(FIXTURE))
    assert code == 1
    assert "exists already" in output
    assert run(str(FIXTURE), "--run-id", "again") == (0, '{"runId":"again"}\n')
    assert run(str(FIXTURE), str(FIXTURE), "--run-id", "x")[0] == 1


def test_the_storage_may_stand_behind_the_verb(tmp_path: Path) -> None:
    def run(*args: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, [*args])
        return result.exit_code, result.output

    url = f"file:{tmp_path}"
    assert run("import", str(FIXTURE), "--storage", url) == (0, '{"runId":"round"}\n')
    assert run("list", "--storage", url) == run("--storage", url, "list")
    assert run("--storage", url, "list", "--storage", url) == (0, '{"runId":"round"}\n')
    code, output = run("--storage", "file:a", "list", "--storage", "file:b")
    assert code == 2
    assert "given twice" in output
    for verb in main.commands.values():
        assert "--storage" in [option for p in verb.params for option in p.opts]


def test_real_trajectories_become_readable_journals(tmp_path: Path) -> None:
    files = sorted(SHARED.rglob("*.traj"))
    if not files:
        pytest.skip("shared trajectories folder absent")
    made = import_files(LocalStorage(tmp_path), [*files])
    runs = kb.open(tmp_path)
    for run_id, path in zip(made, files, strict=True):
        turns = json.loads(path.read_text())["trajectory"]
        run = runs[run_id]
        assert run.state == "completed"
        assert len(run.fold().steps) == 2 * len(turns)
        assert run.html()
    one_issue = [p.parent.name == "marshmallow-1867" for p in files]
    same = [runs[run_id] for run_id, one in zip(made, one_issue, strict=True) if one]
    compared = kb.compare(same)
    assert len(compared.frame()) == len(same) * len(compared.rows)
    # All of them change the same line, in whatever number of steps.
    edits = [row for row in compared.rows if row.name == "edit" and None not in row.cells]
    assert edits
