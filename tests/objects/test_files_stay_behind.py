"""The files of a run stay on the machine that ran it, and everybody concerned is told."""

from __future__ import annotations

import asyncio
import socket
import warnings
from pathlib import Path

import pytest

import kassette_nb as kb
from kassette_nb import kassette, kept
from kassette_nb.entries import Start
from kassette_nb.errors import WorkspaceError
from kassette_nb.journal import read
from kassette_nb.storage.objects import ObjectStorage


def editing(url: str, tree: Path) -> kb.Workflow:
    @kassette(storage=ObjectStorage(url), workspace=str(tree), name="editing")
    async def editing(ctx: kb.Context) -> None:
        await ctx.step("edit", lambda: (tree / "a.txt").write_text("two\n"))
        await ctx.suspend("approval")

    return editing


async def begin(workflow: kb.Workflow, *run_ids: str) -> None:
    for run_id in run_ids:
        await workflow.start(run_id=run_id)


def test_it_is_said_where_a_run_begins_and_on_the_machine_that_cannot_go_on(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(kept.VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "one"))
    kept._said.clear()
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a.txt").write_text("one\n")
    workflow = editing(bucket, tree)
    with pytest.warns(UserWarning, match="another one cannot go on") as told:
        asyncio.run(begin(workflow, "r", "r2"))
    (warning,) = told  # once, and it points at this very file
    assert warning.filename == __file__
    text = str(warning.message)
    assert str(kept.home(workflow.storage)) in text
    assert kept.VARIABLE in text

    monkeypatch.setenv("HOME", str(tmp_path / "two"))
    opening = read(workflow.storage, "r").entries[0]
    assert isinstance(opening, Start)
    host = socket.gethostname()
    assert opening.host == host
    run = kb.open(bucket)["r"]
    with pytest.raises(WorkspaceError, match="cannot show run 'r' with its files") as raised:
        run.workspace.diff(None, "edit")
    assert f"kept on the machine that ran it, {host}, not in the storage" in str(raised.value)
    assert kept.VARIABLE in str(raised.value)
    with pytest.raises(WorkspaceError, match="cannot fork run 'r'"):
        run.fork(at="edit")
    with pytest.raises(WorkspaceError, match=r"nothing was executed\. The files are kept on the"):
        asyncio.run(editing(bucket, tree).resume("r", "approval", 1))


def test_a_directory_that_all_machines_share_is_enough(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path / "shared"))
    kept._said.clear()
    tree = tmp_path / "tree"
    tree.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(editing(bucket, tree).start(run_id="r"))
    monkeypatch.setenv("HOME", str(tmp_path / "another"))
    assert "+two" in kb.open(bucket)["r"].workspace.diff(None, "edit")
    assert asyncio.run(editing(bucket, tree).resume("r", "approval", 1)).status == "success"
