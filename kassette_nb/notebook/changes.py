"""What a step changed in the files of its run: the inspector's Files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from .. import git
from ..entries import AnyEntry, Intent, Note, Step
from ..errors import KassetteError, WorkspaceError
from ..kept import check_kept, home
from ..model import RunModel
from ..noted import UNTOUCHING, commit_of
from ..patches import LARGEST, Patch, difference, patches
from ..snapshots import Snapshots
from ..text import visible
from . import code
from .present import nothing, sized

Message = dict[str, Any]
#: Files that are listed; the code line gives all of them.
LISTED = 300
#: Files whose text comes with the list, and the size in bytes up to which it does.
AT_ONCE = 12
SMALL = 100_000


def has_files(entries: list[AnyEntry]) -> bool:
    """Whether a run keeps files: its first step says so, or its last where the code has changed.

    Looks at the ends of the journal only, as often as it grows.
    """
    return any(map(_first_told, (entries, reversed(entries))))


def _first_told(entries: Any) -> bool:
    for entry in entries:
        if isinstance(entry, Note) and entry.kind == "workspace":
            return True
        if isinstance(entry, Step) and entry.kind not in UNTOUCHING:
            return entry.workspace is not None
    return False


class Changes:
    """Answers what the steps of one run changed; remembers the newest of what it was asked.

    Args:
        run: The run.
    """

    def __init__(self, run: RunModel) -> None:
        self._run = run
        self._known: dict[int, tuple[list[Patch], str]] = {}

    def asked(self, message: Message) -> Callable[[], Message]:
        """Return what answers a message about the files of an entry; to be called in a thread.

        Nothing of the journal is looked at in there.
        """
        offset, number = message.get("offset"), message.get("n")
        reply: Message = {"type": "value", "offset": offset, "part": "files"}
        reply["of"] = self._run.run_id  # the page may show another run by then
        try:
            entries = self._run.journal.entries
        except KassetteError as problem:
            damaged = nothing(visible(str(problem)))
            return lambda: {**reply, **damaged}
        if not isinstance(offset, int) or not 0 <= offset < len(entries):
            return lambda: {**reply, **nothing("there is no such entry")}
        pair = _around(entries, offset)
        if isinstance(pair, str):
            return lambda: {**reply, **nothing(visible(pair))}
        if message.get("type") == "file":
            return lambda: {**reply, "type": "file", "n": number, **self._file(pair, number)}
        return lambda: {**reply, **self._list(pair)}

    def _list(self, pair: _Pair) -> Message:
        try:
            found, notes = self._compared(pair)
            texts = [
                self._text(patch) if number < AT_ONCE and patch.size <= SMALL else {}
                for number, patch in enumerate(found[:LISTED])
            ]
        except WorkspaceError as problem:
            return nothing(visible(f"the files cannot be compared: {problem}"))
        target = code.run(self._run.storage.url, self._run.run_id)
        told = "\n".join(filter(None, [*pair.notes, notes]))
        lines = {"files": _line(target, pair)}
        if not found:
            return {**nothing("this step changed no file" + (f"\n{told}" if told else "")),
                    "lines": lines}  # fmt: skip
        names = "\n".join(_summary(patch) for patch in found)
        return {
            **sized("files", names, True),
            "said": _counted(found),
            "note": told or None,
            "lines": lines,
            "more": max(len(found) - LISTED, 0),
            "files": [
                {**_shown(patch, _line(target, pair, patch.path)), **text}
                for patch, text in zip(found, texts, strict=False)
            ],
        }

    def _file(self, pair: _Pair, number: object) -> Message:
        try:
            found, _ = self._compared(pair)
            if not isinstance(number, int) or not 0 <= number < len(found):
                return {"why": "there is no such file"}
            return self._text(found[number], whole=True)
        except WorkspaceError as problem:
            return {"why": visible(str(problem))}

    def _text(self, patch: Patch, *, whole: bool = False) -> Message:
        text = difference(Snapshots(home(self._run.storage)), patch)
        if text is None:
            return {"why": _no_text(patch)}
        if not text:
            return {"why": "an empty file"}
        return {**sized("diff", text, whole), "lines": text.rstrip("\n").count("\n") + 1}

    def _compared(self, pair: _Pair) -> tuple[list[Patch], str]:
        known = self._known.get(pair.offset)
        if known is None:
            snapshots = Snapshots(home(self._run.storage))
            try:
                known = patches(snapshots, pair.before, pair.after), _besides(snapshots, pair)
            except WorkspaceError:
                # The reason in words: no git, or no snapshots where they should be.
                git.call("version", what="ask git for its version")
                for commit in (pair.before, pair.after):
                    check_kept(
                        self._run.storage,
                        self._run.run_id,
                        commit,
                        self._run.journal.entries,
                        "show",
                    )
                raise
            while len(self._known) >= 8:
                self._known.pop(next(iter(self._known)))
            self._known[pair.offset] = known
        return known


class _Pair:
    """Two snapshots, what names them in code, and what is to be said about them."""

    def __init__(self, offset: int, before: str, after: str) -> None:
        self.offset, self.before, self.after = offset, before, after
        self.places: tuple[str | None, str] | None = None
        self.notes: list[str] = []


def _around(entries: list[AnyEntry], offset: int) -> _Pair | str:
    """Return the snapshots before and behind an entry, or why there are not two."""
    entry = entries[offset]
    after = commit_of(entry)
    if after is None:
        return _no_snapshot(entries, entry)
    earlier = next((e for e in reversed(entries[:offset]) if commit_of(e) is not None), None)
    if earlier is None:
        return "the files as the run found them: the first snapshot, nothing stands before it"
    before = commit_of(earlier)
    assert before is not None, "looked for by it"
    pair = _Pair(offset, before, after)
    if isinstance(entry, Note):
        pair.notes.append("changed by somebody else between two sessions; the run went on from it")
    elif isinstance(entry, Step):
        first = next((e for e in entries if commit_of(e) is not None), None)
        if isinstance(earlier, Step):
            pair.places = earlier.step_id, entry.step_id
        elif earlier is first:
            pair.places = None, entry.step_id
        bare = [
            e.step_id
            for e in entries[earlier.offset + 1 : offset]
            if isinstance(e, Step) and e.kind not in UNTOUCHING
        ]
        if bare:
            named = ", ".join(bare[:5]) + (f" and {len(bare) - 5} more" if len(bare) > 5 else "")
            pair.notes.append(f"with what was changed by {named}, recorded without a snapshot")
        if "/" in entry.step_id:
            pair.notes.append(
                "steps of a parallel block share the directory: what a sibling changed meanwhile "
                "may stand here"
            )
    return pair


def _no_snapshot(entries: list[AnyEntry], entry: AnyEntry) -> str:
    if isinstance(entry, Intent):
        return "no snapshot yet: the tool acts now, or it is not known whether it has acted"
    if not isinstance(entry, Step):
        return "only steps change files"
    if entry.kind in UNTOUCHING:
        return "no code of yours ran here: no file was changed"
    told = next(
        (
            e
            for e in reversed(entries[: entry.offset])
            if isinstance(e, Note) and e.kind == "workspace" and e.step_id == entry.step_id
        ),
        None,
    )
    why = bytes(told.data).decode(errors="replace") if told and told.data is not UNSET else None
    return "this step has no snapshot of the files" + (f": {why}" if why else "")


def _besides(snapshots: Snapshots, pair: _Pair) -> str:
    """Return what else a step did to the tree: its commit, and what could not be kept."""
    ours, theirs = snapshots.extras(pair.before), snapshots.extras(pair.after)
    told = []
    if (ours.head, ours.branch) != (theirs.head, theirs.branch):
        was = f"{(ours.head or 'no commit')[:10]} on {ours.branch or 'no branch'}"
        now = f"{(theirs.head or 'no commit')[:10]} on {theirs.branch or 'no branch'}"
        told.append(f"HEAD was {was}, is {now}")
    left_out = {p: why for p, why in theirs.left_out.items() if ours.left_out.get(p) != why}
    told += [f"left out: {_name(path)}: {why}" for path, why in list(left_out.items())[:5]]
    return visible("\n".join(told))


def _line(target: str, pair: _Pair, path: str | None = None) -> str:
    if pair.places is None:  # a snapshot that no step's id stands for
        return code.call(f"{target}.workspace", "difference", pair.before, pair.after)
    only = [] if path is None or path.endswith("/") else [path]
    return code.call(f"{target}.workspace", "diff", *pair.places, *only)


def _name(path: str) -> str:
    """Return a file's name as it may be shown: it need not be text, nor be one line."""
    text = path.encode("utf-8", "backslashreplace").decode()
    return visible(text.replace("\n", "\\n").replace("\t", "\\t"))


def _shown(patch: Patch, line: str) -> Message:
    return {
        "s": patch.status,
        "path": _name(patch.path),
        "was": None if patch.was is None else _name(patch.was),
        "added": patch.added,
        "removed": patch.removed,
        "binary": patch.binary,
        "before": None if patch.before is None else patch.before.size,
        "after": None if patch.after is None else patch.after.size,
        "line": line,
    }


def _summary(patch: Patch) -> str:
    was = "" if patch.was is None else f"{_name(patch.was)} → "
    counts = "" if patch.added is None else f" +{patch.added} −{patch.removed}"
    return f"{patch.status} {was}{_name(patch.path)}{counts}"


def _counted(found: list[Patch]) -> str:
    added, removed = (sum(getattr(p, name) or 0 for p in found) for name in ("added", "removed"))
    return f"{len(found):,} file{'s' * (len(found) != 1)}, +{added:,} −{removed:,}"


def _no_text(patch: Patch) -> str:
    if patch.path.endswith("/"):
        return "a directory: empty, or a repository of its own that appeared or went as a whole"
    if patch.binary:
        return "binary: not shown as text"
    return f"over {LARGEST / 1e6:.0f} MB: not compared here, the code line below gives it"
