"""Every table has its documented columns, and says missing where nothing was recorded."""

import inspect
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import kassette_nb as kb
from kassette_nb import frames
from kassette_nb.errors import JournalCorruptionError
from kassette_nb.text import _HIDDEN

GOLDEN = Path(__file__).parent.parent / "golden"
TABLES = ["frame", "steps", "entries", "sessions", "suspensions", "usage"]
ONE_RUN = TABLES[1:]
#: Neither an answerable question nor a model's call is in these.
NO_ROWS = {("damaged", "suspensions"), ("damaged", "usage")}
DTYPES = {"string", "Int64", "Float64", "boolean", "datetime64[ms, UTC]"}
#: Text that would do something in a terminal, a browser or a reader's mind.
HIDDEN = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200e\u200f]")


def table(runs: kb.Runs, name: str) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        made = getattr(runs, name)()
    assert isinstance(made, pd.DataFrame)
    return made


def lines(folder: Path, run_id: str, *given: str) -> kb.Runs:
    (folder / f"{run_id}.jsonl").write_text("".join(f"{line}\n" for line in given))
    runs: kb.Runs = kb.open(folder)
    return runs


@pytest.mark.parametrize("name", TABLES)
def test_columns_and_dtypes_are_the_same_whatever_is_in_a_storage(
    name: str, tmp_path: Path
) -> None:
    empty = table(kb.open(tmp_path), name)
    assert len(empty) == 0
    for folder in ("good", "damaged", "hostile"):
        frame = table(kb.open(GOLDEN / folder), name)
        assert len(frame) > 0 or (folder, name) in NO_ROWS
        assert frame.dtypes.to_dict() == empty.dtypes.to_dict(), folder
        assert {str(dtype) for dtype in frame.dtypes} <= DTYPES


@pytest.mark.parametrize("name", TABLES)
def test_every_column_is_documented_with_its_dtype(name: str) -> None:
    told = getattr(frames, f"{'runs' if name == 'frame' else name}_frame").__doc__ or ""
    told = inspect.cleandoc(told).partition("Returns:")[2]
    frame = table(kb.open(GOLDEN / "good"), name)
    assert set(frame.columns) <= set(re.findall(r"\w+", " ".join(re.findall("``(.*?)``", told,
                                                                            re.S))))  # fmt: skip
    assert all(str(dtype) in told for dtype in frame.dtypes)


def test_a_run_tells_its_own_spend_times_and_lineage() -> None:
    frame = kb.open(GOLDEN / "good").frame().set_index("run_id")
    fork = frame.loc["attempt-b"]
    assert (fork.source, fork.source_offset, fork.sessions) == ("attempt-a", 4, 1)
    assert fork.error == "GaveUp: 4 tests fail"
    assert fork.cost_usd == pytest.approx(0.0126)
    assert fork.started > frame.loc["attempt-a", "started"]
    assert frame.loc["INC-4821", "tokens"] is pd.NA
    assert frame["waiting_seconds"]["INC-4821"] > 0
    assert frame.loc["loan-two-pending", "waiting_on"] == "appraisal/visit, credit/override"
    assert frame["result"]["attempt-a"].startswith("{")


def test_steps_of_one_run() -> None:
    steps = kb.open(GOLDEN / "good")["attempt-b"].steps()
    assert list(steps.step_id) == ["llm", "run", "llm#2", "edit", "run#2", "llm#3"]
    assert list(steps.copied) == [True, True, True, False, False, False]
    assert steps.seconds.isna().all(), "not recorded is missing, never zero"
    assert steps.loc[1, "result"] == '{"exit":0,"stdout":"344\\n"}'
    assert steps.input_tokens.sum() > 0
    assert steps.loc[1, "input_tokens"] is pd.NA


def test_recorded_values_come_decoded_when_asked_for(tmp_path: Path) -> None:
    run = kb.open(GOLDEN / "good")["attempt-b"]
    assert run.steps(values=True).value[1] == {"exit": 0, "stdout": "344\n"}
    runs = lines(
        tmp_path, "lists",
        start(),
        *(step(n, f's#{n}', f'"result":[{n},2]') for n in (1, 2)),
    )  # fmt: skip
    assert list(runs.steps(values=True).value) == [[1, 2], [2, 2]]


def test_entries_are_the_lines_of_the_file() -> None:
    entries = kb.open(GOLDEN / "good")["attempt-b"].entries()
    assert list(entries["type"])[-1] == "error"
    assert entries["bytes"].sum() == (GOLDEN / "good" / "attempt-b.jsonl").stat().st_size
    assert entries.offset.is_monotonic_increasing


def test_sessions_say_who_opened_them_and_how_they_ended() -> None:
    sessions = kb.open(GOLDEN / "good")["INC-4821"].sessions()
    assert list(sessions.opened_by) == ["start", "resume"]
    assert list(sessions.last_type) == ["suspend", "complete"]
    assert sessions.entries.sum() == len(kb.open(GOLDEN / "good")["INC-4821"].entries())
    assert (sessions.ended >= sessions.started).all()
    assert sessions.seconds.notna().all()


def test_suspensions_say_who_answered_what_and_when() -> None:
    runs = kb.open(GOLDEN / "good")
    answered = runs["INC-4821"].suspensions().iloc[0]
    assert (answered.state, answered.decision) == ("answered", "approved")
    assert answered.seconds == (answered.answered - answered.asked).total_seconds()
    waiting = runs["loan-two-pending"].suspensions()
    assert list(waiting.state) == ["waiting", "waiting"]
    assert waiting.answered.isna().all()
    assert waiting.by.isna().all()


def test_usage_sums_by_model_and_keeps_the_copied_prefix_apart() -> None:
    usage = kb.open(GOLDEN / "good")["attempt-b"].usage()
    assert list(usage.copied) == [True, False]
    steps = kb.open(GOLDEN / "good")["attempt-b"].steps()
    assert usage.input_tokens.sum() == steps.input_tokens.sum()
    assert usage.cost_usd.sum() == pytest.approx(steps.cost_usd.sum())
    assert usage.cached_input_tokens.isna().all(), "a sum over nothing is missing"


@pytest.mark.parametrize("name", ONE_RUN)
def test_damaged_runs_are_named_and_the_others_have_their_rows(name: str) -> None:
    runs = kb.open(GOLDEN / "damaged")
    with pytest.warns(UserWarning, match="bad-middle, crlf") as told:
        frame = getattr(runs, name)()
    assert told[0].filename == __file__
    assert "line 2: not valid JSON" in frame.attrs["damaged"]["bad-middle"]
    assert len(frame.attrs["damaged"]) == 11
    if name not in ("suspensions", "usage"):
        assert set(frame.run_id) == {run.run_id for run in runs.listed()} - set(
            frame.attrs["damaged"]
        )
    with pytest.raises(JournalCorruptionError):
        getattr(runs.look("bad-middle"), name)()


def test_damaged_runs_are_rows_of_the_table_of_runs() -> None:
    frame = kb.open(GOLDEN / "damaged").frame()
    damaged = frame[frame.state == "damaged"]
    assert len(damaged) == 11
    assert damaged.damage.str.contains("left untouched").all()
    assert damaged.steps.isna().all()


@pytest.mark.parametrize("name", TABLES)
def test_hidden_characters_are_spelled_out(name: str) -> None:
    frame = table(kb.open(GOLDEN / "hostile"), name)
    for column in frame.columns[frame.dtypes == "string"]:
        assert not [text for text in frame[column].dropna() if HIDDEN.search(text)], column
    assert "<script" not in frame.to_html(), "a data frame escapes by itself"


def test_times_of_other_writers_are_put_in_utc_and_nonsense_is_missing(tmp_path: Path) -> None:
    given = [
        ("2026-05-08T16:00:00+02:00", "2026-05-08T14:00:00Z"),
        ("2026-05-08T14:00:00.123456Z", "2026-05-08T14:00:00.123Z"),
        ("2026-05-08T14:00:00.000Z", "2026-05-08T14:00:00Z"),
        ("2026-05-08T14:00:00", None),
        ("2026-99-99T99:99:99.999Z", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("soon\u202e", None),
    ]
    runs = lines(
        tmp_path,
        "times",
        start(),
        *(step(n, f"s#{n}", f'"startedAt":"{at}"') for n, (at, _) in enumerate(given, 1)),
    )
    started = runs.steps().started
    assert [None if at is pd.NaT else at for at in started] == [
        pd.Timestamp(at) if at else None for _, at in given
    ]
    assert list(runs.steps().seconds.isna()) == [at is None for _, at in given]


def test_numbers_beyond_64_bits_are_missing_and_not_something_else(tmp_path: Path) -> None:
    big = 10**30
    runs = lines(
        tmp_path,
        "big",
        start(),
        step(1, "a", f'"usage":{{"inputTokens":{big},"outputTokens":7,"costUsd":1e300}}'),
        step(2, "b", '"usage":{"inputTokens":9223372036854775807,"costUsd":3}'),
    )
    steps = runs.steps()
    assert list(steps.input_tokens.isna()) == [True, False]
    assert steps.input_tokens[1] == np.iinfo("int64").max
    assert list(steps.cost_usd) == [1e300, 3.0]
    assert runs.usage().input_tokens.isna().all()


def test_tables_import_nothing_of_the_workflows_that_made_the_runs(tmp_path: Path) -> None:
    lines(tmp_path, "r", start('"workflow":"agents.evil:run"'), step(1, "a", '"result":1'))
    (tmp_path / "agents.py").write_text("raise SystemExit('the user code was imported')")
    look = (
        "import sys, kassette_nb as kb\n"
        "runs = kb.open('.')\n"
        f"for name in {TABLES}: assert len(getattr(runs, name)()) >= 0\n"
        "runs['r'].html(), runs.html(), runs['r'].state\n"
        "assert 'agents' not in sys.modules\n"
        "print('looked')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", look], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "looked\n"


def start(*fields: str) -> str:
    return line("start", 0, *fields)


def step(offset: int, step_id: str, *fields: str) -> str:
    return line("step", offset, f'"stepId":"{step_id}","name":"{step_id[0]}"', *fields)


def line(kind: str, offset: int, *fields: str) -> str:
    envelope = f'"session":1,"offset":{offset},"timestamp":"2026-05-08T14:21:00.000Z"'
    return f'{{"type":"{kind}",{",".join((envelope, *fields))}}}'


def test_no_character_that_is_hidden_counts_as_printable() -> None:
    # Tables take whole columns for visible when Python calls them printable.
    hidden = [chr(code) for code in range(sys.maxunicode + 1) if _HIDDEN.match(chr(code))]
    assert len(hidden) > 200
    assert not any(map(str.isprintable, hidden))
