"""A real S3 server for tests: ministack, one a session, on a port of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECRET = "dontShowThisSecretKey0123456789"
KEY = "AKIATESTTESTTESTTEST"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(endpoint: str) -> dict[str, str]:
    """The variables with which a process finds the server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


def wait_for(url: str, process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except urllib.error.HTTPError:
            return  # it answers
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not come up at {url}") from None
            time.sleep(0.05)


def make_bucket(endpoint: str, name: str) -> None:
    request = urllib.request.Request(f"{endpoint}/{name}", method="PUT")
    urllib.request.urlopen(request, timeout=10).close()


@contextmanager
def ministack() -> Iterator[str]:
    """Run the server; yields its endpoint."""
    port = free_port()
    env: dict[str, Any] = {
        **os.environ,
        "GATEWAY_PORT": str(port),
        "BIND_HOST": "127.0.0.1",
        "SERVICES": "s3",
        "LOG_LEVEL": "ERROR",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "ministack"],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{endpoint}/_ministack/health", process)
        yield endpoint
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def seaweed(folder: Path) -> Iterator[str]:
    """Run SeaweedFS, which checks signatures; yields its endpoint."""
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    s3 = free_port()
    ports = [f"-{name}={free_port()}" for name in _PORTS]
    command = [
        "server",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-master.telemetry=false",
        "-s3",
        f"-s3.port={s3}",
        *ports,
    ]
    process = subprocess.Popen(
        [str(Path(sys.executable).parent / "weed"), *command, f"-s3.config={config}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    endpoint = f"http://127.0.0.1:{s3}"
    try:
        wait_for(f"{endpoint}/", process)
        yield endpoint
    finally:
        process.terminate()
        process.wait(30)


_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port.grpc",
)
