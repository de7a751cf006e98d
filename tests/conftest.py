"""What holds for the whole suite.

With `KASSETTE_STRICT=1` a skip is a failure unless `ALLOWED_SKIPS` knows its reason: a suite that
skips what the machine lacks looks green while it proves less and less.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

# Pattern over the reason given to pytest.skip → why a strict run accepts it.
ALLOWED_SKIPS = {
    r"mounting a tmpfs is not permitted here": (
        "a full file system needs the right to mount one; every other disk fault is tested without"
    ),
    r"shared trajectories folder absent": (
        "the sample trajectories are too large for the repository; their importer is also tested"
        " on the small ones in it"
    ),
}

_refused = pytest.StashKey[list[str]]()


def strict() -> bool:
    return os.environ.get("KASSETTE_STRICT", "0") not in ("", "0")


def refused_skips(reasons: list[tuple[str, str]]) -> list[str]:
    """The skips, given as (test, reason), that no allowance covers."""
    return [
        f"{test}: {reason}"
        for test, reason in reasons
        if not any(re.search(pattern, reason) for pattern in ALLOWED_SKIPS)
    ]


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    # pytest's own form is (file, line, "Skipped: reason").
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


class _StrictSkips:
    """Collects every skip and fails the session for those that are not allowed."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # An expected failure is reported as skipped too; that one did run.
        if report.skipped and not hasattr(report, "wasxfail"):
            self.seen.append((report.nodeid, _reason(report)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.seen.append((report.nodeid, _reason(report)))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        # Before the terminal writes its closing line, which is coloured by this status.
        refused = refused_skips(self.seen)
        session.config.stash[_refused] = refused
        if refused and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        yield

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        refused = config.stash.get(_refused, [])
        if refused:
            terminalreporter.section("skips that a strict run refuses", red=True, bold=True)
            for line in refused:
                terminalreporter.line(line)


def pytest_configure(config: pytest.Config) -> None:
    # Inside a git hook these point git at the repository around, and a test's own `git init` and
    # `git commit` would write there.
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        del os.environ[name]
    if strict():
        config.pluginmanager.register(_StrictSkips(), "kassette-strict-skips")


@pytest.fixture(scope="session")
def _line_checker() -> object:
    import jsonschema

    from kassette_nb.format import json_schema

    return jsonschema.Draft202012Validator(json_schema())


@pytest.fixture(autouse=True)
def every_line_written_fits_the_schema(
    monkeypatch: pytest.MonkeyPatch, _line_checker: Any, request: pytest.FixtureRequest
) -> None:
    """Check the lines that a test's own process writes, the first of each shape."""
    if "benchmarks" in request.path.parts:
        return
    import json

    from kassette_nb import entries

    encode = entries.encode

    def checked(entry: entries.Known) -> bytes:
        line = encode(entry)
        fields = json.loads(line)
        shape = (fields["type"], *sorted(fields))
        if shape not in _SHAPES:
            _line_checker.validate(fields)
            _SHAPES.add(shape)
        return line

    monkeypatch.setattr(entries, "encode", checked)


_SHAPES: set[tuple[str, ...]] = set()
