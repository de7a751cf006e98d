"""``%load_ext kassette_nb`` in a real IPython shell, and out of it again."""

import asyncio
import os
import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

import kassette_nb as kb
from kassette_nb import display
from kassette_nb.entries import ErrorInfo, Failure
from kassette_nb.magics import OTHERS, VERBS
from tests.browser import scenes

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Any]:
    for name in ("INC-4900-suspended", "loan-two-pending", "attempt-a", "attempt-b", "in-doubt"):
        (tmp_path / f"{name}.jsonl").write_bytes((GOLDEN / "good" / f"{name}.jsonl").read_bytes())
    shell = InteractiveShell.instance()
    kb.load_ipython_extension(shell)
    shell.run_line_magic("kassette", f"storage {tmp_path}")
    yield shell
    kb.unload_ipython_extension(shell)
    InteractiveShell.clear_instance()


def test_each_command_is_a_method(shell: Any, tmp_path: Path) -> None:
    def magic(line: str) -> Any:
        return shell.run_line_magic("kassette", line)

    assert len(magic("")) == 5
    assert magic("show attempt-a").run_id == "attempt-a"
    assert magic("diff attempt-a attempt-b").title == "2 attempts"
    assert magic("approve INC-4900-suspended --by ana").state == "ready"
    loan = magic('respond loan-two-pending {"score": 1, "approved": true} --event override --by b')
    assert loan.fold().decisions[-1].by == "b"
    assert magic("fork attempt-a --at edit").run_id == "attempt-a.2"
    assert magic("cancel loan-two-pending --reason no").state == "cancelled"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("attempt-a", "Did you mean %kassette show attempt-a"),
        ("show nope", "no run 'nope'"),
        ("show attempt", "Close to it: attempt-"),
        ("approve attempt-a", "has completed"),
        ("fork attempt-a", "say where to fork"),
        ("fork attempt-a --at", "--at needs a value"),
        ("approve attempt-a --color red", "does not take"),
        ("respond loan-two-pending {bad}", "not valid JSON"),
        ("dance", "cannot read %kassette dance"),
        ("show", "usage: %kassette show ID"),
        ("show attempt-a attempt-b", "usage: %kassette show ID"),
        ("show $nothing", "$nothing is neither a run nor a run id"),
        ("settle in-doubt record {bad}", "not valid JSON"),
        ("settle in-doubt record", "record needs the tool's result"),
        ("settle in-doubt dance", "settle('dance')"),
        ("export attempt-a report.txt", "does not end in .ipynb"),
        ("export attempt-a no/such/folder/r.ipynb", "there is no folder"),
        ("retry attempt-a", "only a failed run can be retried"),
        ("show 'attempt-a", "No closing quotation"),
        ("show \u202ea", "is not a run id"),
    ],
)
def test_a_mistake_is_one_line_without_a_traceback(shell: Any, line: str, reason: str) -> None:
    with pytest.raises(UsageError) as told:
        shell.run_line_magic("kassette", line)
    assert reason in str(told.value)


def test_the_rest_of_the_commands(shell: Any, tmp_path: Path) -> None:
    def magic(line: str) -> Any:
        return shell.run_line_magic("kassette", line)

    settled = magic("settle in-doubt record '{\"id\": 7}' --by ana")
    assert settled.fold().decisions[-1].by == "ana"
    file = tmp_path / "r.ipynb"
    assert magic(f"export attempt-a {file}") == str(file)
    with pytest.raises(UsageError, match="exists already"):
        magic(f"export attempt-a {file}")
    assert magic(f"export attempt-a {file} --overwrite") == str(file)
    shell.user_ns["mine"] = magic("show attempt-a")
    assert magic("show $mine").run_id == "attempt-a"
    assert magic("fork $mine --at 3").source.from_offset == 3
    assert magic("recover") == {}, "no code is loaded for any of them"
    scribe = scenes.Scribe(datetime(2026, 5, 8, tzinfo=UTC))
    scribe.start(workflow="w")
    scribe.step("a", 1, 1.0)
    scribe.step("b", None, 1.0, error=("Boom", "x"))
    scribe.write(Failure(session=0, error=ErrorInfo(name="Boom", message="x"), step_id="b"))
    scribe.save(tmp_path, "broken")
    assert [*magic("retry broken").steps().step_id] == ["a"]
    assert magic("storage memory:other").storage.url == "memory:other"


def test_recover_goes_on_with_runs_whose_code_is_loaded(shell: Any, tmp_path: Path) -> None:
    @kb.kassette(storage=tmp_path, name="recovered-by-magic")
    async def work(ctx: kb.Context) -> int:
        await ctx.step("a", lambda: 1)
        return int(await ctx.step("b", lambda: 2))

    scribe = scenes.Scribe(datetime(2026, 5, 8, tzinfo=UTC))
    scribe.start(workflow="recovered-by-magic", metadata=msgspec.Raw(b"{}"))
    scribe.step("a", 1, 1.0)
    scribe.save(tmp_path, "left-behind")
    assert shell.run_line_magic("kassette", "recover") == {"left-behind": "goes on"}
    run = kb.open(tmp_path)["left-behind"]
    asyncio.run(run._settled())
    assert (run.state, run.result) == ("completed", 2)


def test_nothing_in_a_line_is_evaluated(shell: Any, tmp_path: Path) -> None:
    # IPython evaluates {…} and $… in the lines of other magics.
    bad = "{__import__('pathlib').Path('ran').touch()}$(touch ran)"
    scribe = scenes.Scribe(datetime(2026, 5, 8, tzinfo=UTC))
    scribe.start(workflow="w")
    scribe.step(bad, 1, 1.0)
    scribe.save(tmp_path, "bad")
    os.chdir(tmp_path)
    line = f"%kassette fork bad --at {shlex.quote(bad)}"
    shell.run_cell(line).raise_error()
    assert not (tmp_path / "ran").exists()
    source = kb.open(tmp_path)["bad.2"].source
    assert source is not None
    assert source.from_offset == 1


def completed(shell: Any, line: str) -> list[str]:
    """The lines that the Tab key can make of this one, as a kernel works them out."""
    with provisionalcompleter():
        found = list(shell.Completer.completions(line, len(line)))
    return sorted({line[: each.start] + each.text + line[each.end :] for each in found})


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("%kassette sh", ["show"]),
        ("%kassette re", ["recover", "reject", "resume", "respond", "retry"]),
        ("%kassette show att", ["attempt-a", "attempt-b"]),
        ("%kassette diff attempt-a attempt-", ["attempt-a", "attempt-b"]),
        ("%kassette fork attempt-b --at r", ["run", "run#2"]),
        ("%kassette approve loan-two-pending --event app", ["appraisal/visit"]),
        ("%kassette fork attempt-b --a", ["--at"]),
        ("%kassette settle in-doubt re", ["record", "retry"]),
        ("%kassette show no-such", []),
    ],
)
def test_the_tab_key_completes(shell: Any, line: str, offered: list[str]) -> None:
    assert completed(shell, line) == sorted(line[: line.rindex(" ") + 1] + each for each in offered)


def test_the_tab_key_goes_on_behind_a_sign_that_breaks_words(shell: Any) -> None:
    line = "%kassette fork attempt-b --at run#"
    assert completed(shell, line) == [f"{line}2"]


def test_the_tab_key_offers_no_id_that_shows_less_than_it_is(shell: Any, tmp_path: Path) -> None:
    (tmp_path / "xss.jsonl").write_bytes((GOLDEN / "hostile" / "xss.jsonl").read_bytes())
    line = "%kassette fork xss --at "
    found = completed(shell, line)
    assert len(found) >= 5
    for each in found:
        assert each.isprintable()
        assert len(shlex.split(each)) == 5


def test_help_names_every_command(shell: Any) -> None:
    told = shell.find_line_magic("kassette").__doc__
    for verb in (*VERBS, *OTHERS):
        assert re.search(rf"\b{verb}\b", told), verb


def test_unloading_takes_everything_back(shell: Any) -> None:
    assert len(shell.Completer.custom_matchers) == 1
    kb.load_ipython_extension(shell)
    assert len(shell.Completer.custom_matchers) == 1, "loaded again, it is there once"
    kb.unload_ipython_extension(shell)
    assert shell.Completer.custom_matchers == []
    assert "kassette" not in shell.magics_manager.magics["line"]
    assert not display.show("run", object())
    kb.load_ipython_extension(shell)
