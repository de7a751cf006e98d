"""What cannot work says so within seconds, by name, with what to check, and keeps the secrets."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import pickle
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import kassette
from kassette_nb.errors import StorageError
from kassette_nb.storage import open_storage
from kassette_nb.storage.objects import ObjectStorage
from tests.objects.proxy import Proxy
from tests.objects.server import KEY, SECRET

#: What a person may do first with a storage that cannot be reached.
CALLS: dict[str, Callable[[str], Any]] = {
    "list": lambda url: list(open_storage(url).list()),
    "look": lambda url: kb.open(url)["r"],
    "start": lambda url: asyncio.run(workflow(url).start(run_id="r")),
    "new": lambda url: asyncio.run(workflow(url).start()),
}


def workflow(url: str) -> kb.Workflow:
    @kassette(storage=ObjectStorage(url), name="refused")
    async def refused(ctx: kb.Context) -> None:
        await ctx.step("never", lambda: pytest.fail("ran"))

    return refused


def refusal(call: str, url: str, caplog: pytest.LogCaptureFixture) -> str:
    """The error's text, once it has been searched for secrets with all that comes along."""
    caplog.set_level(logging.DEBUG)
    began = time.monotonic()
    with pytest.raises(StorageError) as raised:
        CALLS[call](url)
    assert time.monotonic() - began < 15
    told = "".join(traceback.format_exception(raised.value)) + caplog.text + repr(raised.value)
    told += repr(raised.value.__dict__)
    for secret in (SECRET, KEY, "StringToSign", "AWS4-HMAC", "0123456789abcdef"):
        assert secret not in told
    assert pickle.loads(pickle.dumps(raised.value)).reason == raised.value.reason
    return str(raised.value)


@pytest.mark.parametrize("call", CALLS)
def test_wrong_credentials(
    net: Proxy, bucket: str, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    net.plan(deny=KEY)
    text = refusal(call, bucket, caplog)
    assert "the secret key is wrong: check the credentials and the region" in text
    assert bucket in text


@pytest.mark.parametrize("call", CALLS)
def test_a_missing_bucket(bucket: str, caplog: pytest.LogCaptureFixture, call: str) -> None:
    text = refusal(call, "s3://no-such-bucket/runs", caplog)
    assert "there is no such bucket: check its name, the region and the endpoint" in text
    assert "s3://no-such-bucket" in text


def test_no_network(
    bucket: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    text = refusal("new", bucket, caplog)
    assert "the server cannot be reached: check the network and the endpoint" in text


def test_a_server_that_ignores_conditions_is_refused_before_anything_runs(
    net: Proxy, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    net.plan(unconditional=True)
    assert "the server ignores the condition" in refusal("new", bucket, caplog)
    assert list(ObjectStorage(bucket).list()) == []


def test_a_bucket_in_another_region(
    bucket: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ObjectStorage(bucket).create("r", b"one\n")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert "the bucket is in another region: set AWS_REGION" in refusal("list", bucket, caplog)


def test_no_credentials(
    bucket: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    text = refusal("list", bucket, caplog)
    assert "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in text


def test_a_profile_of_the_aws_tools_is_used(
    bucket: str, endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        f"[lab]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    )
    (tmp_path / ".aws" / "config").write_text(
        f"[profile lab]\nregion = us-east-1\nendpoint_url = {endpoint}\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "lab")
    storage = ObjectStorage(bucket)
    storage.create("r", b"one\n")
    assert list(storage.list()) == ["r"]
    monkeypatch.setenv("AWS_PROFILE", "labb")
    with pytest.raises(StorageError, match="AWS_PROFILE names 'labb'"):
        list(ObjectStorage(bucket).list())
    (tmp_path / ".aws" / "config").write_text("[profile sso]\nsso_session = x\n")
    monkeypatch.setenv("AWS_PROFILE", "sso")
    with pytest.raises(StorageError, match="export-credentials"):
        list(ObjectStorage(bucket).list())


@pytest.mark.parametrize(
    "url",
    [
        f"s3://{KEY}:{SECRET}@bucket/runs",
        f"s3://bucket/runs?secret={SECRET}",
        f"s3://bucket/runs#{SECRET}",
        f"https://{KEY}:{SECRET}@host/bucket",
    ],
)
def test_a_url_with_a_secret_in_it_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(StorageError) as raised:
        kb.open(url)
    assert SECRET not in str(raised.value) + repr(raised.value.__dict__)


def test_nothing_that_shows_a_storage_shows_a_secret(
    bucket: str, endpoint: str, tmp_path: Path
) -> None:
    config = {"access_key_id": KEY, "secret_access_key": SECRET, "endpoint": endpoint}
    given = ObjectStorage(bucket, config={**config, "region": "us-east-1"})
    for storage in (given, ObjectStorage(bucket)):
        storage.create(f"r{id(storage)}", b"one\n")
        runs = kb.open(storage)
        shown = "".join([repr(storage), str(storage), storage.url, storage.place, repr(runs)])
        shown += runs.html() + storage.locate("r")
        assert SECRET not in shown
        assert KEY not in shown
    assert SECRET.encode() not in pickle.dumps(ObjectStorage(bucket))
    with pytest.raises(TypeError, match="does not pickle"):
        pickle.dumps(given)


def test_a_pickled_storage_opens_the_same_place(bucket: str) -> None:
    storage = ObjectStorage(bucket, lease=20)
    storage.create("r", b"one\n")
    again = pickle.loads(pickle.dumps(storage))
    assert (again.url, again._lease) == (storage.url, 20)
    assert list(again.list()) == ["r"]


def test_a_forked_child_is_told_instead_of_waiting_for_ever(bucket: str) -> None:
    storage = ObjectStorage(bucket)
    storage.create("r", b"one\n")

    def child(pipe: Any) -> None:
        try:
            list(storage.list())
        except StorageError as refused:
            pipe.send(str(refused))

    ours, theirs = multiprocessing.Pipe()
    pid = os.fork()
    if not pid:
        try:
            child(theirs)
        finally:
            os._exit(0)
    assert ours.poll(10), "the child hangs"
    assert "'spawn' or 'forkserver'" in ours.recv()
    os.waitpid(pid, 0)


def test_a_missing_client_says_what_to_install(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(StorageError, match=r"pip install 'kassette-nb\[s3\]'"):
        list(ObjectStorage(bucket).list())
