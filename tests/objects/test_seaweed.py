"""The promises hold on a second server, another make, that checks signatures."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kassette_nb as kb
from kassette_nb import kassette
from kassette_nb.errors import StorageError
from kassette_nb.storage import Storage
from kassette_nb.storage.objects import ObjectStorage
from kassette_nb.testing import StorageContract
from tests.objects.server import SECRET, environment, seaweed
from tests.objects.test_bad_networks import WRITERS, agents, marks
from tests.objects.test_leases import takeovers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with seaweed(tmp_path_factory.mktemp("seaweed")) as endpoint:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment(endpoint).items():
                patch.setenv(name, value)
            _make_bucket(endpoint)
        yield endpoint


def _make_bucket(endpoint: str) -> None:
    # Its S3 side wants signed requests to make one; curl signs.
    command = ["curl", "-sf", "-X", "PUT", "--aws-sigv4", "aws:amz:us-east-1:s3"]
    env = environment(endpoint)
    user = f"{env['AWS_ACCESS_KEY_ID']}:{SECRET}"
    deadline = time.monotonic() + 60
    while subprocess.run([*command, "--user", user, f"{endpoint}/runs"], check=False).returncode:
        assert time.monotonic() < deadline, "the server takes no bucket"
        time.sleep(0.5)


@pytest.fixture
def bucket(at: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in environment(at).items():
        monkeypatch.setenv(name, value)
    return f"s3://runs/{secrets.token_hex(4)}"


class TestSeaweed(StorageContract):
    @pytest.fixture(autouse=True)
    def _url(self, bucket: str) -> None:
        self.url = bucket

    def make(self, tmp_path: Path) -> Storage:
        return ObjectStorage(self.url)


def test_four_processes_race_on_one_run(bucket: str) -> None:
    said = agents(*[("appending", bucket, "shared", f"w{n}", "40") for n in range(WRITERS)])
    shared = marks(ObjectStorage(bucket), "shared")
    assert len(shared) == WRITERS * 40
    for n in range(WRITERS):
        assert [i for who, i in shared if who == f"w{n}"] == list(range(40))
    print(f"fenced {sum(each[-1]['fenced'] for each in said)} times")


def test_killed_holders(bucket: str, tmp_path: Path) -> None:
    takeovers(bucket, tmp_path, rounds=4)


def test_a_run_suspends_and_goes_on(bucket: str) -> None:
    @kassette(storage=bucket, name="weeds")
    async def weeds(ctx: kb.Context) -> object:
        await ctx.step("look", lambda: 1)
        return await ctx.suspend("approval")

    asyncio.run(weeds.start(run_id="r"))
    asyncio.run(weeds.resume("r", "approval", "yes"))
    assert kb.open(bucket)["r"].result == "yes"


def test_a_wrong_secret_and_a_missing_bucket_are_named(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageError, match="there is no such bucket"):
        list(ObjectStorage("s3://absent/runs").list())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong" + SECRET)
    with pytest.raises(StorageError, match="the secret key is wrong") as refused:
        list(ObjectStorage(bucket).list())
    assert SECRET not in str(refused.value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAUNKNOWN")
    with pytest.raises(StorageError, match="the access key is not known there"):
        list(ObjectStorage(bucket).list())
