"""Trajectories of another agent become journals to view and compare; nothing is invented."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

import kassette_nb as kb
from kassette_nb import LocalStorage
from kassette_nb.cli import main
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
    with pytest.raises(kb.KassetteError, match="does not name a workflow"):
        run.fork(at="edit", start=True)


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
