"""The comparison in a real JupyterLab: sorted, based on another attempt, values and files."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.lab import Lab

pytestmark = pytest.mark.browser

SETUP = """
import kassette_nb as kb
from pathlib import Path
from kassette_nb import kassette
%load_ext kassette_nb

Path("tree").mkdir()
Path("tree/a.txt").write_text("old\\n")

@kassette(storage="demo", workspace="tree", outcome=lambda result: (result, 5))
async def solve(ctx):
    def edit(text):
        (ctx.workspace / "a.txt").write_text(text + "\\n")
        return "edited"

    plan = await ctx.step("plan", lambda: "aaa")
    await ctx.step("edit", edit, plan)
    return len(plan)

await solve.start(run_id="first")
attempts = solve.fork_many("first", at="plan", values=["b", "ccccc"])
attempts
"""
COMPARE = """
await attempts
runs = kb.open("demo")
kb.compare([runs[run_id] for run_id in ("first", *attempts.run_ids)])
"""


def test_attempts_are_sorted_rebased_and_compared_with_their_files(lab: Lab) -> None:
    lab.open(lab.write("attempts.ipynb", [SETUP, COMPARE]))
    lab.run_cell(0)
    lab.run_cell(1)
    expect(lab.cell_output(0)).to_contain_text("2 completed")
    expect(lab.cell_output(0)).to_contain_text("prefix verified")
    view = lab.cell_output(1).locator(".kas")
    names = view.locator(".k-attempts tbody th")
    expect(names).to_contain_text(["first", "b", "ccccc"])
    expect(view.locator(".k-attempts")).to_contain_text("✓ solved")
    expect(view).to_contain_text("1 better, 1 worse, 0 tied")

    view.get_by_role("button", name="score").click()
    expect(names).to_contain_text(["ccccc", "first", "b"])
    expect(view.locator(".k-mhead > span")).to_contain_text(["step", "ccccc", "first", "b"])
    view.get_by_role("button", name="score").click()
    expect(names).to_contain_text(["b", "first", "ccccc"])

    view.locator(".k-attempts tbody tr").nth(2).hover()
    view.locator(".k-attempts tbody tr").nth(2).get_by_role("button").click()
    expect(view.locator(".k-base")).to_contain_text("ccccc")
    expect(view).to_contain_text("0 better, 2 worse, 0 tied")

    view.locator('.k-mcell[data-row="1"]').first.click()
    view.get_by_role("tab", name="files").click()
    expect(view.locator(".k-celldiff")).to_contain_text("-ccccc")
    expect(view.locator(".k-celldiff")).to_contain_text("+b")
    view.get_by_text("where they come from").click()
    expect(view.locator(".k-family")).to_contain_text("plan (changed)")
    assert [e for e in lab.console_errors if "widget" in e.lower()] == []
