"""The ticket agent, written three times: naive, durable, and as an event log in SQLite.

A worker is one process that works on one ticket until it is done or killed.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sqlite3
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import kassette_nb as kb
from kassette_nb import Usage, kassette, with_usage
from tests.benchmarks.ticket_servers import STEPS

TICKET = "Our deliveries arrive late and nobody answers. Find out why and tell the customers."
_DOCUMENTS = 3
_LENGTH = 400
Ports = dict[str, int]
Messages = list[dict[str, str]]
#: The step id of a question, and the answer to it.
Answer = tuple[str, dict[str, Any]]
_local = threading.local()


def post(port: int, path: str, body: dict[str, Any], key: str | None = None) -> Any:
    """Ask a server over a connection that is kept."""
    kept: dict[int, http.client.HTTPConnection] = _local.__dict__.setdefault("kept", {})
    if port not in kept:
        kept[port] = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Content-Type": "application/json", **({"Idempotency-Key": key} if key else {})}
    kept[port].request("POST", path, json.dumps(body), headers)
    return json.loads(kept[port].getresponse().read())


def retrieve(query: str) -> str:
    """Return three documents of about 400 characters each."""
    sentence = f"What is known about {query}: the depot was closed and the parcels went round. "
    document = (sentence * (_LENGTH // len(sentence) + 1))[:_LENGTH]
    return "\n\n".join([document] * _DOCUMENTS)


def grown(messages: Messages, action: dict[str, Any], seen: str) -> Messages:
    """Return the conversation with one more turn."""
    turn = {"role": "assistant", "content": json.dumps(action)}
    return [*messages, turn, {"role": "user", "content": seen}]


# ------------------------------------------------------------------------------------- naive


def naive(run: str, ports: Ports, tell: Connection) -> None:
    """Work on the ticket without a record: a new process begins at the beginning."""
    tell.send(("ready", None))
    messages: Messages = [{"role": "user", "content": TICKET}]
    for _ in range(STEPS):
        action = post(ports["model"], "/model", {"run": run, "messages": messages})["action"]
        if action["tool"] == "mail":
            seen = post(ports["sink"], "/mail", {"run": run, **action})["receipt"]
        else:
            seen = retrieve(action["query"])
        messages = grown(messages, action, seen)
    tell.send(("done", "resolved"))


# ----------------------------------------------------------------------------------- durable


def workflow(folder: str, run: str, ports: Ports, tell: Connection | None, asking: bool) -> Any:
    """Return the same loop as a workflow.

    Args:
        folder: Its storage.
        run: The ticket, for the servers' counts.
        ports: Where the servers are.
        tell: Hears how long it took to come back to the first live call.
        asking: The sink does not know keys, so a mail in doubt is asked about.
    """
    began = time.perf_counter()

    def live() -> None:
        nonlocal began
        if began and tell is not None:
            tell.send(("live", time.perf_counter() - began))
        began = 0.0

    def decide(messages: Messages, idempotency_key: str) -> Any:
        live()
        body = {"run": run, "messages": messages}
        answer = post(ports["model"], "/model", body, idempotency_key)
        used = answer["usage"]
        usage = Usage(model="scripted", input_tokens=used["input"], output_tokens=used["output"])
        return with_usage(answer["action"], usage)

    def fetch(query: str) -> str:
        live()
        return retrieve(query)

    def send(to: str, text: str, idempotency_key: str) -> str:
        live()
        body = {"run": run, "to": to, "text": text}
        return str(post(ports["sink"], "/mail", body, idempotency_key)["receipt"])

    def send_blindly(to: str, text: str) -> str:
        live()
        return str(post(ports["sink"], "/mail", {"run": run, "to": to, "text": text})["receipt"])

    @kassette(storage=folder, name="ticket-agent", version="1")
    async def agent(ctx: kb.Context, ticket: str) -> str:
        # The prompt is in the key, so it need not stand in every line.
        model = ctx.with_options(record_args=False)
        messages: Messages = [{"role": "user", "content": ticket}]
        for _ in range(STEPS):
            action = await model.tool("decide", decide, messages=messages)
            if action["tool"] == "mail":
                mail = send_blindly if asking else send
                seen = await ctx.tool("mail", mail, to=action["to"], text=action["text"])
            else:
                seen = await ctx.step("retrieve", fetch, action["query"])
            messages = grown(messages, action, seen)
        return "resolved"

    return agent


def durable(
    run: str,
    ports: Ports,
    tell: Connection,
    folder: str,
    asking: bool = False,
    answer: Answer | None = None,
) -> None:
    """Work on the ticket, or go on with it; ``answer`` is what a person said about a doubt."""
    tell.send(("ready", None))
    agent = workflow(folder, run, ports, tell, asking)
    if answer is None or kb.open(folder)[run].state != "suspended":
        result = asyncio.run(agent.start(TICKET, run_id=run))
    else:
        result = asyncio.run(agent.resume(run, *answer, by="ana"))
    tell.send(("done", result.status))


# ----------------------------------------------------- the published design, to measure against


class EventLog:
    """Four events a step in SQLite (WAL), its index read anew for each step.

    The design of "Agent 崩溃之后:把 Agent Loop 做成可恢复的工作流", written from its description.
    """

    EVENTS = ("step_started", "llm_answered", "tool_returned", "step_finished")

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, run, step, kind, data)"
        )

    def step(self, run: str, number: int, act: Any) -> Any:
        """Return the recorded value of a step, or act and record it."""
        index = self._index(run)
        if (number, "step_finished") in index:
            return index[number, "step_finished"]
        value = None
        for kind in self.EVENTS:
            value = act() if kind == "llm_answered" else value
            self._database.execute(
                "INSERT INTO events (run, step, kind, data) VALUES (?, ?, ?, ?)",
                (run, number, kind, json.dumps(value)),
            )
        return value

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _index(self, run: str) -> dict[tuple[int, str], Any]:
        rows = self._database.execute(
            "SELECT step, kind, data FROM events WHERE run = ? ORDER BY id", (run,)
        )
        return {(step, kind): json.loads(data) for step, kind, data in rows}
