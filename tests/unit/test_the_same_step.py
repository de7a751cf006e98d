"""A step is the same in two runs if its value, its arguments and what it did to the files are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

import kassette_nb as kb
from kassette_nb import LocalStorage, MemoryStorage, kassette
from kassette_nb.changed import counted, touched
from kassette_nb.entries import Start, Step, encode
from kassette_nb.facets import Facets
from kassette_nb.notebook.compare import Comparison
from kassette_nb.notebook.matrix import ComparePanel
from kassette_nb.snapshots import Extras, Snapshots
from kassette_nb.trajectories import import_files


def cells(made: Comparison, row: int) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    ComparePanel(made, sent.append, sent.append).handle({"type": "hello"})
    found: list[dict[str, Any]] = sent[-1]["rows"][row]["cells"]
    return found


def click(made: Comparison, row: int, run: int) -> dict[str, Any]:
    sent: list[dict[str, Any]] = []
    panel = ComparePanel(made, sent.append, sent.append)
    panel.handle({"type": "cell", "row": row, "run": run, "what": "value"})
    return sent[-1]


def differs(made: Comparison) -> list[list[str]]:
    return [list(row.differs) for row in made.rows]


@pytest.fixture
def edited(tmp_path: Path) -> Comparison:
    """Attempts whose `edit` returns the same whatever it writes; another file is always equal."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "f").write_text("old\n")

    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tmp_path / "tree")
    async def edits(ctx, text):
        def edit(text: str) -> str:
            (ctx.workspace / "f").write_text(f"{text}\n")
            return "edited"

        def log(where: str) -> str:
            (ctx.workspace / "log").write_text("done\n")
            return "logged"

        await ctx.step("look", lambda: "old")
        await ctx.step("edit", edit, text)
        await ctx.step("log", log, str(ctx.workspace / "log"))
        await ctx.step("read", lambda: "read")

    edits.start_sync("foo", run_id="run")
    params = [{"text": "bar"}, {"text": "foo"}]
    attempts = edits.fork_many("run", at="edit", params=params)
    attempts.wait(30)
    runs = kb.open(tmp_path / "store")
    return kb.compare([runs[i] for i in ("run", *attempts.run_ids)])


def test_a_path_that_only_begins_like_the_runs_directory_is_no_file_of_it(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "f").write_text("old\n")
    beside = [f"{tmp_path}/tree{end}" for end in ("2/shared", ".old/f", "-b", "\u00e4")]

    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tmp_path / "tree")
    async def reads(ctx):
        await ctx.step("begin", lambda: 1)
        await ctx.step("read", lambda texts: 1, beside)
        own = [f"{ctx.workspace}{end}" for end in ("", "/f", ".", ":ro", " -l\n")]
        await ctx.step("own", lambda texts: 1, [f"cd\n{text}" for text in own])

    reads.start_sync(run_id="run")
    run = kb.open(tmp_path / "store")["run"]
    fork = run.fork(at="read")
    reads.start_sync(run_id=fork.run_id)
    made = kb.compare([run, kb.open(tmp_path / "store")[fork.run_id]])
    assert differs(made) == [["", ""]] * 3


def test_an_edit_that_returns_the_same_is_another_step(edited: Comparison) -> None:
    assert differs(edited) == [["", "", ""], ["", "arguments, files", ""], *[["", "", ""]] * 2]
    assert [row.letters for row in edited.rows] == [
        ("A", "A", "A"), ("A", "B", "A"), ("A", "A", "A"), ("A", "A", "A"),
    ]  # fmt: skip
    assert edited.sub == "1 equal step first, then a difference at edit"
    frame = edited.frame()
    assert frame["differs"].dtype == "string"
    edit = frame[frame["name"] == "edit"]
    assert edit["status"].tolist() == ["same", "changed", "same"]
    assert edit["differs"].tolist() == ["", "arguments, files", ""]
    assert (frame[frame["name"] != "edit"]["status"] == "same").all()


def test_a_cell_says_what_differs_where_the_value_does_not(edited: Comparison) -> None:
    assert [cell["p"] for cell in cells(edited, 1)] == [
        "text: foo → edited",
        "text: bar → edited",
        "text: foo → edited",
    ]
    shown = click(edited, 1, 1)
    assert shown["format"] == "diff"
    assert "the same value, other arguments and files" in shown["title"]
    arguments, _, files = shown["text"].partition("@@ files @@")
    assert arguments.startswith("@@ arguments @@\n@@ $.text @@\n-foo\n+bar")
    assert "-foo\n+bar" in files
    assert "+++ b/f" in files
    assert "log" not in files
    assert "text: bar → edited" in edited._repr_html_()


def test_a_cell_begins_where_long_arguments_part(tmp_path: Path) -> None:
    @kassette(storage=LocalStorage(tmp_path / "store"))
    async def asks(ctx, said):
        await ctx.step("ask", lambda messages: "ok", [{"role": "user", "content": said}])

    same = "as long as a prompt is before anything "
    asks.start_sync("no", run_id="a")
    asks.start_sync("yes", run_id="b")
    asks.start_sync(same + "cold", run_id="c")
    asks.start_sync(same + "cool", run_id="d")
    runs = kb.open(tmp_path / "store")
    short, long = kb.compare([runs["a"], runs["b"]]), kb.compare([runs["c"], runs["d"]])
    assert [cell["p"] for cell in cells(short, 0)] == ["no → ok", "yes → ok"]
    assert [cell["p"] for cell in cells(long, 0)] == ["…cold → ok", "…cool → ok"]


def test_arguments_that_part_at_an_empty_line_are_told(tmp_path: Path) -> None:
    @kassette(storage=LocalStorage(tmp_path / "store"))
    async def asks(ctx, said):
        await ctx.step("ask", lambda said: "ok", said)

    for run_id, said in (("a", "no"), ("b", "no\n"), ("c", "no\n\nyes")):
        asks.start_sync(said, run_id=run_id)
    runs = kb.open(tmp_path / "store")
    made = kb.compare([runs[run_id] for run_id in "abc"])
    assert made.rows[0].letters == ("A", "B", "C")
    assert [cell["p"] for cell in cells(made, 0)] == ["ok", "ok", "yes → ok"]


def test_where_only_files_differ_the_cell_counts_them(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()

    @kassette(storage=LocalStorage(tmp_path / "store"), workspace=tmp_path / "tree")
    async def writes(ctx, text):
        def write() -> str:
            (ctx.workspace / "a").write_text(text)
            if text != "1\n":
                (ctx.workspace / "b").write_text("2\n")
            return "written"

        await ctx.step("write", write)
        await ctx.step("again", lambda: (ctx.workspace / "c").write_text("same"))

    writes.start_sync("1\n", run_id="run")
    attempts = writes.fork_many("run", at="write", params=[{"text": "3\n4\n"}])
    attempts.wait(30)
    runs = kb.open(tmp_path / "store")
    made = kb.compare([runs["run"], runs["run.2"]])
    # A difference made earlier is not one of the later step.
    assert differs(made) == [["", "files"], ["", ""]]
    assert [cell["p"] for cell in cells(made, 0)] == [
        "1 file +1 −0 · written",
        "2 files +3 −0 · written",
    ]
    shown = click(made, 0, 1)["text"]
    assert shown.startswith("@@ files @@\n  only text=3 changes b here\n")
    assert "-1\n+3\n+4" in shown
    # Without the snapshots nothing is claimed of the files.
    (tmp_path / "store" / ".workspaces").rename(tmp_path / "away")
    assert differs(kb.compare([runs["run"], runs["run.2"]])) == [["", ""], ["", ""]]


def test_edits_of_another_agent_with_equal_observations_differ(tmp_path: Path) -> None:
    for text in ("foo", "bar"):
        turns = [{"action": f"edit 1:2 {text}", "observation": "ok"}, {"action": "ls"}]
        (tmp_path / f"{text}.traj").write_text(json.dumps({"trajectory": turns}))
    import_files(LocalStorage(tmp_path / "store"), [tmp_path / "foo.traj", tmp_path / "bar.traj"])
    runs = kb.open(tmp_path / "store")
    made = kb.compare([runs["foo"], runs["bar"]])
    assert differs(made) == [["", "arguments"], ["", ""]]
    assert cells(made, 0)[1]["p"] == "command: edit 1:2 bar → ok"


def test_the_arguments_of_a_tool_stand_in_its_intent(tmp_path: Path) -> None:
    @kassette(storage=LocalStorage(tmp_path))
    async def sends(ctx, to):
        await ctx.tool("mail", lambda to, text: "sent", to=to, text="hello")
        await ctx.tool("wait", lambda: "waited")

    sends.start_sync("ana", run_id="a")
    sends.start_sync("bob", run_id="b")
    runs = kb.open(tmp_path)
    made = kb.compare([runs["a"], runs["b"]])
    assert differs(made) == [["", "arguments"], ["", ""]]
    assert cells(made, 0)[1]["p"] == "to: bob → sent"


def talk(*asked: str, system: str = "s", temperature: float = 0.0) -> Iterator[Step]:
    """The calls of a conversation in which the model always answers the same."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
    for number, text in enumerate(asked):
        messages += [{"role": "user", "content": text}]
        body = {"model": "m", "temperature": temperature, "messages": messages}
        request = {"method": "POST", "url": "https://x/v1/chat/completions", "body": body}
        answer = {"role": "assistant", "content": "yes", "id": f"{text}-{number}"}
        result = {"status": 200, "body": {"choices": [{"message": answer}]}}
        yield Step(
            session=1, step_id="llm" if not number else f"llm#{number + 1}", name="llm", kind="llm",
            args=Raw(msgspec.json.encode(request)), result=Raw(msgspec.json.encode(result)),
            request=str(hash(msgspec.json.encode(request))),
        )  # fmt: skip
        messages += [answer]


def compared(*talks: Iterator[Step]) -> Comparison:
    storage = MemoryStorage(f"talks-{id(talks)}")
    for number, steps in enumerate(talks):
        entries: list[Start | Step] = [Start(session=1), *steps]
        for offset, entry in enumerate(entries):
            entry.offset, entry.timestamp = offset, "2026-01-01T00:00:00.000Z"
        storage.create(f"t{number}", b"".join(map(encode, entries)))
    runs = kb.open(storage)
    return kb.compare([runs[f"t{number}"] for number in range(len(talks))])


def test_a_request_differs_where_something_new_is_asked_not_ever_after() -> None:
    made = compared(talk("a", "b", "c", "d"), talk("a", "B", "c", "d"))
    assert [row.differs[1] for row in made.rows] == ["", "arguments", "", ""]
    assert "B" in cells(made, 1)[1]["p"]
    shown = click(made, 1, 1)
    assert "-b\n+B" in shown["text"]
    assert "same value" in shown["title"]


def test_another_system_prompt_differs_once_and_another_temperature_always() -> None:
    made = compared(talk("a", "b", "c"), talk("a", "b", "c", system="t"))
    assert [row.differs[1] for row in made.rows] == ["arguments", "", ""]
    made = compared(talk("a", "b"), talk("a", "b", temperature=1))
    assert [row.differs[1] for row in made.rows] == ["arguments", "arguments"]


def test_many_changes_are_asked_of_git_at_once_and_counted_right(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    snapshots.open()
    assert touched(Snapshots(tmp_path / "none"), [("0" * 40, "1" * 40)]) == {}

    def commit(files: dict[str, str], **extras: Any) -> str:
        index = tmp_path / "index"
        index.unlink(missing_ok=True)
        lines = b""
        for path, text in files.items():
            blob = snapshots.run("hash-object", "-w", "--stdin", data=text.encode(), what="t")
            lines += b"100644 " + blob.strip() + b"\t" + path.encode() + b"\0"
        snapshots.run("update-index", "-z", "--index-info", index=index, data=lines, what="t")
        tree = snapshots.run("write-tree", index=index, what="t").decode().strip()
        message = f"snapshot\n\n{json.dumps(msgspec.to_builtins(Extras(**extras)))}\n"
        made = snapshots.run("commit-tree", tree, data=message.encode(), what="t")
        return made.decode().strip()

    odd = "new\nline\t:1"
    one = commit({"f": "a\n", "gone": "x\n"})
    two = commit({"f": "b\n", odd: "1\n2\n"}, empty=("dir",))
    head = commit({"f": "b\n", odd: "1\n2\n"}, empty=("dir",), head="0" * 40, branch="main")
    inner, other = commit({"i": "1\n"}), commit({"i": "2\n"})
    with_inner = commit({"f": "b\n"}, nested={"sub": inner})
    with_other = commit({"f": "b\n"}, nested={"sub": other})
    lost = "1" * 40
    pairs = [(one, two), (two, head), (with_inner, with_other), (one, lost), (two, one),
             (two, with_inner)]  # fmt: skip
    found = touched(snapshots, pairs)
    assert set(found) == {*pairs} - {(one, lost)}
    assert set(found[one, two]) == {"f", "gone", odd, "dir/"}
    assert found[two, head] == {}
    assert set(found[with_inner, with_other]) == {"sub/i"}
    assert set(found[two, with_inner]) == {odd, "dir/", "sub/"}
    assert found[one, two]["f"] != found[two, one]["f"]
    lines = counted(snapshots, [(one, two), (two, head), (two, one)])
    assert lines == {(one, two): (3, 2), (two, head): (0, 0), (two, one): (2, 3)}


def test_conversations_among_arguments_are_compared_by_what_is_new() -> None:
    def asked(*texts: str) -> list[Step]:
        said = [{"role": "user", "content": text} for text in texts]
        return [
            Step(
                session=1, step_id="ask" if not n else f"ask#{n + 1}", name="ask",
                args=Raw(msgspec.json.encode({"messages": said[: n + 1]})), result=Raw(b'"ok"'),
            )
            for n in range(len(said))
        ]  # fmt: skip

    made = compared(iter(asked("a", "b", "c")), iter(asked("a", "B", "c")))
    assert [row.differs[1] for row in made.rows] == ["", "arguments", ""]
    assert Facets(made.runs).beside == made.facets.beside
