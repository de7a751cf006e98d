"""Pictures of the views, for README and for judging by eye: `make shots`.

Nothing here is a test unless `KASSETTE_SHOTS` says where the pictures go.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from kassette_nb.entries import ErrorInfo, Failure
from tests.browser import scenes
from tests.browser.lab import Lab, Theme

# A module of which this is false is collected empty; a skip would count as one.
__test__ = bool(os.environ.get("KASSETTE_SHOTS"))

GOLDEN = Path(__file__).parent.parent / "golden"
THEMES: tuple[Theme, ...] = ("light", "dark")

SETUP = """
import kassette_nb as kb
from kassette_nb import kassette
%load_ext kassette_nb

@kassette(storage="demo", version="agent-v1")
async def fix_bug(ctx, issue):
    ...

runs = kb.open("demo")
"""
NARROW = """
import ipywidgets
ipywidgets.VBox([runs["fix-timedelta.2"].panel()], layout={"width": "700px"})
"""
LIVE = """
import asyncio

@kassette(storage="demo")
async def build(ctx):
    await ctx.step("plan", lambda: "three wheels")
    return await ctx.step("wheels", asyncio.sleep, 45)

build.launch(run_id="nightly-build")
await asyncio.sleep(1)
view = runs["nightly-build"].panel()
view.printed("nightly-build", "wheel 1 of 3\\nwheel 2 of 3\\n")
view
"""
STALE = """
@kassette(storage="demo", version="v1")
async def report(ctx):
    await ctx.step("read", lambda: "12 rows")
    await ctx.step("sum", lambda: 41)

await report.start(run_id="report-7")

@kassette(storage="demo", version="v1")
async def report(ctx):
    await ctx.step("read", lambda: "12 rows")
    await ctx.step("sum", lambda: 42)

runs["report-7"]
"""
WORKING = """
import pathlib
tree = pathlib.Path("work")
(tree / "src").mkdir(parents=True, exist_ok=True)
(tree / "src" / "rates.py").write_text(
    "def rate(total, n):\\n    return int(total / n)\\n\\n\\ndef mean(xs):\\n"
    "    return rate(sum(xs), len(xs))\\n"
)
(tree / "notes.txt").write_text("round it?\\n")
(tree / "fixture.bin").write_bytes(bytes(812_000))

def edit(path, old, new):
    source = tree / path
    source.write_text(source.read_text().replace(old, new))
    (tree / "notes.txt").unlink()
    (tree / "src" / "test_rates.py").write_text(
        "from rates import mean\\n\\n\\ndef test_mean():\\n    assert mean([1, 2]) == 2\\n"
    )
    (tree / "expected.csv").write_text("".join(f"{n},{n * n}\\n" for n in range(4_000)))
    (tree / "fixture.bin").write_bytes(bytes(813_440))
    (tree / "invoice\\u202efdp.exe").write_text("x")
    return "1 line changed"

@kassette(storage="demo", workspace="work", name="tidy")
async def tidy(ctx):
    await ctx.step("plan", lambda: "round the quotient, and test it")
    await ctx.tool("edit", edit, path="src/rates.py", old="int(", new="round(")
    return await ctx.suspend("merge", prompt="Merge it?")

if "tidy-up" not in runs:
    await tidy.start(run_id="tidy-up")
runs["tidy-up"]
"""
GROWN = """
@kassette(storage="demo", name="grown", version={version!r})
async def grown(ctx):
    rows = await ctx.step({first!r}, lambda: "12 rows")
    return await ctx.suspend("send", prompt="Send 12 invoices?", context={{"rows": rows}})

if {start}:
    await grown.start(run_id={run_id!r})
"""
DIFFERS = (
    GROWN.format(first="read", version="v1", run_id="invoices-9", start="'invoices-9' not in runs")
    + GROWN.format(first="read-all", version="v1", run_id="", start="False")
    + "runs['invoices-9']"
)
NEWER = (
    GROWN.format(first="read", version="v1", run_id="invoices-8", start="'invoices-8' not in runs")
    + GROWN.format(first="read", version="v2", run_id="", start="False")
    + "runs['invoices-8']"
)
TRACEBACK = """\
Traceback (most recent call last):
  File "agent.py", line 41, in migrate
    await ctx.step("apply", apply, plan)
kassette_nb.errors.StepFailedError: step 'apply' failed: OperationalError: could not obtain lock
"""


@pytest.fixture(scope="module")
def lab_env() -> dict[str, str]:
    return {"KASSETTE_BY": "ana"}


@pytest.fixture(scope="module")
def folder(lab: Lab) -> Path:
    began = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=12)
    folder = lab.root / "demo"
    scenes.coding_agent(folder, began - timedelta(hours=9))
    scenes.loan(folder, began)
    scenes.deploy(folder, began + timedelta(minutes=8))
    scenes.spent(folder, began - timedelta(minutes=40))
    scenes.long_run(folder, began - timedelta(hours=30), 1_000, "crawl-docs")
    _failed(folder, began - timedelta(hours=2))
    (folder / "half-copied.jsonl").write_bytes(b'{"type":"step","offset":7}\n')
    shutil.copytree(GOLDEN / "hostile", lab.root / "hostile")
    return folder


def _failed(folder: Path, began: datetime) -> None:
    scribe = scenes.Scribe(began)
    scribe.start(workflow="migrate", version="v7", label="orders: add a currency")
    scribe.step("plan", {"content": "Add the column, then fill it."}, 3.8, kind="llm", cost=0.03)
    scribe.step("snapshot", {"rows": 1_204_331, "bytes": 812_440_120}, 2.9, kind="tool")
    scribe.step(
        "apply",
        None,
        30.0,
        kind="tool",
        args={"sql": "ALTER TABLE orders ADD COLUMN currency char(3) NOT NULL DEFAULT 'EUR'"},
        error=("OperationalError", "could not obtain lock on relation orders within 30 s"),
    )
    error = ErrorInfo(
        name="OperationalError", message="could not obtain lock on relation orders within 30 s"
    )
    scribe.write(Failure(session=0, error=error, traceback=TRACEBACK, step_id="apply"), 0.1)
    scribe.save(folder, "migrate-orders")


def _show(lab: Lab, name: str, code: str) -> Locator:
    """Run one cell in a notebook as wide as the window, and return its live view."""
    lab.open(lab.write(f"{name}.ipynb", [SETUP, code]))
    # A picture is of what can be seen at once: the tallest view has to fit under Lab's bars.
    lab.page.set_viewport_size({"width": 1360, "height": 1500})
    lab.page.evaluate("() => jupyterapp.shell.collapseLeft()")
    lab.run_cell(0)
    lab.run_cell(1)
    view = lab.cell_output(1).locator(".kas")
    expect(view).to_be_visible()
    return view


def _picture(lab: Lab, name: str, of: Locator, themes: tuple[Theme, ...] = THEMES) -> None:
    for theme in themes:
        lab.set_theme(theme)
        if "kas" in (of.get_attribute("class") or "").split():
            expect(of).to_have_attribute("data-theme", theme.split()[0])
        lab.page.mouse.move(2, 2)
        lab.page.wait_for_timeout(600)  # colours fade, and the canvas is painted in the next frame
        lab.screenshot(f"{name}-{theme.replace(' ', '-')}", of)
    lab.set_theme("light")


def _nothing(lab: Lab, view: Locator) -> None:
    expect(view.locator(".k-settling")).to_have_count(0)


def _open_below(lab: Lab, view: Locator) -> None:
    view.get_by_text("round the quotient").click()
    expect(view).to_contain_text("Apply this patch to")


def _choose_a_cell(lab: Lab, view: Locator) -> None:
    view.locator(".k-mcell[data-run]", has_text="fields.py").nth(1).click()
    expect(view.locator(".k-celldiff")).to_be_visible()


def _second_question(lab: Lab, view: Locator) -> None:
    view.get_by_text("credit/override").first.click()
    expect(view.get_by_role("button", name="Answer")).to_be_visible()


COMPARE = "kb.compare([runs[i] for i in ('fix-timedelta', 'fix-timedelta.2', 'fix-timedelta.3')])"
LOAN = "runs['loan-L-77-two-questions-and-a-long-name1']"


def _bad_result(lab: Lab, view: Locator) -> None:
    view.get_by_role("tab", name="credit/override").click()
    view.locator(".k-row", has_text="credit/fetch").first.click()
    view.get_by_role("button", name="Change its result").click()
    view.locator(".k-inspector textarea").fill('{"score": }')
    view.get_by_role("button", name="Only fork").click()
    expect(view.locator(".k-inspector")).to_contain_text("not valid JSON")


def _fork(lab: Lab, view: Locator) -> None:
    view.locator(".k-row", has_text="Compute in Decimal").click()
    view.get_by_role("button", name="Run again from plan#2").click()
    expect(view.locator(".k-says")).to_contain_text("keeps")


def _record(lab: Lab, view: Locator) -> None:
    view.page.wait_for_timeout(700)
    view.get_by_role("button", name="It happened").click()
    view.locator("textarea:visible").fill('{"published": "2.14.0"}')


def _conversation(lab: Lab, view: Locator) -> None:
    view.locator(".k-row", has_text="plan#2").click()
    expect(view).to_contain_text("new since the previous call")


def _code(lab: Lab, view: Locator) -> None:
    view.locator(".k-row", has_text="def rate").click()
    expect(view).to_contain_text("mean of n")


def _other(lab: Lab, view: Locator) -> None:
    view.locator(".k-row", has_text="apply-patch").click()
    view.get_by_role("button", name="Also try another answer").click()
    expect(view.locator(".k-says")).to_contain_text("other answer")


def _the_failure(lab: Lab, view: Locator) -> None:
    view.locator(".k-row", has_text="run#2").first.click()
    expect(view.locator(".k-inspector")).to_contain_text("called with")


def _zoomed(lab: Lab, view: Locator) -> None:
    # A window at 200 % has half the pixels.
    lab.page.set_viewport_size({"width": 680, "height": 1500})


def _files(lab: Lab, view: Locator) -> None:
    view.locator(".k-row", has_text="edit").first.click()
    view.get_by_role("tab", name="Files").click()
    expect(view.locator(".k-filerow")).to_have_count(6)
    view.evaluate("root => { root.querySelector('.k-panel').style.height = '860px'; }")


def _narrow_files(lab: Lab, view: Locator) -> None:
    _files(lab, view)
    lab.page.set_viewport_size({"width": 680, "height": 1500})


def _verify(lab: Lab, view: Locator) -> None:
    view.get_by_role("button", name="Verify").click()
    expect(view).to_contain_text("0 live")


def _refused(lab: Lab, view: Locator) -> None:
    view.page.wait_for_timeout(700)
    view.get_by_role("button", name="Approve").click()
    expect(view.locator(".k-way").first).to_be_visible()
    view.get_by_role("button", name="Record only").focus()


VIEWS: dict[str, tuple[str, Callable[[Lab, Locator], None]]] = {
    "browser": ("runs", _nothing),
    "browser-open": ("runs", _open_below),
    "panel": ("runs['fix-timedelta.2']", _nothing),
    "panel-failed": ("runs['fix-timedelta.2']", _the_failure),
    "panel-700": (NARROW, _nothing),
    "panel-zoomed": ("runs['fix-timedelta.2']", _zoomed),
    "browser-zoomed": ("runs", _zoomed),
    "compare": (COMPARE, _nothing),
    "compare-diff": (COMPARE, _choose_a_cell),
    "long": ("runs['crawl-docs']", _nothing),
    "questions": (LOAN, _nothing),
    "questions-form": (LOAN, _second_question),
    "questions-bad-result": (LOAN, _bad_result),
    "error": ("runs['migrate-orders']", _nothing),
    "completed": ("runs['fix-timedelta.3']", _nothing),
    "doubt": ("runs['deploy-2.14']", _nothing),
    "doubt-record": ("runs['deploy-2.14']", _record),
    "conversation": ("runs['deploy-2.14']", _conversation),
    "code": ("runs['deploy-2.14']", _code),
    "budget": ("runs['nightly']", _nothing),
    "fork": ("runs['fix-timedelta.3']", _fork),
    "other": ("runs['fix-timedelta.3']", _other),
    "live": (LIVE, _nothing),
    "files": (WORKING, _files),
    "files-zoomed": (WORKING, _narrow_files),
    "verify": (WORKING, _verify),
    "verify-differs": (DIFFERS, _verify),
    "ways": (DIFFERS, _refused),
    "ways-fork": (NEWER, _refused),
    "stale": (STALE, _nothing),
    "hostile": ("kb.open('hostile')['xss']", _nothing),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_pictured(lab: Lab, folder: Path, name: str) -> None:
    code, gesture = VIEWS[name]
    view = _show(lab, name, code)
    gesture(lab, view)
    _picture(lab, name, view)
    assert lab.console_errors == []


#: What is drawn with colours of our own, in themes that have few or none.
STARK = {
    "files": (WORKING, _files),
    "panel": ("runs['fix-timedelta.2']", _nothing),
    "doubt": ("runs['deploy-2.14']", _nothing),
    "error": ("runs['migrate-orders']", _nothing),
    "browser": ("runs", _nothing),
    "compare": (COMPARE, _choose_a_cell),
}


@pytest.mark.parametrize("name", STARK)
def test_a_view_is_pictured_in_high_contrast_and_in_forced_colours(
    lab: Lab, folder: Path, name: str
) -> None:
    code, gesture = STARK[name]
    view = _show(lab, name, code)
    gesture(lab, view)
    _picture(lab, name, view, ("dark high contrast",))
    lab.page.emulate_media(contrast="more")
    _picture(lab, f"{name}-contrast", view, ("light",))
    lab.page.emulate_media(contrast="no-preference")
    lab.page.emulate_media(forced_colors="active", color_scheme="light")
    _picture(lab, f"{name}-forced", view, ("light",))
    lab.page.emulate_media(forced_colors="active", color_scheme="dark")
    _picture(lab, f"{name}-forced", view, ("dark",))
    lab.page.emulate_media(forced_colors="none", color_scheme="light")
    assert lab.console_errors == []


def test_the_twin_of_a_reopened_notebook_is_pictured(lab: Lab, folder: Path) -> None:
    _show(lab, "twin", "runs['fix-timedelta.2']")
    lab.reopen(trusted=True, kernel=False)
    lab.page.evaluate("() => jupyterapp.shell.collapseLeft()")
    twin = lab.cell_output(1).locator(".kst")
    expect(twin).to_be_visible()
    _picture(lab, "twin", lab.cell_output(1))
