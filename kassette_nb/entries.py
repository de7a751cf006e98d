"""One struct per kind of journal entry, and the codec for one line. No I/O.

The fields are those of the journal format (FORMAT.md); Python's names are the snake_case form of
the file's camelCase. User values stay undecoded (``msgspec.Raw``) until somebody asks for them:
most readers of a journal never do.
"""

from __future__ import annotations

from typing import get_args

import msgspec
from msgspec import UNSET, Raw, UnsetType

from .errors import JournalValueError

#: A user value as it stands in the line, or UNSET where the line has none.
Payload = Raw | UnsetType


class Record(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """A JSON object inside an entry; unknown fields are accepted and ignored."""


class Usage(Record, kw_only=True):
    """What a step spent. Tokens are counts, ``cost_usd`` is US dollars; None means not known.

    ``unpriced`` counts the calls without a known price, where a step made several.
    Input tokens are all that were read, those that came from a cache included.
    """

    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    cost_usd: float | None = None
    unpriced: int | None = None
    #: Of the output tokens, those spent on reasoning.
    reasoning_tokens: int | None = None
    #: Of the input tokens, those written to the provider's cache.
    cache_write_tokens: int | None = None
    #: From the request to the end of the answer, and to its first bytes.
    latency_ms: int | None = None
    first_token_ms: int | None = None


class ErrorInfo(Record, kw_only=True):
    """An exception as recorded: its class name, its text, and where it came from.

    ``response`` is what a model's provider answered instead of an answer.
    """

    name: str
    message: str
    traceback: str | None = None
    response: Payload = UNSET


class Source(Record, kw_only=True):
    """Where a fork came from: its parent and the number of lines taken from it."""

    run_id: str
    from_offset: int


class Entry(Record, tag_field="type", kw_only=True):
    """The envelope. All but ``session`` is given when the line is written.

    ``write_id`` makes a line unlike any other, where its writer has to find it again.
    """

    session: int
    offset: int = -1
    timestamp: str = ""
    write_id: str | None = None


class Start(Entry, tag="start", kw_only=True):
    """Opens session 1, a later session, or a fork's live part."""

    version: str | None = None
    source: Source | None = None
    metadata: Payload = UNSET
    workflow: str | None = None
    label: str | None = None
    fingerprint: str | None = None
    budget: Payload = UNSET
    key_scope: str | None = None
    scope_from: int | None = None
    pid: int | None = None
    host: str | None = None


class Step(Entry, tag="step", kw_only=True):
    """One finished unit of work. Recorded means settled."""

    step_id: str
    name: str
    kind: str | None = None
    result: Payload = UNSET
    started_at: str | None = None
    args: Payload = UNSET
    usage: Usage | None = None
    error: ErrorInfo | None = None
    code_hash: str | None = None
    workspace: str | None = None
    overridden: bool = False
    #: A plain function of a parallel block: a step named by the block's key.
    parallel: bool = False
    #: Of a recorded model call: the hash of its request, which stands in ``args``.
    request: str | None = None
    #: The model calls made inside the step's function, for people to read.
    calls: Payload = UNSET


class Intent(Entry, tag="intent", kw_only=True):
    """Written and synced before a tool with side effects runs."""

    step_id: str
    name: str
    idempotency_key: str | None
    attempt: int
    args: Payload = UNSET


#: The kind of a `Note` about a model call that broke off: it is paid for, and no answer.
INCOMPLETE = "incomplete"
#: The kind of a `Note` about a model call whose caller had given up when the workflow went on.
UNHEARD = "unheard"


class Note(Entry, tag="note", kw_only=True):
    """Something worth seeing that replay skips, unless it is of the kind `UNHEARD`."""

    kind: str
    step_id: str | None = None
    data: Payload = UNSET


class Suspend(Entry, tag="suspend", kw_only=True):
    """The run waits for an event; the process may exit."""

    event_name: str
    step_id: str | None = None
    prompt: str | None = None
    schema: Payload = UNSET
    context: Payload = UNSET
    deadline: str | None = None
    more: bool = False


class Resume(Entry, tag="resume", kw_only=True):
    """The event arrived. Opens a session."""

    event_name: str
    value: Payload = UNSET
    step_id: str | None = None
    by: str | None = None
    note: str | None = None
    pid: int | None = None
    host: str | None = None


class Complete(Entry, tag="complete", kw_only=True):
    """The run's result. Terminal."""

    result: Payload = UNSET


class Failure(Entry, tag="error", kw_only=True):
    """The exception that ended the run. Terminal."""

    error: ErrorInfo
    traceback: str | None = None
    step_id: str | None = None


class Cancel(Entry, tag="cancel", kw_only=True):
    """The run was called off. Terminal."""

    reason: str | None = None


class Foreign(msgspec.Struct, kw_only=True, gc=False):
    """An entry that can be shown but not replayed: of an unknown type, or of an unknown shape.

    ``reason`` says which, as a sentence without the offset.
    """

    type: str
    session: int
    offset: int
    timestamp: str
    reason: str = ""


Known = (
    Start | Step | Intent | Note | Suspend | Resume | Complete | Failure | Cancel
)  # the union msgspec dispatches on
AnyEntry = Known | Foreign
Terminal = (Complete, Failure, Cancel)
#: These end or pause a run in kassette's own form, whose exact fields are not all known: another
#: shape is somebody's dialect, not damage.
_DIALECTS = frozenset({"suspend", "resume", "complete", "error", "cancel"})

_known = msgspec.json.Decoder(Known)
_foreign = msgspec.json.Decoder(Foreign)
_encoder = msgspec.json.Encoder()


class LineError(ValueError):
    """A line that is damage: not JSON, not an object, or without a field the format demands."""


def encode(entry: Known) -> bytes:
    """Return one journal line, with its newline."""
    return _encoder.encode(entry) + b"\n"


def decode(line: bytes | memoryview) -> AnyEntry:
    """Return the entry that a line (without its newline) holds; payloads stay views into it.

    Raises:
        LineError: The line is damaged. The message says how.
    """
    try:
        return _known.decode(line)
    except RecursionError:
        raise LineError("a value in it is nested too deeply to be read") from None
    except msgspec.ValidationError as problem:
        return _decode_foreign(line, problem)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise LineError(f"not valid JSON: {problem}") from None


def refuse_unreadable(entry: Known) -> None:
    """Refuse an entry with a field of another type than the format's: nobody could read its line.

    Raises:
        JournalValueError: There is one; names it.
    """
    try:
        _known.decode(_encoder.encode(entry))
    except (TypeError, msgspec.ValidationError) as problem:
        raise JournalValueError(
            f"a {kind_of(entry)!r} entry cannot be recorded like this: {problem}. Nothing was "
            "recorded.",
            path="$",
            reason=str(problem),
        ) from None


def decode_all(lines: bytes | memoryview) -> list[AnyEntry] | None:
    """Return the entries of whole lines if all are of known types and forms; else None.

    White space between entries is not looked at. Payloads stay views into ``lines``.
    """
    try:
        found: list[AnyEntry] = _known.decode_lines(lines)  # type: ignore[assignment]  # as Known
    except (RecursionError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return found


def _decode_foreign(line: bytes | memoryview, problem: msgspec.ValidationError) -> Foreign:
    try:
        entry = _foreign.decode(line)
    except msgspec.ValidationError as envelope:
        raise LineError(f"not a journal entry: {envelope}") from None
    if entry.type not in TYPES:
        entry.reason = f"is of type {entry.type!r}, which this version does not know"
    elif entry.type in _DIALECTS:
        entry.reason = f"is a {entry.type!r} entry of unknown form ({problem})"
    else:
        raise LineError(f"not a valid {entry.type!r} entry: {problem}") from None
    return entry


def kind_of(entry: AnyEntry) -> str:
    """Return the entry's ``type`` as it stands in the file."""
    return entry.type if isinstance(entry, Foreign) else str(entry.__struct_config__.tag)


#: The structs by the ``type`` they are written with.
TYPES: dict[str, type[Known]] = {str(s.__struct_config__.tag): s for s in get_args(Known)}
