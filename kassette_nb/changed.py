"""What steps changed in the files, read for many steps at once.

Two attempts never have the same snapshot, so what is compared is what a step changed: which paths,
and what they hold afterwards. A difference that was made earlier is not one of every later step.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from .snapshots import Extras, Snapshots

#: The snapshots before and behind a step.
Pair = tuple[str, str]
#: Path → what it holds afterwards, as git names it: equal content has an equal name.
Touched = dict[str, bytes]
#: More paths than this are not shown with their content.
SHOWN = 200
_MADE, _GONE = b"made", b"gone"


def touched(snapshots: Snapshots, pairs: Iterable[Pair]) -> dict[Pair, Touched]:
    """Return what was changed between the snapshots of each pair.

    Repositories inside the tree are looked into; where HEAD was is not a file.

    Args:
        snapshots: Where they are kept.
        pairs: Any number of them; git is asked a few times for all together.

    Returns:
        No entry for a pair of which a snapshot is not kept here.

    Raises:
        WorkspaceError: The repository cannot be read.
    """
    wanted = list(dict.fromkeys(pairs))
    if not wanted or not (snapshots.repository / "HEAD").exists():
        return {}
    known = _commits(snapshots, {commit for pair in wanted for commit in pair})
    there = [pair for pair in wanted if pair[0] in known and pair[1] in known]
    found: dict[Pair, Touched] = {pair: {} for pair in there}
    for pair, record, name in _compared(snapshots, there, "--raw"):
        _, mode, _, content, _ = record.split(b" ")
        found[pair][os.fsdecode(name)] = mode + b" " + content
    inside: dict[Pair, list[tuple[Pair, str]]] = {}
    made: dict[str, list[tuple[Pair, str]]] = {}
    for pair in there:
        ours, theirs = (known[commit][1] for commit in pair)
        for path in {*ours.nested, *theirs.nested}:
            old, new = ours.nested.get(path), theirs.nested.get(path)
            if old is None and new is not None:
                made.setdefault(new, []).append((pair, path))
            elif new is None:
                found[pair][f"{path}/"] = _GONE
            elif old is not None and old != new:
                inside.setdefault((old, new), []).append((pair, path))
        for path in {*ours.empty} ^ {*theirs.empty}:
            if not any(name.startswith(f"{path}/") for name in found[pair]):
                found[pair][f"{path}/"] = _GONE if path in ours.empty else _MADE
    for commit, (tree, _) in (_commits(snapshots, made) if made else {}).items():
        for pair, path in made[commit]:
            found[pair][f"{path}/"] = tree
    for inner, changes in touched(snapshots, inside).items():
        for pair, path in inside[inner]:
            found[pair] |= {f"{path}/{name}": content for name, content in changes.items()}
    return found


def counted(snapshots: Snapshots, pairs: Iterable[Pair]) -> dict[Pair, tuple[int, int]]:
    """Return how many lines were added and removed between the snapshots of each pair.

    Args:
        snapshots: Where they are kept.
        pairs: Of which both snapshots are kept there; see `touched`.
    """
    wanted = list(dict.fromkeys(pairs))
    found = dict.fromkeys(wanted, (0, 0))
    for pair, record, _ in _compared(snapshots, wanted, "--numstat"):
        more, less, _ = record.split(b"\t", 2)
        if more != b"-":  # else no text
            added, removed = found[pair]
            found[pair] = added + int(more), removed + int(less)
    return found


def difference(snapshots: Snapshots, before: str, after: str, paths: Sequence[str]) -> str:
    """Return how some files differ between two snapshots, as a unified diff."""
    return snapshots.run(
        "--literal-pathspecs", "diff-tree", "-r", "-p", "--no-renames", "--no-color",
        "--no-ext-diff", "--no-textconv", before, after, "--", *paths[:SHOWN],
        what="compare two snapshots",
    ).decode(errors="replace")  # fmt: skip


def _compared(
    snapshots: Snapshots, pairs: Sequence[Pair], form: str
) -> Iterator[tuple[Pair, bytes, bytes]]:
    """Ask git once; yield each change as its pair, what git says of it, and its path."""
    if not pairs:
        return
    # A line names a commit and what is taken for its parent; answers come in the same order.
    asked = "".join(f"{after} {before}\n" for before, after in pairs).encode()
    options = ("--stdin", "--always", "--no-renames", "-z", "-r", form)
    out = snapshots.run("diff-tree", *options, data=asked, what="compare snapshots")
    fields, waiting = iter(out.split(b"\0")), iter(pairs)
    pair = pairs[0]
    for record in fields:
        if record.startswith(b":"):
            yield pair, record, next(fields)
        elif b"\t" in record:
            yield pair, record, record.split(b"\t", 2)[2]
        elif record:  # the commit that the next ones are of
            pair = next(waiting)


def _commits(snapshots: Snapshots, commits: Iterable[str]) -> dict[str, tuple[bytes, Extras]]:
    """Return the tree of each commit, and what it says besides; missing ones are left out."""
    wanted = list(commits)
    asked = "".join(f"{commit}\n" for commit in wanted).encode()
    out = snapshots.run("cat-file", "--batch", data=asked, what="read snapshots")
    found, start = {}, 0
    for commit in wanted:
        end = out.index(b"\n", start)
        told = out[start:end].split()
        start = end + 1
        if len(told) < 3:  # missing
            continue
        size = int(told[2])
        text = out[start : start + size]
        start += size + 1
        if told[1] != b"commit":
            continue
        body = text.partition(b"\n\n")[2].partition(b"\n\n")[2]
        tree = text[len(b"tree ") : text.index(b"\n")]
        # The standard library's codec: a file name need not be valid UTF-8.
        found[commit] = tree, msgspec.convert(json.loads(body), Extras)
    return found
