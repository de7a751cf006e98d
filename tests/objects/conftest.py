"""One S3 server for all tests here; each test gets a prefix of its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.objects.proxy import Proxy, proxy
from tests.objects.server import environment, make_bucket, ministack


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    with ministack() as at:
        make_bucket(at, "runs")
        yield at


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty place in the server; the environment leads there."""
    for name, value in environment(endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    return f"s3://runs/{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def _proxy(endpoint: str) -> Iterator[Proxy]:
    with proxy(endpoint) as made:
        yield made


@pytest.fixture
def net(_proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The network to the server: what goes by is counted, and may go wrong."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", _proxy.endpoint)
    _proxy.plan()
    yield _proxy
    _proxy.plan()
