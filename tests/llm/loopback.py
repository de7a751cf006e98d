"""The provider's process as tests see it, and what they look at in a journal."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import anthropic as anthropic_sdk
import openai as openai_sdk

import kassette_nb as kb

SECRET = "sk-SECRET-0123456789"
MODEL = "small-1"


class Loopback:
    """A provider in a process of its own."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("provider.py")), *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def expect(self, *faults: dict[str, Any]) -> None:
        """Forget what was seen; the next requests meet these faults in turn."""
        self._call("/control", json.dumps(faults).encode())

    @property
    def seen(self) -> list[dict[str, Any]]:
        """The requests since then."""
        found: list[dict[str, Any]] = self._call("/seen")
        return found

    def _call(self, path: str, data: bytes | None = None) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", data) as answer:
            return json.load(answer)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    # ------------------------------------------------------------------- clients of it

    def openai(self, **options: Any) -> openai_sdk.OpenAI:
        options = {"api_key": SECRET, "base_url": self.url, "max_retries": 0, **options}
        options.setdefault("http_client", kb.llm.http_client(openai_sdk))
        return openai_sdk.OpenAI(**options)

    def async_openai(self, **options: Any) -> openai_sdk.AsyncOpenAI:
        options = {"api_key": SECRET, "base_url": self.url, "max_retries": 0, **options}
        options.setdefault("http_client", kb.llm.async_http_client(openai_sdk))
        return openai_sdk.AsyncOpenAI(**options)

    def anthropic(self, **options: Any) -> anthropic_sdk.Anthropic:
        url = self.url.removesuffix("/v1")
        options = {"api_key": SECRET, "base_url": url, "max_retries": 0, **options}
        options.setdefault("http_client", kb.llm.http_client(anthropic_sdk))
        return anthropic_sdk.Anthropic(**options)

    def async_anthropic(self, **options: Any) -> anthropic_sdk.AsyncAnthropic:
        url = self.url.removesuffix("/v1")
        options = {"api_key": SECRET, "base_url": url, "max_retries": 0, **options}
        options.setdefault("http_client", kb.llm.async_http_client(anthropic_sdk))
        return anthropic_sdk.AsyncAnthropic(**options)


def lines(storage: kb.Storage, run_id: str) -> list[dict[str, Any]]:
    found = storage.read(run_id)
    assert found is not None
    return [json.loads(line) for line in found[0].splitlines()]


def kinds(storage: kb.Storage, run_id: str) -> list[str]:
    """The lines of a journal in a word each."""
    return [
        line.get("stepId") or line["type"] if line["type"] != "note" else f"note {line['kind']}"
        for line in lines(storage, run_id)
    ]
