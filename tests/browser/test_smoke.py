"""The browser harness itself, shown with a widget of a few lines."""

from __future__ import annotations

import sys

import pytest
from playwright.sync_api import expect

from tests.browser.lab import Lab, Theme

WIDGET = '''
import anywidget
import traitlets


class Echo(anywidget.AnyWidget):
    _esm = """
    export default {
      render({ model, el }) {
        const root = document.createElement("div");
        root.className = "echo";
        root.tabIndex = 0;
        root.style.color = "var(--jp-ui-font-color1)";
        const button = document.createElement("button");
        button.textContent = "ask";
        const answer = document.createElement("output");
        button.addEventListener("click", () => model.send({ ask: "6 * 7" }));
        model.on("change:answer", () => { answer.textContent = model.get("answer"); });
        root.append(button, answer);
        if (model.get("guarded")) {
          root.addEventListener("keydown", (event) => event.stopPropagation());
        }
        el.append(root);
      },
    };
    """
    answer = traitlets.Unicode("").tag(sync=True)
    guarded = traitlets.Bool(True).tag(sync=True)


def answer(widget, content, buffers):
    widget.answer = f"{content['ask']} is 42, says the kernel"


echo = Echo()
echo.on_msg(answer)
echo
'''


def test_a_click_is_answered_by_the_kernel_in_light_and_in_dark(lab: Lab) -> None:
    lab.open(lab.write("themes.ipynb", [WIDGET]))
    themes: tuple[Theme, ...] = ("light", "dark")
    for theme in themes:
        lab.set_theme(theme)
        lab.run_cell(0)
        root = lab.cell_output(0).locator(".echo")
        expect(root.locator("output")).to_be_empty()
        root.get_by_role("button", name="ask").click()
        expect(root.locator("output")).to_have_text("6 * 7 is 42, says the kernel")
        red = int(root.evaluate("e => getComputedStyle(e).color").split("(")[1].split(",")[0])
        assert (red < 128) == (theme == "light"), "the text follows the theme"
        assert lab.screenshot(f"smoke-{theme}").stat().st_size > 10_000
    lab.set_theme("light")
    assert lab.console_errors == []


def test_only_a_widget_that_stops_keys_keeps_its_cell_from_d_d(lab: Lab) -> None:
    lab.open(lab.write("keys.ipynb", [WIDGET, "Echo(guarded=False)", "1"]))
    lab.run_cell(0)
    lab.run_cell(1)
    widgets = lab.notebook.locator(".echo")
    expect(widgets).to_have_count(2)
    lab.cell_output(0).locator(".echo").focus()
    lab.page.keyboard.press("d")
    lab.page.keyboard.press("d")
    # The other widget shows that the keys would have been obeyed.
    lab.cell_output(1).locator(".echo").focus()
    lab.page.keyboard.press("d")
    lab.page.keyboard.press("d")
    expect(widgets).to_have_count(1)
    expect(lab.cell_output(0).locator(".echo")).to_be_visible()
    assert lab.cell_count() == 2


def test_a_cell_runs_on_the_interpreter_of_the_tests_and_its_error_is_theirs(lab: Lab) -> None:
    cells = ["import sys, kassette_nb\nprint(sys.executable)", "1 / 0"]
    lab.open(lab.write("errors.ipynb", cells))
    lab.run_cell(0)
    assert lab.outputs(0)[0]["text"].strip() == sys.executable
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        lab.run_cell(1)
    lab.run_cell(1, allow_error=True)


def test_a_restart_forgets_the_widgets_and_the_cell_runs_again(lab: Lab) -> None:
    lab.open(lab.write("restart.ipynb", [WIDGET, "x = 1", "'x' in dir()"]))
    lab.run_all()
    expect(lab.cell_output(2)).to_contain_text("True")
    lab.restart_kernel()
    lab.run_cell(2)
    expect(lab.cell_output(2)).to_contain_text("False")
    lab.run_cell(0)
    lab.cell_output(0).get_by_role("button", name="ask").click()
    expect(lab.cell_output(0).locator("output")).to_contain_text("42")


def test_a_notebook_reopened_without_a_kernel_shows_html_only_where_it_is_trusted(
    lab: Lab,
) -> None:
    script = "display(HTML('<b id=who>plain</b><script>who.textContent = \"ran\"</script>'))"
    lab.open(lab.write("again.ipynb", [f"from IPython.display import HTML, display\n{script}"]))
    lab.run_all()
    lab.reopen(trusted=True)
    expect(lab.cell_output(0)).to_have_text("ran")
    assert lab.server.api("GET", "kernels") == []
    lab.reopen(trusted=False)
    expect(lab.cell_output(0)).to_have_text("plain")
