"""Fixtures of the browser tests."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.browser.lab import NO_BROWSER, Lab, find_browser, running_lab

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def lab_env() -> dict[str, str]:
    """Variables for the Lab and its kernels; a module overrides this for its own."""
    return {}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, lab_env: dict[str, str]) -> Iterator[Lab]:
    """One JupyterLab and one browser for the tests of a module: they take seconds to start.

    Screenshots go to `$KASSETTE_SHOTS` where that is set, otherwise beside the Lab.
    """
    browser = find_browser()
    if browser is None:
        pytest.skip(NO_BROWSER)
    home = tmp_path_factory.mktemp("lab")
    chosen = os.environ.get("KASSETTE_SHOTS")
    shots = Path(chosen).resolve() if chosen else home / "shots"
    with running_lab(home, shots=shots, browser=browser, env=lab_env) as it:
        yield it


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep a picture of the page on which a test failed."""
    report = yield
    lab = getattr(item, "funcargs", {}).get("lab")
    if report.when == "call" and report.failed and isinstance(lab, Lab):
        try:
            picture = lab.screenshot(f"failed-{item.name.replace('/', '-')}")
            report.sections.append(("page", f"{picture}\n" + "\n".join(lab.console_errors)))
        except Exception as error:  # the page may be what failed
            report.sections.append(("page", f"no picture: {error}"))
    return report
