"""What an agent prints belongs to its run, whichever cell runs meanwhile."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kassette_nb as kb
from kassette_nb import kassette, printed


@contextlib.contextmanager
def proxies() -> Iterator[None]:
    # Not a fixture: pytest sets the streams anew between setting up and running a test.
    before = sys.stdout, sys.stderr
    printed.install()
    try:
        yield
    finally:
        printed.remove()
    assert (sys.stdout, sys.stderr) == before


def talkative(folder: Path) -> kb.Workflow:
    @kassette(storage=folder, name="talkative")
    async def talk(ctx: kb.Context, who: str) -> None:
        def in_thread() -> None:
            print(f"{who} thread")

        async def on_loop() -> None:
            print(who, end=" ")
            await asyncio.sleep(0.01)
            print("loop", end="\nand more ")
            print("to say", file=sys.stderr)

        await ctx.step("a", in_thread)
        await ctx.step("b", on_loop)
        ctx.print("done")
        print("no newline", end="")

    return talk


def test_each_run_gets_its_own_lines_and_the_cell_keeps_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = talkative(tmp_path)
    heard: dict[str, list[str]] = {"ana": [], "bob": []}
    for who, lines in heard.items():
        printed.follow(flow.storage.locate(who), lines.extend)

    async def scenario() -> None:
        sessions = [flow.launch(who, run_id=who) for who in heard]
        sessions.append(flow.launch("eve", run_id="eve"))
        print("from the cell")
        for session in sessions:
            await session

    with proxies():
        asyncio.run(scenario())
    for who, lines in heard.items():
        assert sorted(lines) == sorted(
            [f"{who} thread", f"{who} loop", "to say", "and more done", "no newline"]
        )
        assert printed.lines(flow.storage.locate(who)) == lines
    out, err = capsys.readouterr()
    assert out.startswith("from the cell\n")
    assert "ana" not in out
    assert "eve thread\n" in out, "whom nobody follows prints where it always did"
    assert err == "to say\n"
    assert printed.lines(flow.storage.locate("eve")) == []


def test_a_run_in_a_thread_of_its_own_is_followed_too(tmp_path: Path) -> None:
    flow = talkative(tmp_path)
    heard: list[str] = []
    printed.follow(flow.storage.locate("r"), heard.extend)
    with proxies():
        asyncio.run(waited(flow))
    assert "r thread" in heard


async def waited(flow: kb.Workflow) -> None:
    await flow.launch("r", run_id="r", thread=True)


def test_a_view_that_fails_does_not_fail_the_print(tmp_path: Path) -> None:
    flow = talkative(tmp_path)

    def broken(_: list[str]) -> None:
        raise RuntimeError("the page is gone")

    heard: list[str] = []
    place = flow.storage.locate("r")
    stops = [printed.follow(place, broken), printed.follow(place, heard.extend)]
    with proxies():
        asyncio.run(waited(flow))
    assert kb.open(tmp_path)["r"].state == "completed"
    assert len(heard) == 5
    for stop in stops:
        stop()
        stop()
    assert place not in printed._followers


def test_what_was_wrapped_meanwhile_is_passed_through(capsys: pytest.CaptureFixture[str]) -> None:
    before, errors = sys.stdout, sys.stderr
    printed.install()
    ours = sys.stdout

    class Wrapper:
        def write(self, text: str) -> int:
            return ours.write(text.upper())

        def flush(self) -> None:
            ours.flush()

    wrapper: Any = Wrapper()
    sys.stdout = wrapper
    printed.remove()
    assert sys.stderr is errors
    assert sys.stdout is wrapper, "somebody else's, not ours to take away"
    print("still there")
    sys.stdout = before
    assert capsys.readouterr().out == "STILL THERE\n"


def test_the_stream_keeps_its_own_ways() -> None:
    with proxies():
        proxy: Any = sys.stdout
        assert proxy.encoding == printed._proxies["stdout"].stream.encoding
        proxy.flush()
        proxy.writelines(["a\n", "b\n"])
        with pytest.raises(AttributeError):
            _ = proxy.no_such_thing
