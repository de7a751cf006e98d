"""``%load_ext kassette_nb`` in a real IPython shell, and out of it again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

import kassette_nb as kb
from kassette_nb import display

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Any]:
    for name in ("INC-4900-suspended", "loan-two-pending", "attempt-a", "attempt-b"):
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

    assert len(magic("")) == 4
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
    ],
)
def test_a_mistake_is_one_line_without_a_traceback(shell: Any, line: str, reason: str) -> None:
    with pytest.raises(UsageError) as told:
        shell.run_line_magic("kassette", line)
    assert reason in str(told.value)


def test_unloading_takes_everything_back(shell: Any) -> None:
    kb.unload_ipython_extension(shell)
    assert "kassette" not in shell.magics_manager.magics["line"]
    assert not display.show("run", object())
    kb.load_ipython_extension(shell)
