"""What cannot work says so within seconds, by name, with what to check, and keeps the secrets."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import pickle
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import kassette_nb as kb
from kassette_nb import kassette
from kassette_nb.cli import main
from kassette_nb.errors import StorageError
from kassette_nb.storage import clients, open_storage
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


def test_a_server_that_ignores_conditions_is_refused_as_often_as_it_is_asked(
    net: Proxy, bucket: str
) -> None:
    storage = ObjectStorage(bucket)
    net.plan(unconditional=True)
    for _ in range(2):
        with pytest.raises(StorageError, match="ignores the condition"):
            storage.hold("r", "me")


def test_a_server_that_could_not_be_asked_about_conditions_is_asked_again(
    net: Proxy, bucket: str
) -> None:
    storage = ObjectStorage(bucket)
    net.plan(rate=1.0, kinds=["dropped before"], methods=["PUT"])
    assert storage._objects.refuse_unconditional(f"{storage._prefix}.clock") is False
    net.plan()
    storage.hold("r", "me").release()
    assert storage._checked
    net.plan(unconditional=True)
    storage.hold("other", "me").release()  # it was seen, and is not asked a second time


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
    for name in [name for name in sys.modules if name.split(".")[0] == "obstore"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("obstore", "obstore.store"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(StorageError, match=r"pip install 'kassette-nb\[s3\]'") as raised:
        kb.open(bucket)
    assert "pip install '.[s3]'" in str(raised.value)


def test_the_readmes_command_installs_the_client_as_it_installs_the_package() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert "`pip install .` in a checkout" in readme
    assert "pip install '.[s3]'" in readme
    assert "pip install '.[prices]'" in readme


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("AWS_ENDPOINT_URL", "localhost:9444", r"AWS_ENDPOINT_URL \('localhost:9444'\)"),
        ("AWS_ENDPOINT_URL_S3", "//host", r"AWS_ENDPOINT_URL_S3 \('//host'\)"),
        ("AWS_ENDPOINT_URL", "http://host:99999", "not of the form http://host:port"),
        ("AWS_ENDPOINT_URL", f"http://{KEY}:{SECRET}@host", "not of the form http://host:port"),
        ("AWS_REGION", "eu central", r"the region in AWS_REGION \('eu central'\)"),
        ("AWS_SECRET_ACCESS_KEY", "", "AWS_ACCESS_KEY_ID is set, AWS_SECRET_ACCESS_KEY is not"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(
    bucket: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    says: str,
) -> None:
    monkeypatch.setenv(variable, value)
    assert re.search(says, refusal("list", bucket, caplog))
    ran = CliRunner().invoke(main, ["--storage", bucket, "list"])
    assert ran.exit_code == 1
    assert len(ran.output.splitlines()) == 1, ran.output
    assert capfd.readouterr().err == "", "the client has broken off"


def test_what_the_clients_native_code_breaks_off_with_is_an_error_like_any_other(
    bucket: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "settings", lambda *_: ({"endpoint": "localhost:1"}, True))
    for call in CALLS:
        assert "check the URL, the endpoint and the region" in refusal(call, bucket, caplog)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"endpiont": "http://x"}, r"unknown key 'endpiont' \('endpoint'\?\)"),
        ({"endpoint": "localhost:1"}, r"config=\{'endpoint': …\} \('localhost:1'\)"),
        ({"endpoint": 5}, "is int, not a text"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(
    bucket: str, config: dict[str, Any], says: str
) -> None:
    with pytest.raises(StorageError, match=says):
        list(ObjectStorage(bucket, config=config).list())


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("s3://my bucket/x", "'my bucket' is not the name of a bucket"),
        ("s3://my-bucket/../x", "'..' cannot be part of a prefix"),
        (Path("s3://my-bucket/runs"), "as it is, as a string: 's3://bucket/prefix'"),
        ("file:s3://my-bucket/runs", "would be a local directory"),
    ],
)
def test_a_place_that_is_none_is_refused_at_once(where: Any, says: str) -> None:
    began = time.monotonic()
    with pytest.raises(StorageError, match=re.escape(says)):
        kb.open(where)
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("lease", ["15", None, True, float("nan"), 3])
def test_a_lease_that_is_none_is_refused_by_name(lease: Any) -> None:
    with pytest.raises(StorageError, match=r"lease=.*: a number of seconds, at least 4"):
        ObjectStorage("s3://bucket/runs", lease=lease)


def test_the_scheme_may_be_written_in_capitals(bucket: str) -> None:
    ObjectStorage(bucket).create("r", b"one\n")
    assert list(open_storage(bucket.replace("s3:", "S3:")).list()) == ["r"]


def test_other_clouds_are_told_of_their_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Exception("error sending request for url (http://169.254.169.254/…)")
    assert "GOOGLE_APPLICATION_CREDENTIALS" in clients.explain(problem, "gs")
    assert "AZURE_STORAGE_ACCOUNT_KEY" in clients.explain(problem, "az")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StorageError, match=r"AZURE_STORAGE_ACCOUNT_NAME") as raised:
        list(ObjectStorage("az://container/runs").list())
    assert "AWS" not in str(raised.value)


@pytest.mark.parametrize("call", [call for call in CALLS if call != "look"])
def test_an_endpoint_that_is_no_store(
    bucket: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    class NotFound(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_error(404)

        do_PUT = do_GET

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), NotFound) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        text = refusal(call, bucket, caplog)
        server.shutdown()
    assert "no S3 server answers there (404): check the endpoint" in text


def test_it_is_said_where_nobody_knows_whether_a_write_arrived(net: Proxy, bucket: str) -> None:
    objects = ObjectStorage(bucket)._objects
    net.plan(rate=1.0, kinds=["dropped after"])
    with pytest.raises(StorageError, match="It is not known whether it was written") as raised:
        objects.swap("unsure", None, b"sent", patience=0.3)
    assert "cannot write s3://runs/unsure" in str(raised.value)
    assert "Nothing was" not in str(raised.value)
    net.plan(deny=KEY)
    with pytest.raises(StorageError, match=r"Nothing was written\.$"):
        objects.swap("refused", None, b"sent")


def test_showing_runs_that_cannot_be_read_says_it_in_a_line(
    bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = kb.open("s3://no-such-bucket/runs")
    assert "there is no such bucket" in repr(runs)
    assert runs._repr_html_().startswith("<pre>cannot list")
    shell = InteractiveShell.instance()
    kb.load_ipython_extension(shell)
    try:
        with capture_output() as captured:
            runs._ipython_display_()
    finally:
        kb.unload_ipython_extension(shell)
        InteractiveShell.clear_instance()
    (shown,) = captured.outputs
    assert shown.data["text/plain"].startswith("StorageError: cannot list s3://no-such-bucket")
