from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# Loaded before any test streams: where `recording` imports it first, a stream of openai's that is
# freed just then meets a module that is half there.
import httpx  # noqa: F401
import pytest

import kassette_nb as kb
from tests.llm.loopback import Loopback


@pytest.fixture(scope="session")
def _provider() -> Iterator[Loopback]:
    provider = Loopback()
    yield provider
    provider.stop()


@pytest.fixture
def provider(_provider: Loopback) -> Loopback:
    """The provider, with nothing seen and no faults to come."""
    _provider.expect()
    return _provider


@pytest.fixture
def storage(tmp_path: Path) -> kb.LocalStorage:
    return kb.LocalStorage(tmp_path / "runs")
