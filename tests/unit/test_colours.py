"""Every colour of the views is told apart from what it stands on, light and dark (WCAG 2 contrast).

The stylesheet is read as the browser reads it: custom properties are followed, `color-mix` is
computed, and what a notebook or an editor would set is set as they do by default.
"""

from __future__ import annotations

import ast
import colorsys
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "kassette_nb" / "notebook"
CSS = (NOTEBOOK / "static" / "view.css").read_text("utf-8")
MARKS = (NOTEBOOK / "static" / "marks.js").read_text("utf-8")
PICTURE = (NOTEBOOK / "picture.py").read_text("utf-8")

WHITE = "#ffffff"
NEAR_BLACK = "#111418"
THEMES = ("light", "dark")
#: What the hosts' own variables hold, in their default themes.
HOSTS: dict[str, dict[str, dict[str, str]]] = {
    "page": {"light": {}, "dark": {}},
    "lab": {"light": {"--jp-layout-color0": "#ffffff"}, "dark": {"--jp-layout-color0": "#111111"}},
    "vscode": {
        "light": {"--vscode-editor-background": "#ffffff"},
        "dark": {"--vscode-editor-background": "#1f1f1f"},
    },
}
CASES = [(host, theme) for host in HOSTS for theme in THEMES]

#: Text → the surfaces it is read on.
SURFACES = ("--k-bg", "--k-bg2", "--k-tint", "--k-warm")
TEXT = {
    "--k-ink-own": SURFACES,
    "--k-ink2": SURFACES,
    "--k-ink3": SURFACES,
    "--k-accent": SURFACES,
    "--k-amber": SURFACES,
    "--k-errtext": SURFACES,
    "--k-goodtext": SURFACES,
    "--k-str": ("--k-bg", "--k-bg2"),
    "--k-num": ("--k-bg", "--k-bg2"),
    "--k-lit": ("--k-bg", "--k-bg2"),
}
#: A class whose rule sets both its colour and a background of its own.
PAINTED = ("k-esc", "k-add", "k-del")

Colour = tuple[float, float, float, float]


def rules(css: str) -> list[tuple[str, dict[str, str]]]:
    """The rules as (selector, declarations); the braces of conditions are read as rules too."""
    found = []
    for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", re.sub(r"(?s)/\*.*?\*/", "", css)):
        pairs = (line.split(":", 1) for line in body.split(";") if ":" in line)
        found.append((" ".join(selector.split()), {k.strip(): v.strip() for k, v in pairs}))
    return found


def variables(host: str, theme: str) -> dict[str, str]:
    """The custom properties on the root of a view, as they stand in the stylesheet."""
    known: dict[str, str] = {}
    for selector, body in rules(CSS):
        if selector == ".kas" or selector == f'.kas[data-theme="{theme}"]':
            known |= {k: v for k, v in body.items() if k.startswith("--")}
    return known | HOSTS[host][theme]


def arguments(text: str) -> list[str]:
    """Split at the commas that stand in no parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def colour(text: str, known: dict[str, str]) -> Colour:
    """The colour that a CSS value comes to, 0–1 each, with its opacity."""
    text = text.strip()
    if text == "transparent":
        return (0, 0, 0, 0)
    if match := re.fullmatch(r"#([0-9a-fA-F]{3}|[0-9a-fA-F]{6})", text):
        digits = match[1] if len(match[1]) == 6 else "".join(c * 2 for c in match[1])
        r, g, b = (int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4))
        return (r, g, b, 1)
    if match := re.fullmatch(r"var\((.*)\)", text):
        name, *fallback = match[1].split(",", 1)
        if name.strip() in known:
            return colour(known[name.strip()], known)
        assert fallback, f"{name} is not defined"
        return colour(fallback[0], known)
    match = re.fullmatch(r"color-mix\(in srgb, (.*)\)", text)
    assert match, f"a colour in a form that is not understood here: {text!r}"
    first, second = arguments(match[1])
    first, share = first.rsplit(" ", 1)
    part = float(share.removesuffix("%")) / 100
    one, two = colour(first, known), colour(second, known)
    alpha = one[3] * part + two[3] * (1 - part)
    r, g, b = ((one[i] * one[3] * part + two[i] * two[3] * (1 - part)) / alpha for i in range(3))
    return (r, g, b, alpha)


def over(top: Colour, below: Colour) -> Colour:
    r, g, b = (top[i] * top[3] + below[i] * (1 - top[3]) for i in range(3))
    return (r, g, b, 1)


def contrast(a: Colour, b: Colour) -> float:
    def luminance(of: Colour) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in of[:3]]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def css_marks() -> dict[str, str]:
    return {
        selector.removeprefix(".kas .k-fill-"): body["--f"]
        for selector, body in rules(CSS)
        if selector.startswith(".kas .k-fill-")
    }


def script_marks() -> dict[str, str]:
    declared = re.search(r"const FILL = \{(.*?)\};", MARKS)
    assert declared, "marks.js declares FILL"
    return dict(re.findall(r'(\w+): "(#\w+)"', declared[1]))


MARK_NAMES = ("llm", "tool", "step", "wait", "error", "good")


def test_the_measure_is_the_one_of_wcag() -> None:
    assert contrast(colour("#000", {}), colour("#fff", {})) == pytest.approx(21)
    assert contrast(colour("#767676", {}), colour("#fff", {})) == pytest.approx(4.54, abs=0.005)
    assert colour("color-mix(in srgb, #fff 25%, #000)", {}) == pytest.approx((0.25, 0.25, 0.25, 1))
    assert colour("color-mix(in srgb, #f00 8%, transparent)", {}) == pytest.approx((1, 0, 0, 0.08))


def test_the_stylesheet_and_the_canvas_and_the_saved_picture_have_the_same_marks() -> None:
    marks = css_marks()
    assert set(marks) == set(MARK_NAMES)
    assert script_marks() == marks
    used = {
        node.value
        for node in ast.walk(ast.parse(PICTURE))
        if isinstance(node, ast.Constant) and re.fullmatch(r"#[0-9a-f]{6}", str(node.value))
    }
    assert used, "the picture names its colours"
    assert used <= set(marks.values())


@pytest.mark.parametrize("name", MARK_NAMES)
@pytest.mark.parametrize("back", [WHITE, NEAR_BLACK])
def test_a_mark_stands_out_on_white_and_on_near_black(name: str, back: str) -> None:
    mark = colour(css_marks()[name], {})
    assert contrast(mark, colour(back, {})) >= 3


@pytest.mark.parametrize("name", MARK_NAMES)
@pytest.mark.parametrize(("host", "theme"), CASES)
def test_a_mark_stands_out_in_every_host(name: str, host: str, theme: str) -> None:
    known = variables(host, theme)
    assert contrast(colour(css_marks()[name], {}), colour("var(--k-bg)", known)) >= 3


def test_only_what_is_good_is_green() -> None:
    for name, value in css_marks().items():
        r, g, b, _ = colour(value, {})
        hue, _, saturation = colorsys.rgb_to_hls(r, g, b)
        green = 75 <= hue * 360 <= 170 and saturation > 0.15
        assert green == (name == "good"), f"{name} is {value}"


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize(("host", "theme"), CASES)
def test_text_can_be_read_on_every_surface_it_stands_on(name: str, host: str, theme: str) -> None:
    known = variables(host, theme)
    text = colour(f"var({name})", known)
    measured = {on: contrast(text, colour(f"var({on})", known)) for on in TEXT[name]}
    assert {on: ratio for on, ratio in measured.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("name", PAINTED)
@pytest.mark.parametrize(("host", "theme"), CASES)
def test_text_with_a_background_of_its_own_can_be_read(name: str, host: str, theme: str) -> None:
    known = variables(host, theme)
    (body,) = [body for selector, body in rules(CSS) if selector == f".kas .{name}"]
    back = over(colour(body["background"], known), colour("var(--k-bg)", known))
    assert contrast(colour(body["color"], known), back) >= 4.5


@pytest.mark.parametrize(("host", "theme"), CASES)
def test_the_edges_of_controls_and_of_what_has_the_focus_can_be_seen(host: str, theme: str) -> None:
    known = variables(host, theme)
    for name in ("--k-edge", "--k-accent"):
        for on in ("--k-bg", "--k-warm"):
            assert contrast(colour(f"var({name})", known), colour(f"var({on})", known)) >= 3


def test_every_text_colour_of_our_own_is_measured() -> None:
    declared = {
        name
        for name, value in variables("page", "dark").items()
        if value.startswith("#") and name not in ("--k-bg-own", "--k-edge")
    }
    assert declared == set(TEXT)
