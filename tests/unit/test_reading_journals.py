"""Old journals are read for ever; damage is refused with file, line and reason, and left alone."""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kassette_nb as kb
from kassette_nb import journal
from kassette_nb.clock import instant
from kassette_nb.errors import JournalCorruptionError, UnknownRunError
from kassette_nb.state import fold
from kassette_nb.storage import LocalStorage

GOLDEN = Path(__file__).parent.parent / "golden"

STATES = {
    "INC-4821": ("completed", 2, ()),
    "INC-4900-suspended": ("suspended", 1, ("human-approval",)),
    "INC-4901-interrupted": ("interrupted", 1, ()),
    "attempt-a": ("completed", 5, ()),
    "attempt-b": ("failed", 6, ()),
    "cancelled": ("cancelled", 1, ()),
    "failed": ("failed", 1, ()),
    "in-doubt": ("interrupted", 1, ()),
    "loan-two-pending": ("suspended", 2, ("appraisal/visit", "credit/override")),
    "retry-after-crash": ("completed", 2, ()),
    "unicode": ("interrupted", 1, ()),
    "unknown-fields": ("completed", 1, ()),
    "unknown-type": ("interrupted", 1, ()),
}

DAMAGE = {
    "after-terminal": (7, "after the 'complete' entry"),
    "bad-middle": (2, "not valid JSON"),
    "crlf": (1, "CR LF"),
    "fused-lines": (2, "not a journal entry"),
    "missing-field": (2, "required field `name`"),
    "no-start": (1, "begins with a 'start' entry"),
    "not-json": (1, "not valid JSON"),
    "offset-gap": (4, "its offset is 5 where 3 must follow"),
    "offset-repeat": (3, "its offset is 1 where 2 must follow"),
    "session-falls": (5, "session 1 comes after session 2"),
    "step-recorded-twice": (3, "step 'analyze' is recorded twice"),
}


@pytest.mark.parametrize("name", STATES)
def test_every_good_journal_opens(name: str) -> None:
    run = kb.open(GOLDEN / "good")[name]
    assert (run.state, len(run.fold().steps), run.waiting_on) == STATES[name]


def test_no_good_journal_is_left_out() -> None:
    assert set(STATES) == set(kb.open(GOLDEN / "good"))


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_names_file_line_and_reason_and_changes_nothing(name: str) -> None:
    path = GOLDEN / "damaged" / f"{name}.jsonl"
    before = path.read_bytes()
    line, reason = DAMAGE[name]
    with pytest.raises(JournalCorruptionError, match="left untouched") as found:
        journal.read(LocalStorage(path.parent), name)
    assert found.value.line == line
    assert reason in found.value.reason
    assert str(path) in str(found.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["torn-tail", "torn-tail-multibyte"])
def test_a_torn_last_line_is_not_part_of_the_journal(name: str) -> None:
    read = journal.read(LocalStorage(GOLDEN / "damaged"), name)
    assert len(read.entries) == 2
    assert read.torn > 0


def test_an_empty_file_is_no_run() -> None:
    with pytest.raises(UnknownRunError):
        journal.read(LocalStorage(GOLDEN / "damaged"), "empty")


def test_every_damaged_file_is_covered() -> None:
    files = {path.stem for path in (GOLDEN / "damaged").iterdir()}
    assert files == set(DAMAGE) | {"torn-tail", "torn-tail-multibyte", "empty"}


def line(**fields: Any) -> bytes:
    envelope = {"type": "start", "session": 1, "offset": 0, "timestamp": "2026-01-01T00:00:00.000Z"}
    return msgspec.json.encode({**envelope, **fields}) + b"\n"


def parsed(*lines: bytes) -> journal.Journal:
    return journal.parse("r", b"".join(lines), None, "r.jsonl")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"offset": 1, "type": "step", "stepId": "a", "name": "a", "timestamp": "now"}, "now"),
        ({"offset": 1, "type": "step", "stepId": "a", "name": "a", "session": 0}, "session 0"),
        ({"offset": 1, "type": "intent", "stepId": "a", "name": "a", "attempt": 1}, "idempotency"),
    ],
)
def test_a_line_that_breaks_the_envelope_is_damage(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(JournalCorruptionError, match=reason):
        parsed(line(), line(**fields))


def test_text_that_is_not_utf8_inside_a_value_is_damage() -> None:
    bad = line(offset=1, type="step", stepId="a", name="a", result="X").replace(b"X", b"\xff")
    with pytest.raises(JournalCorruptionError):
        parsed(line(), bad)


def test_a_dialect_of_a_known_type_is_shown_and_refused_for_replay_only() -> None:
    read = parsed(line(), line(offset=1, type="suspend", event="approval"))
    folded = fold(read.entries, instant("2026-01-01T00:00:00Z"), held=False)
    assert folded.status == "suspended"
    assert "unknown form" in folded.foreign[0].reason


def test_an_unfinished_fork_is_refused() -> None:
    with pytest.raises(JournalCorruptionError, match="unfinished fork: 1 of the 3 lines"):
        parsed(line(source={"runId": "a", "fromOffset": 3}))


def test_line_separators_inside_a_string_do_not_split_a_line() -> None:
    value = "a\u2028b\u2029c\u0085d\x0be\x0cf"
    raw = f'"{value}"'.replace("\x0b", "\\u000b").replace("\x0c", "\\u000c").encode()
    text = line(offset=1, type="step", stepId="a", name="a", result=msgspec.Raw(raw))
    read = parsed(line(), text)
    assert len(read.entries) == 2


def test_raw_lines_are_kept_as_they_are() -> None:
    path = GOLDEN / "good" / "unknown-fields.jsonl"
    read = journal.read(LocalStorage(path.parent), path.stem)
    lines = b"".join(read.line(number) for number in range(len(read.entries)))
    assert lines == path.read_bytes()


def test_many_lines_are_read_at_once_only_where_one_by_one_gives_the_same() -> None:
    data = (GOLDEN / "good" / "INC-4900-suspended.jsonl").read_bytes()
    first, second, *_ = data.splitlines()
    chance = random.Random(7)
    changed = [
        first + second + b"\n" + second.replace(b",", b",\n", 1) + b"\n",
        b"\n".join([first, second.replace(b":", b":\n", 1)]) + b"\n",
        first + second + b"\n\n",
        data.replace(b"\n", b" \n"),
        data,
    ]
    for _ in range(1_500):
        place = chance.randrange(len(data))
        byte = bytes([chance.choice(b'\n\r{}[]",: 0129\xff')])
        changed.append(data[:place] + byte + data[place + chance.choice((0, 1)) :])
    taken = 0
    for bytes_ in changed:
        quick = journal._sound("run", bytes_, None)
        if quick is None:
            continue
        taken += 1
        slow = journal._line_by_line("run", bytes_, None, "here")
        assert (quick.entries, quick.ends) == (slow.entries, slow.ends)
    assert journal._sound("run", data, None) is not None
    assert 0 < taken < len(changed)


def test_a_file_without_a_whole_line_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "corrupt.jsonl").write_bytes(b"garbage without an end")
    with pytest.raises(UnknownRunError, match=r"corrupt\.jsonl holds no whole line") as raised:
        kb.open(tmp_path)["corrupt"]
    assert "Close to it" not in str(raised.value)
