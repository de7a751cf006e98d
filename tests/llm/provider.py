"""A provider of models on the loopback, in a process of its own: OpenAI's chat completions and
responses and Anthropic's messages, whole and streamed, with the faults that real ones have.

What it answers is a function of the conversation. Faults are queued through ``/control``, one for
each request to come; ``/seen`` tells what has been asked.
"""

from __future__ import annotations

import gzip
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Body = dict[str, Any]


def text_of(message: Body) -> str:
    content = message.get("content") or message.get("output") or ""
    if isinstance(content, str):
        return content
    return " ".join(str(part.get("text") or part.get("content") or "") for part in content)


def reply_to(body: Body) -> tuple[str, list[tuple[str, Body]]]:
    """The text of the answer, or the tools that it calls."""
    asked = body.get("messages") or body.get("input") or ""
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    said = text_of(messages[-1])
    if "size:" in said:
        return "x" * int(said.split("size:")[1]), []
    fresh = messages[-1].get("role") == "user" and "tool_result" not in json.dumps(messages[-1])
    if body.get("tools") and fresh:
        names = [(t.get("function") or t)["name"] for t in body["tools"]]
        words = said.split() or ["nothing"]
        return "", [(names[n % len(names)], {"word": word}) for n, word in enumerate(words)]
    return f"« {said} » — ça va, 好的 🙂 ({len(messages)})", []


def pieces_of(text: str) -> list[str]:
    size = max(3, len(text) // 40)
    return [text[n : n + size] for n in range(0, len(text), size)]


def counted(body: Body, text: str) -> tuple[int, int]:
    return 10 + len(json.dumps(body.get("messages") or body.get("input"))) // 4, 1 + len(text) // 4


def chat(body: Body, number: int) -> Body:
    text, calls = reply_to(body)
    entered, left = counted(body, text)
    message: Body = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{n}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(args)},
            }
            for n, (name, args) in enumerate(calls)
        ]
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": body["model"],
        "choices": [
            {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        ],
        "usage": {
            "prompt_tokens": entered,
            "completion_tokens": left,
            "total_tokens": entered + left,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
    }


def chat_events(body: Body, number: int) -> Iterator[str]:
    whole = chat(body, number)
    choice = whole["choices"][0]
    common = {k: whole[k] for k in ("id", "created", "model")}
    common["object"] = "chat.completion.chunk"

    def chunk(delta: Body, reason: str | None = None) -> str:
        choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
        return f"data: {json.dumps({**common, 'choices': choices}, ensure_ascii=False)}\n\n"

    yield chunk({"role": "assistant", "content": ""})
    for piece in pieces_of(choice["message"]["content"] or ""):
        yield chunk({"content": piece})
    for index, call in enumerate(choice["message"].get("tool_calls", ())):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        head = {"id": call["id"], "type": "function", "function": {"name": name, "arguments": ""}}
        yield chunk({"tool_calls": [{"index": index, **head}]})
        for piece in pieces_of(arguments):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, choice["finish_reason"])
    if (body.get("stream_options") or {}).get("include_usage"):
        yield f"data: {json.dumps({**common, 'choices': [], 'usage': whole['usage']})}\n\n"
    yield "data: [DONE]\n\n"


def response(body: Body, number: int) -> Body:
    text, calls = reply_to(body)
    entered, left = counted(body, text)
    output: list[Body] = [
        {
            "type": "function_call",
            "id": f"fc_{n}",
            "call_id": f"call_{n}",
            "name": name,
            "arguments": json.dumps(args),
            "status": "completed",
        }
        for n, (name, args) in enumerate(calls)
    ]
    if not calls:
        part = {"type": "output_text", "text": text, "annotations": []}
        output.append(
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "content": [part],
            }
        )
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "model": body["model"],
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "usage": {
            "input_tokens": entered,
            "input_tokens_details": {"cached_tokens": 4},
            "output_tokens": left,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": entered + left,
        },
    }


def response_events(body: Body, number: int) -> Iterator[str]:
    whole = response(body, number)
    count = 0

    def event(kind: str, **fields: Any) -> str:
        nonlocal count
        count += 1
        data = {"type": kind, "sequence_number": count, **fields}
        return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"

    yield event("response.created", response={**whole, "status": "in_progress", "output": []})
    for item in whole["output"]:
        for part in item.get("content", ()):
            for piece in pieces_of(part["text"]):
                yield event(
                    "response.output_text.delta",
                    delta=piece,
                    item_id="msg_1",
                    output_index=0,
                    content_index=0,
                    logprobs=[],
                )
    yield event("response.completed", response=whole)


def message(body: Body, number: int) -> Body:
    text, calls = reply_to(body)
    entered, left = counted(body, text)
    content: list[Body] = [
        {"type": "tool_use", "id": f"toolu_{n}", "name": name, "input": args}
        for n, (name, args) in enumerate(calls)
    ]
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content or [{"type": "text", "text": text}],
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": entered,
            "output_tokens": left,
            "cache_read_input_tokens": 4,
            "cache_creation_input_tokens": 0,
        },
    }


def message_events(body: Body, number: int) -> Iterator[str]:
    whole = message(body, number)

    def event(kind: str, **fields: Any) -> str:
        data = json.dumps({"type": kind, **fields}, ensure_ascii=False)
        return f"event: {kind}\ndata: {data}\n\n"

    begun = {**whole, "content": [], "stop_reason": None}
    begun["usage"] = {**whole["usage"], "output_tokens": 1}
    yield event("message_start", message=begun)
    yield event("ping")
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            empty, name, key = {**block, "text": ""}, "text_delta", "text"
            pieces = pieces_of(block["text"])
        else:
            empty, name, key = {**block, "input": {}}, "input_json_delta", "partial_json"
            pieces = pieces_of(json.dumps(block["input"]))
        yield event("content_block_start", index=index, content_block=empty)
        for piece in pieces:
            yield event("content_block_delta", index=index, delta={"type": name, key: piece})
        yield event("content_block_stop", index=index)
    yield event(
        "message_delta",
        delta={"stop_reason": whole["stop_reason"], "stop_sequence": None},
        usage={"output_tokens": whole["usage"]["output_tokens"]},
    )
    yield event("message_stop")


APIS = {
    "/v1/chat/completions": (chat, chat_events),
    "/v1/responses": (response, response_events),
    "/v1/messages": (message, message_events),
    "/openai/v1/chat/completions": (chat, chat_events),  # where Groq has it
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # as real servers have it: an event goes out when it is written
    server: Provider

    def end_headers(self) -> None:
        # A connection that is kept would outlive the loop of the test that opened it.
        if not self.server.keeps:
            self.send_header("connection", "close")
            self.close_connection = True
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/seen":
            self.json(200, self.server.seen)
        else:
            self.json(200, {"object": "list", "data": [{"id": "small-1", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
        provider = self.server
        if self.path == "/control":
            with provider.lock:
                provider.seen.clear()
                provider.faults[:] = body
            return self.json(200, {})
        headers = {name.lower(): text for name, text in self.headers.items()}
        with provider.lock:
            provider.seen.append({"path": self.path, "headers": headers, "body": body})
            number = len(provider.seen)
            fault = provider.faults.pop(0) if provider.faults else {}
        said = json.dumps(body)
        if "delay:" in said:
            time.sleep(float(said.split("delay:")[1].split(" ")[0].strip('"\\}]')))
        time.sleep(fault.get("delay", 0))
        if "status" in fault:
            error = {"error": {"type": "weather", "message": fault.get("message", "not now")}}
            return self.json(fault["status"], error, fault.get("headers", {}))
        if fault.get("drop"):
            return self.hang_up()
        # Asked as a proxy, it is given the whole URL.
        path = urlsplit(self.path).path.removeprefix("/v1/moved")
        whole, events = APIS[path]
        if not body.get("stream"):
            return self.json(200, whole(body, number), {"x-request-id": f"req_{number}"}, fault)
        return self.stream(
            "".join(events(body, number)).encode(), list(events(body, number)), fault
        )

    def json(
        self, status: int, value: Any, headers: Body | None = None, fault: Body | None = None
    ) -> None:
        fault = fault or {}
        data = json.dumps(value, indent=2, ensure_ascii=False).encode()
        zipped = fault.get("gzip") or "gzip" in self.headers.get("accept-encoding", "")
        if zipped:
            data = gzip.compress(data)
        self.send_response(status)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        if zipped:
            self.send_header("content-encoding", "gzip")
        self.send_header("content-type", "application/json")
        self.send_header("set-cookie", "session=COOKIE-SECRET; Path=/")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if "cut" in fault:
            self.wfile.write(data[: int(len(data) * fault["cut"])])
            return self.hang_up()
        self.wfile.write(data)
        return None

    def stream(self, data: bytes, events: list[str], fault: Body) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("set-cookie", "session=COOKIE-SECRET; Path=/")
        plain = fault.get("unframed", False)  # no length, no chunks: ends with the connection
        if not plain:
            self.send_header("transfer-encoding", "chunked")
        if fault.get("gzip"):
            self.send_header("content-encoding", "gzip")
            data, events = gzip.compress(data), []
        self.end_headers()
        size = fault.get("split")
        if size is None and events:
            pieces = [event.encode() for event in events]
        else:
            size = size or 40
            pieces = [data[n : n + size] for n in range(0, len(data), size)]
        left = int(len(data) * fault["cut"]) if "cut" in fault else len(data)
        for piece in pieces:
            piece, left = piece[:left], left - len(piece[:left])
            if piece:
                self.wfile.write(piece if plain else b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
                time.sleep(fault.get("pause", 0))
        if "cut" in fault:
            self.hang_up()
        elif plain:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def hang_up(self) -> None:
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


class Provider(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.seen: list[Body] = []
        self.faults: list[Body] = []
        self.keeps = "--keep" in sys.argv

    def handle_error(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    provider = Provider()
    sys.stdout.write(f"{provider.server_address[1]}\n")
    sys.stdout.flush()
    provider.serve_forever()
