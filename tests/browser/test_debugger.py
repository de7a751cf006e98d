"""The debugger in a real JupyterLab: clicks, keys, what a reopened notebook shows, hostile text."""

from __future__ import annotations

import json
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser import scenes
from tests.browser.lab import Lab, wait_until

GOLDEN = Path(__file__).parent.parent / "golden"

SETUP = """
import asyncio, time
import kassette_nb as kb
from kassette_nb import kassette
%load_ext kassette_nb

@kassette(storage="runs")
async def patcher(ctx, note="x"):
    plan = await ctx.step("plan", lambda: "-old line\\n+new line\\n")
    answer = await ctx.suspend("apply-patch", prompt="Apply this patch?", context=plan)
    if not answer["approved"]:
        return {"applied": False, "why": answer["note"]}
    await ctx.step("apply", lambda: "1 file changed")
    return {"applied": True}

runs = kb.open("runs")
"""


@pytest.fixture(scope="module")
def lab_env() -> dict[str, str]:
    return {"KASSETTE_BY": "ana"}


def entries(lab: Lab, run_id: str, folder: str = "runs") -> list[dict[str, Any]]:
    path = lab.root / folder / f"{run_id}.jsonl"
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def open_panel(lab: Lab, name: str, run_id: str, *, subshells: bool = True) -> Any:
    """A notebook with a suspended run and its panel in cell 1.

    Without subshells, clicks go to the kernel's main thread, as with most front ends.
    """
    cells = [SETUP, f"await patcher.start(run_id={run_id!r})\nruns[{run_id!r}]", "1 + 1", "2 + 2"]
    lab.open(lab.write(f"{name}.ipynb", cells))
    if not subshells:
        lab.page.evaluate(
            "jupyterapp.shell.currentWidget.sessionContext.session.kernel.commsOverSubshells"
            " = 'disabled'"
        )
    lab.run_cell(0)
    lab.run_cell(1)
    panel = lab.cell_output(1).locator(".kas")
    expect(panel).to_contain_text("Apply this patch?")
    return panel


def settle(panel: Any) -> None:
    """A question that has just appeared takes no click for a moment."""
    expect(panel.locator(".k-settling")).to_have_count(0)
    time.sleep(0.65)


def test_approve_is_one_resume_line_and_the_run_goes_on(lab: Lab) -> None:
    panel = open_panel(lab, "approve", "r-approve")
    settle(panel)
    panel.get_by_role("textbox", name="note for the agent").fill("looks right")
    panel.get_by_role("button", name="Approve").click()
    expect(panel).to_contain_text("completed")
    expect(panel.locator(".k-decision")).to_contain_text("approved by ana")
    resumed = [e for e in entries(lab, "r-approve") if e["type"] == "resume"]
    (answer,) = resumed
    assert answer["value"] == {"approved": True, "note": "looks right"}
    assert (answer["by"], answer["eventName"]) == ("ana", "apply-patch")
    assert entries(lab, "r-approve")[-1]["result"] == {"applied": True}
    assert lab.console_errors == []


def test_reject_with_a_note_reaches_the_agent(lab: Lab) -> None:
    panel = open_panel(lab, "reject", "r-reject")
    settle(panel)
    panel.get_by_role("textbox", name="note for the agent").fill("wrong file")
    panel.get_by_role("button", name="Reject").click()
    expect(panel).to_contain_text("completed")
    assert entries(lab, "r-reject")[-1]["result"] == {"applied": False, "why": "wrong file"}


def test_a_double_click_is_one_answer(lab: Lab) -> None:
    panel = open_panel(lab, "double", "r-double")
    settle(panel)
    panel.get_by_role("button", name="Approve").dblclick()
    expect(panel).to_contain_text("completed")
    assert [e["type"] for e in entries(lab, "r-double")].count("resume") == 1


def test_the_second_of_two_panels_says_who_was_first(lab: Lab) -> None:
    panel = open_panel(lab, "two", "r-two")
    settle(panel)
    path = lab.root / "runs" / "r-two.jsonl"
    # Another process answers; the panel has not heard of it when the button is pressed.
    shutil.copy(path, lab.root / "before.jsonl")
    last = entries(lab, "r-two")[-1]
    line = {
        "type": "resume", "session": last["session"] + 1, "offset": last["offset"] + 1,
        "timestamp": "2026-11-30T12:00:00.000Z", "eventName": "apply-patch",
        "stepId": "apply-patch", "value": {"approved": False}, "by": "bob",
    }  # fmt: skip
    button = panel.get_by_role("button", name="Approve")
    button.evaluate("b => { window.approve = b; }")
    with path.open("ab") as journal:
        journal.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    lab.page.evaluate("window.approve.click()")
    expect(panel).to_contain_text("bob")
    types = [e["type"] for e in entries(lab, "r-two")]
    assert types.count("resume") == 1


def block(lab: Lab, seconds: int) -> None:
    """Let cell 2 block the kernel, and return while it does."""
    lab.cell(2).locator(".cm-line").first.click()
    lab.page.keyboard.press("Control+a")
    lab.page.keyboard.type(f"print('asleep', flush=True); time.sleep({seconds})")
    lab.run_cell(2, wait=False)
    expect(lab.cell_output(2)).to_contain_text("asleep")


def test_an_answer_given_while_a_cell_blocks_waits_and_the_panel_says_so(lab: Lab) -> None:
    panel = open_panel(lab, "busy", "r-busy", subshells=False)
    settle(panel)
    block(lab, 5)
    panel.get_by_role("button", name="Approve").click()
    expect(panel).to_contain_text("the kernel is busy; the answer waits")
    assert [e["type"] for e in entries(lab, "r-busy")].count("resume") == 0
    expect(panel).to_contain_text("completed", timeout=20_000)
    assert [e["type"] for e in entries(lab, "r-busy")].count("resume") == 1


def test_a_click_while_a_cell_blocks_is_one_answer_whichever_thread_it_comes_in(
    lab: Lab,
) -> None:
    # Lab sends some messages to a thread of their own and some to the main one, as it sees fit.
    panel = open_panel(lab, "subshell", "r-subshell")
    settle(panel)
    block(lab, 4)
    panel.get_by_role("button", name="Approve").click()
    expect(panel).to_contain_text("completed", timeout=20_000)
    assert [e["type"] for e in entries(lab, "r-subshell")].count("resume") == 1


def test_a_panel_of_a_restarted_kernel_says_that_nothing_was_recorded(lab: Lab) -> None:
    panel = open_panel(lab, "restarted", "r-restarted")
    settle(panel)
    lab.restart_kernel()
    # Nobody has clicked: the panel says it by itself, long before its next beat.
    expect(panel).to_contain_text("run this cell again", timeout=5_000)
    if panel.get_by_role("button", name="Approve").is_enabled():
        panel.get_by_role("button", name="Approve").click()
        expect(panel).to_contain_text("nothing recorded", timeout=5_000)
    assert entries(lab, "r-restarted")[-1]["type"] == "suspend"


def test_keys_in_a_focused_panel_leave_the_cells_alone(lab: Lab) -> None:
    panel = open_panel(lab, "keys", "r-keys")
    before = lab.cell_count()
    prompts = [lab.cell(i).locator(".jp-InputArea-prompt").inner_text() for i in range(4)]
    panel.get_by_role("listbox").focus()
    for key in ("a", "d", "d", "b", "x", "Control+Enter", "Shift+Enter", "Enter", "ArrowUp"):
        lab.page.keyboard.press(key)
    time.sleep(0.5)
    assert lab.cell_count() == before
    after = [lab.cell(i).locator(".jp-InputArea-prompt").inner_text() for i in range(4)]
    assert after == prompts
    assert entries(lab, "r-keys")[-1]["type"] == "suspend", "Enter is no answer"


def test_a_trusted_notebook_reopened_without_a_kernel_shows_the_twin(lab: Lab) -> None:
    panel = open_panel(lab, "reopened", "r-reopened")
    twin = lab.cell_output(1).locator(".kst")
    assert not twin.is_visible(), "the live view is there"
    settle(panel)
    lab.reopen(trusted=True, kernel=False)
    output = lab.cell_output(1)
    expect(output.locator(".kst")).to_be_visible()
    expect(output.locator(".kst")).to_contain_text("Apply this patch?")
    expect(output.locator(".kst table")).to_contain_text("plan")
    for line in ("Error displaying widget", "Loading widget"):
        assert not output.get_by_text(line).is_visible()
    lab.reopen(trusted=False, kernel=False)
    expect(lab.cell_output(1)).to_contain_text("Apply this patch?")
    lab.reopen(trusted=True, kernel=True)
    expect(lab.cell_output(1).locator(".kst")).to_be_visible()
    assert lab.cell_output(1).get_by_role("button", name="Approve").count() == 0, "nothing to click"


def test_the_twin_is_rewritten_when_the_run_settles(lab: Lab) -> None:
    panel = open_panel(lab, "settled", "r-settled")
    settle(panel)
    panel.get_by_role("button", name="Approve").click()
    expect(panel).to_contain_text("completed")

    def twin() -> str:
        return str(lab.outputs(1))

    wait_until(lambda: "apply-patch approved by ana" in twin(), "the twin is rewritten")
    expect(panel.get_by_role("listbox")).to_be_visible()
    lab.reopen(trusted=True, kernel=False)
    expect(lab.cell_output(1).locator(".kst")).to_contain_text("completed")


def test_running_again_from_a_step_makes_a_fork_that_opens_below(lab: Lab) -> None:
    panel = open_panel(lab, "fork", "r-fork")
    settle(panel)
    panel.get_by_role("button", name="Approve").click()
    expect(panel).to_contain_text("completed")
    panel.get_by_role("listbox").focus()
    lab.page.keyboard.press("Home")
    expect(panel.get_by_role("button", name="Run again from plan")).to_be_visible()
    panel.get_by_role("button", name="Change its result").click()
    panel.locator("textarea").fill("-old line\n+another line\n")
    panel.get_by_role("button", name="Fork and run").click()
    expect(panel).to_contain_text("r-fork.2")
    wait_until(
        lambda: entries(lab, "r-fork.2")[-1]["type"] == "suspend", "the fork runs to its question"
    )
    fork = entries(lab, "r-fork.2")
    assert fork[0]["source"] == {"runId": "r-fork", "fromOffset": 2}
    assert fork[1]["result"] == "-old line\n+another line\n"
    assert fork[1]["overridden"] is True


def test_the_panel_follows_a_run_of_another_process(lab: Lab) -> None:
    folder = lab.root / "elsewhere"
    scribe = scenes.Scribe(datetime.now(UTC) - timedelta(minutes=1))
    scribe.start(workflow="crawl")
    scribe.step("think", {"page": 1}, 1.0, kind="llm", cost=0.01)
    scribe.save(folder, "r")
    lab.open(lab.write("follow.ipynb", [SETUP, "kb.open('elsewhere')['r']"]))
    lab.run_cell(0)
    lab.run_cell(1)
    panel = lab.cell_output(1).locator(".kas")
    expect(panel).to_contain_text("1 row")
    for number in range(2, 6):
        scribe.step(f"think#{number}", {"page": number}, 1.0, kind="llm", cost=0.01)
        with (folder / "r.jsonl").open("ab") as journal:
            journal.write(scribe.lines[-1])
    expect(panel).to_contain_text("think#5", timeout=2_000)


LOAN = """
@kassette(storage="runs")
async def loan(ctx):
    async def visit(ctx):
        return await ctx.suspend("visit", prompt="Has the appraiser been there?")

    async def credit(ctx):
        return await ctx.suspend("override", prompt="Which one?", context={"a": 1}, schema={
            "type": "object", "required": ["score"],
            "properties": {
                "score": {"type": "integer", "minimum": 300},
                "until": {"type": "string", "format": "date"},
                "desk": {"enum": ["retail", "legal"]},
                "conditions": {"type": "array", "items": {"type": "string"}},
                "contact": {"type": "object", "properties": {"name": {"type": "string"}}},
            },
        })

    return await ctx.parallel({"appraisal": visit, "credit": credit})

await loan.start(run_id="r-loan")
runs["r-loan"]
"""


def test_two_questions_are_answered_one_by_yes_and_one_by_a_form(lab: Lab) -> None:
    lab.open(lab.write("loan.ipynb", [SETUP, LOAN]))
    lab.run_cell(0)
    lab.run_cell(1)
    panel = lab.cell_output(1).locator(".kas")
    expect(panel).to_contain_text("2 open")
    panel.get_by_role("tab", name="credit/override").click()
    settle(panel)
    panel.get_by_role("textbox", name="score").fill("12.5")
    panel.get_by_role("button", name="Answer").click()
    expect(panel).to_contain_text("score takes a whole number")
    panel.get_by_role("textbox", name="score").fill("120")
    panel.get_by_label("until").fill("2027-01-31")
    panel.get_by_label("desk").select_option("legal")
    panel.get_by_role("textbox", name="conditions").fill("two signatures\nno cash")
    panel.get_by_role("textbox", name="name").fill("ana")
    expect(panel.locator(".k-foot")).to_contain_text("'until': '2027-01-31'")
    panel.get_by_role("button", name="Answer").click()
    expect(panel).to_contain_text("120 is less than the minimum of 300", timeout=20_000)
    refused = panel.get_by_role("textbox", name="score")
    expect(refused).to_have_attribute("aria-invalid", "true")
    panel.get_by_role("button", name="back").click()
    panel.get_by_role("textbox", name="score").fill("712")
    panel.get_by_role("button", name="Answer").click()
    expect(panel).not_to_contain_text("2 open")
    settle(panel)
    panel.get_by_role("button", name="Approve").click()
    expect(panel).to_contain_text("completed")
    assert entries(lab, "r-loan")[-1]["result"]["credit"] == {
        "score": 712, "until": "2027-01-31", "desk": "legal",
        "conditions": ["two signatures", "no cash"], "contact": {"name": "ana"},
    }  # fmt: skip
    assert lab.console_errors == []


DOUBT = """
@kassette(storage="runs")
async def deploy(ctx):
    return await ctx.tool("publish", lambda version: {"live": version}, version="2.14")

await deploy.start(run_id="r-doubt")
from pathlib import Path
path = Path("runs/r-doubt.jsonl")
path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))  # killed in the tool
runs["r-doubt"]
"""


def test_a_tool_in_doubt_is_settled_with_its_result(lab: Lab) -> None:
    lab.open(lab.write("doubt.ipynb", [SETUP, DOUBT]))
    lab.run_cell(0)
    lab.run_cell(1)
    panel = lab.cell_output(1).locator(".kas")
    expect(panel).to_contain_text("may have acted or not")
    settle(panel)
    panel.get_by_role("button", name="It happened").click()
    panel.get_by_role("textbox", name="result of the tool").fill('{"live": "by hand"}')
    expect(panel.locator(".k-foot")).to_contain_text("settle('record', {'live': 'by hand'}")
    panel.get_by_role("button", name="Record this result").click()
    expect(panel).to_contain_text("completed", timeout=20_000)
    expect(panel.locator(".k-decision")).to_contain_text("it happened by ana")
    assert entries(lab, "r-doubt")[-1]["result"] == {"live": "by hand"}


PLAIN = "await patcher.start(run_id='r-plain')\nruns['r-plain']"
FILES = """
import pathlib
tree = pathlib.Path("tree")
tree.mkdir()
(tree / "app.py").write_text("a = 1\\n")

def edit():
    (tree / "app.py").write_text("a = 2\\n")
    (tree / "<img src=x onerror=window.__x=1>.txt").write_text("<script>window.__x=1</script>\\n")
    (tree / "rows\\u202e.txt").write_text("a row of some length\\n" * 2_000)
    (tree / "picture.bin").write_bytes(bytes(3_000))

@kassette(storage="runs", workspace="tree")
async def edits(ctx):
    await ctx.step("edit", edit)
    for number in (3, 4):
        await ctx.step("again", lambda: (tree / "app.py").write_text(f"a = {number}\\n"))
    await ctx.suspend("go on")

await edits.start(run_id="r-files")
runs["r-files"]
"""


def test_what_a_step_changed_is_shown_as_text_and_long_files_when_opened(lab: Lab) -> None:
    lab.open(lab.write("files.ipynb", [SETUP, FILES, PLAIN]))
    for index in range(3):
        lab.run_cell(index)
    plain = lab.cell_output(2).locator(".kas")
    expect(plain.get_by_role("tab", name="Entry")).to_be_visible()
    assert plain.get_by_role("tab", name="Files").count() == 0, "a run without a workspace"
    panel = lab.cell_output(1).locator(".kas")
    panel.locator(".k-row", has_text="edit").first.click()
    panel.get_by_role("tab", name="Files").click()
    rows = panel.locator(".k-filerow")
    expect(rows).to_have_count(4)
    expect(panel.locator(".k-valuebar")).to_contain_text("4 files, +2,002 −1")
    expect(panel.locator(".k-foot .k-code")).to_have_text(
        "kb.open('file:runs')['r-files'].workspace.diff(None, 'edit')"
    )
    expect(rows.filter(has_text="app.py").locator(".k-add")).to_have_text("+a = 2")
    expect(rows.filter(has_text="picture.bin")).to_contain_text("binary, 3.0 kB")
    expect(rows.filter(has_text="onerror")).to_contain_text("<script>window.__x=1</script>")
    long = rows.filter(has_text="rows\\u202e.txt")
    expect(long.locator(".k-filebody")).to_be_hidden()
    long.locator("summary").focus()
    expect(panel.locator(".k-foot .k-code")).to_contain_text("'edit', 'rows\\u202e.txt')")
    lab.page.keyboard.press("Enter")
    long.get_by_role("button", name="show all").click()
    expect(long.get_by_role("button", name="show all")).to_have_count(0)
    assert long.locator(".k-add").count() == 2_000
    for number, step in ((3, "again"), (4, "again#2")):  # alike but for what is in the file
        panel.locator(".k-row").get_by_text(step, exact=True).click()
        expect(panel.locator(".k-filerow .k-add")).to_have_text(f"+a = {number}")
    assert lab.page.evaluate("typeof window.__x") == "undefined"
    assert lab.console_errors == []


def test_where_the_code_differs_verify_says_so_and_an_answer_can_be_recorded_alone(
    lab: Lab,
) -> None:
    panel = open_panel(lab, "differs", "r-differs")
    settle(panel)
    panel.get_by_role("button", name="Verify").click()
    expect(panel).to_contain_text("1 step replayed, 0 live, prefix verified")
    panel.get_by_role("button", name="close").click()
    lab.cell(2).locator(".cm-line").first.click()
    lab.page.keyboard.press("Control+a")
    lab.page.keyboard.insert_text(
        "@kassette(storage='runs')\nasync def patcher(ctx, note='x'):\n"
        "    await ctx.step('another plan', lambda: 1)"
    )
    lab.run_cell(2)
    panel.get_by_role("button", name="Approve").click()
    expect(panel.locator(".k-way")).to_have_count(2)
    expect(panel.locator(".k-ways")).to_contain_text("keeps 0 steps, plan runs again live")
    assert entries(lab, "r-differs")[-1]["type"] == "suspend", "not spent"
    only = panel.get_by_role("button", name="Record only")
    only.hover()
    expect(panel.locator(".k-foot .k-code")).to_contain_text("start=False)")
    only.click()
    expect(panel.locator(".k-decision")).to_contain_text("approved by ana")
    assert entries(lab, "r-differs")[-1]["type"] == "resume", "and nothing after it"
    panel.get_by_role("button", name="Verify").click()
    expect(panel).to_contain_text("0 steps replayed, 0 live; run 'r-differs'")
    expect(panel.get_by_role("button", name="Fork there and run")).to_be_visible()
    assert lab.console_errors == []


def test_ten_thousand_steps_stand_as_soon_as_a_hundred(lab: Lab) -> None:
    began = datetime.now(UTC) - timedelta(hours=30)
    for steps in (100, 10_000):
        scenes.long_run(lab.root / "long", began, steps, f"r{steps}")
    show = "long = kb.open('long')\nlong[%r]"
    lab.open(lab.write("long.ipynb", [SETUP, show % "r100", show % "r10000"]))
    lab.run_cell(0)
    took: dict[int, float] = {}
    for cell in (1, 2):
        for _ in range(3):
            began_at = time.monotonic()
            lab.run_cell(cell)
            panel = lab.cell_output(cell).locator(".kas")
            expect(panel.locator(".k-row").first).to_be_visible()
            took[cell] = min(took.get(cell, 99.0), time.monotonic() - began_at)
    panel = lab.cell_output(2).locator(".kas")
    expect(panel).to_contain_text("10,000 rows")
    assert panel.locator(".k-row").count() < 60, "only what is in sight is drawn"
    click = panel.evaluate(
        """root => new Promise(done => {
            const row = root.querySelector('.k-row:not(.k-sel)'), began = performance.now();
            const value = root.querySelector('.k-inspector .k-value');
            new MutationObserver(() => {
                if (value.textContent.includes('page')) done(performance.now() - began);
            }).observe(value, { childList: true, subtree: true });
            row.click();
        })"""
    )
    print(f"visible: 100 steps {took[1]:.2f} s, 10,000 steps {took[2]:.2f} s "
          f"({took[2] / took[1]:.2f} times); click to inspector {click:.0f} ms")  # fmt: skip


def test_hostile_journals_run_nothing_in_any_view(lab: Lab) -> None:
    shutil.copytree(GOLDEN / "hostile", lab.root / "hostile", dirs_exist_ok=True)
    cells = [
        SETUP,
        "runs = kb.open('hostile')\nruns",
        "runs['xss']",
        "kb.compare([runs['xss'], runs['numbers']])",
        "display(runs.frame(), runs['xss'].steps(), runs['xss'].entries())",
        "from IPython.display import HTML\nHTML(runs['xss'].html() + runs.html())",
    ]
    lab.open(lab.write("hostile.ipynb", cells))
    for index in range(len(cells)):
        lab.run_cell(index)
    panel = lab.cell_output(2).locator(".kas")
    expect(panel).to_contain_text("<script>window.__x=1</script>")
    panel.get_by_role("listbox").focus()
    for key in ("Home", *["ArrowDown"] * 9):
        lab.page.keyboard.press(key)
        time.sleep(0.05)
    for tab in ("Context", "Usage", "Entry"):
        panel.get_by_role("tab", name=tab).click()
    panel.get_by_role("listbox").focus()
    lab.page.keyboard.press("ArrowUp")
    for tab in ("Arguments", "Result"):
        panel.get_by_role("tab", name=tab).click()
    assert lab.page.evaluate("typeof window.__x") == "undefined"
    assert panel.locator("img, script, iframe, svg").count() == 0
    assert [e for e in lab.console_errors if "widget" in e.lower()] == []
    lab.reopen(trusted=True, kernel=False)
    assert lab.page.evaluate("typeof window.__x") == "undefined"


def test_the_browser_of_runs_opens_a_panel_and_compares_two(lab: Lab) -> None:
    scenes.coding_agent(lab.root / "demo", datetime.now(UTC) - timedelta(hours=10))
    lab.open(lab.write("browser.ipynb", [SETUP, "kb.open('demo')"]))
    lab.run_cell(0)
    lab.run_cell(1)
    view = lab.cell_output(1).locator(".kas")
    expect(view).to_contain_text("waits for you")
    view.get_by_text("GaveUp").click()
    expect(view).to_contain_text("Timeline")
    boxes = view.get_by_role("checkbox")
    for index in range(2):
        boxes.nth(index).check()
    view.get_by_role("button", name="Compare").click()
    expect(view).to_contain_text("2 attempts")
