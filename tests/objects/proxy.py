"""A proxy before the S3 server, a process of its own: it logs requests and does what networks do.

``python -m tests.objects.proxy PORT`` prints the port it listens on. ``PUT /__plan`` sets what goes
wrong from then on, ``GET /__log`` tells what came by, ``DELETE /__log`` forgets it.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

#: What can happen to a request that writes or reads an object.
FAULTS = (
    "dropped before",  # the connection breaks before the server has seen anything
    "dropped after",  # the server did it, the reply is lost
    "503",
    "409",
    "412",  # a condition said to be unmet, though nobody looked
    "412 after",  # a condition said to be unmet of a write that was applied: a retry inside
    "delayed",
    "cut reply",
)
_DENIED = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>SignatureDoesNotMatch</Code><Message>The request signature we calculated does not match
</Message><AWSAccessKeyId>%s</AWSAccessKeyId><StringToSign>AWS4-HMAC-SHA256 secret</StringToSign>
<SignatureProvided>0123456789abcdef</SignatureProvided></Error>"""


class _Proxy:
    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.log: list[dict[str, Any]] = []
        self.faults: Counter[str] = Counter()
        self.plan({})

    def plan(self, given: dict[str, Any]) -> None:
        self.rate = float(given.get("rate", 0))
        self.kinds: Sequence[str] = given.get("kinds", FAULTS)
        self.methods: Sequence[str] = given.get("methods", ("PUT", "GET"))
        self.delay = float(given.get("delay", 0.05))
        self.latency = float(given.get("latency", 0))
        self.deny = str(given.get("deny", ""))
        self.unconditional = bool(given.get("unconditional"))
        self.random = random.Random(given.get("seed", 0))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(_length(head))
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
        if path.startswith("/__"):
            reply = json.dumps(self._admin(method, path, body)).encode()
            writer.write(_response(200, reply))
            await writer.drain()
            return True
        entry = {"method": method, "path": path, "bytes": len(body), "status": 0}
        self.log.append(entry)
        if self.latency:
            await asyncio.sleep(self.latency)
        fault = ""
        if method in self.methods and self.random.random() < self.rate:
            fault = self.random.choice(self.kinds)
            self.faults[fault] += 1
        if self.deny:
            writer.write(_response(403, _DENIED % self.deny.encode()))
        elif fault == "dropped before":
            return False
        elif fault in ("503", "409", "412"):
            entry["status"] = int(fault)
            writer.write(_response(int(fault), b""))
        else:
            if fault == "delayed":
                await asyncio.sleep(self.delay * self.random.random())
            if self.unconditional:
                head = re.sub(rb"(?i)\r\nif-(none-)?match:[^\r]*", b"", head)
            reply = await self._forward(head, body)
            entry["status"] = int(reply.split(b" ", 2)[1])
            if fault == "dropped after":
                return False
            if fault == "412 after":
                writer.write(_response(412, b""))
            elif fault == "cut reply":
                writer.write(reply[: max(20, len(reply) - 25)])
                await writer.drain()
                return False
            else:
                writer.write(reply)
        await writer.drain()
        return True

    async def _forward(self, head: bytes, body: bytes) -> bytes:
        there, back = await asyncio.open_connection("127.0.0.1", self.upstream)
        try:
            back.write(head + body)
            await back.drain()
            answer = await there.readuntil(b"\r\n\r\n")
            if b"transfer-encoding: chunked" in answer.lower():
                while not answer.endswith(b"\r\n0\r\n\r\n"):
                    answer += await there.read(65536)
                return answer
            bodiless = head.startswith(b"HEAD") or answer.split(b" ", 2)[1] in (b"304", b"204")
            return answer + await there.readexactly(0 if bodiless else _length(answer))
        finally:
            back.close()

    def _admin(self, method: str, path: str, body: bytes) -> Any:
        if method == "PUT":
            self.plan(json.loads(body))
        elif method == "DELETE":
            self.log.clear()
            self.faults.clear()
        return {"log": self.log, "faults": dict(self.faults)}


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _response(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d Said\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body


class Proxy:
    """The proxy as a test sees it."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def plan(self, **plan: Any) -> None:
        """Set what goes wrong; without arguments nothing does. Forget the log."""
        self._call("PUT", json.dumps(plan).encode())
        self._call("DELETE")

    @property
    def faults(self) -> dict[str, int]:
        """How often each fault struck."""
        faults: dict[str, int] = self._call("GET")["faults"]
        return faults

    def requests(self, method: str, ending: str = "") -> list[dict[str, Any]]:
        """The requests that came by."""
        log = self._call("GET")["log"]
        return [r for r in log if r["method"] == method and r["path"].endswith(ending)]

    def _call(self, method: str, body: bytes | None = None) -> Any:
        request = urllib.request.Request(f"{self.endpoint}/__log", data=body, method=method)
        with urllib.request.urlopen(request, timeout=10) as reply:
            return json.load(reply)


@contextmanager
def proxy(upstream: str) -> Iterator[Proxy]:
    """Run a proxy before the server at ``upstream``."""
    port = upstream.rpartition(":")[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.objects.proxy", port], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        own = process.stdout.readline().strip()
        yield Proxy(f"http://127.0.0.1:{own}")
    finally:
        process.terminate()
        process.communicate()


async def main(upstream: int) -> None:
    """Serve until killed."""
    made = _Proxy(upstream)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, limit=64 * 1024 * 1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
