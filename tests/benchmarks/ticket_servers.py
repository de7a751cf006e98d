"""The world of the ticket agent: a scripted model and a mail sink, each a real HTTP server.

The model is a script: its answer depends on the prompt alone. It bills what it answers, and answers
a key that it knows again without a second bill, as the sink delivers a mail once per key. Either
can be told to ignore keys, as many real services do.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any

#: Steps of a ticket: every fourth sends a mail, the others retrieve documents.
STEPS, EVERY = 24, 4
MAILS = STEPS // EVERY
#: Seconds that each takes to think, to act, and to answer.
PAUSE = 0.002


class World(ThreadingHTTPServer):
    """Counts by run what was really done."""

    daemon_threads = True

    def __init__(self, honours_keys: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.honours_keys = honours_keys
        self.lock = threading.Lock()
        self.busy: Counter[str] = Counter()
        self.known: dict[str, dict[str, Any]] = {}
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def act(self, path: str, key: str | None, body: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked for, once per key where keys are honoured."""
        run = body["run"]
        with self.lock:
            self.busy[run] += 1
        try:
            time.sleep(PAUSE)
            with self.lock:
                known = self.known.get(key or "") if self.honours_keys else None
                if known is None:
                    known = {"/model": self._think, "/mail": self._deliver}[path](run, body)
                    if key:
                        self.known[key] = known
            time.sleep(PAUSE)
        finally:
            with self.lock:
                self.busy[run] -= 1
        return known

    def tell(self, run: str) -> dict[str, int]:
        """Return the counts of a run; ``busy`` is what it is still asked to do."""
        with self.lock:
            return {**self.counts[run], "busy": self.busy[run]}

    def _think(self, run: str, body: dict[str, Any]) -> dict[str, Any]:
        messages = body["messages"]
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn % EVERY == EVERY - 1:
            action = {"tool": "mail", "to": f"customer{turn}@example.org", "text": f"Part {turn}."}
        else:
            action = {"tool": "retrieve", "query": f"ticket detail {turn}"}
        prompt = sum(len(message["content"]) for message in messages)
        tokens = {"input": prompt // 4, "output": 20}
        self.counts[run].update(calls=1, tokens=tokens["input"] + tokens["output"])
        return {"action": action, "usage": tokens}

    def _deliver(self, run: str, body: dict[str, Any]) -> dict[str, Any]:
        self.counts[run].update({"mails": 1, body["to"]: 1})
        return {"receipt": f"delivered to {body['to']}"}


class Handler(BaseHTTPRequestHandler):
    """One connection of one agent."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body of an answer in one packet
    server: World

    def do_POST(self) -> None:
        """Act."""
        size = int(self.headers["Content-Length"])
        data = self.rfile.read(size)
        if len(data) < size:
            return  # its agent died while it was asking
        body = json.loads(data)
        self._answer(self.server.act(self.path, self.headers.get("Idempotency-Key"), body))

    def do_GET(self) -> None:
        """Tell what was done for a run."""
        self._answer(self.server.tell(self.path.rpartition("/")[2]))

    def handle(self) -> None:
        """Serve until the agent goes, or dies."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            return

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def serve(ready: Connection, honours_keys: bool) -> None:
    """Run one server until the process is ended; its port goes to ``ready``."""
    world = World(honours_keys)
    ready.send(world.server_port)
    world.serve_forever()
