"""The panel of a long run stands in the notebook nearly as soon as an empty widget would."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.benchmarks import measure
from tests.browser import scenes
from tests.browser.lab import NO_BROWSER, find_browser, running_lab

ROUNDS = 11

SETUP = """
import anywidget
import kassette_nb as kb
%load_ext kassette_nb

class Empty(anywidget.AnyWidget):
    _esm = "export default { render({ el }) { el.innerHTML = '<b class=empty-widget>·</b>'; } };"

runs = kb.open("demo")
"""
#: Cell → what has to be in its output.
SIDES = {
    "panel": (1, "runs['long']", ".kas .k-row"),
    "empty": (2, "Empty()", ".empty-widget"),
}
#: From the command to the first frame in which the element has a height.
TIMED = """
async ([index, selector]) => {
    const notebook = jupyterapp.shell.currentWidget.content, cell = notebook.widgets[index];
    notebook.activeCellIndex = index;
    await jupyterapp.commands.execute("notebook:clear-cell-output");
    cell.node.scrollIntoView();
    const frame = () => new Promise(requestAnimationFrame);
    const seen = () => cell.node.querySelector(selector)?.getBoundingClientRect().height > 0;
    for (let i = 0; i < 30; i++) await frame();
    if (seen()) throw new Error("the output was not cleared");
    const began = performance.now();
    jupyterapp.commands.execute("notebook:run-cell");
    while (!seen()) {
        if (performance.now() - began > 20000) throw new Error("never shown: " + selector);
        await frame();
    }
    return (performance.now() - began) / 1000;
}
"""


def test_the_panel_of_1000_steps_against_an_empty_widget(disk: Path) -> None:
    browser = find_browser()
    if browser is None:
        pytest.skip(NO_BROWSER)
    with running_lab(disk / "lab", shots=disk / "shots", browser=browser) as lab:
        scenes.long_run(lab.root / "demo", datetime.now(UTC) - timedelta(hours=3), 1_000, "long")
        cells = [SETUP, *(code for _, code, _ in SIDES.values())]
        lab.open(lab.write("showing.ipynb", cells))
        for index in range(len(cells)):
            lab.run_cell(index)
        times: measure.Times = {name: [] for name in SIDES}
        for name in measure.shuffled(SIDES, ROUNDS):
            index, _, selector = SIDES[name]
            lab.wait_idle()
            times[name].append(lab.page.evaluate(TIMED, [index, selector]))
    measure.report("panel of 1,000 steps in the browser", times, "panel", "empty", 2.0)
