"""What holds for every benchmark: the marker, and a disk that is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.measure import refuse_memory

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.bench)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """An empty folder where a sync reaches a disk; without one the benchmark is skipped."""
    refuse_memory(tmp_path)
    return tmp_path
