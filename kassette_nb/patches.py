"""What two snapshots differ by, file by file: names, counts and sizes, and each text when asked.

Texts are compared by the ids under which git keeps them, so no file name is ever an argument.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from .errors import WorkspaceError
from .snapshots import Snapshots

#: Files larger than this (bytes) are named with their sizes and not compared.
LARGEST = 2_000_000
_NOTHING = "0"
_LINK = "160000"


class Blob(msgspec.Struct, frozen=True):
    """A file's content as git keeps it: its id, its mode (``100755``), its size in bytes."""

    id: str
    mode: str
    size: int | None = None


class Patch(msgspec.Struct, frozen=True):
    """One file that differs between two snapshots.

    ``status`` is ``A`` added, ``M`` modified, ``D`` deleted, ``R`` renamed or ``T`` another type.
    ``path`` ends with ``/`` for an empty directory or a repository inside the tree. ``was`` is the
    old name of a renamed file. ``added`` and ``removed`` count lines, None for a binary file.
    """

    status: str
    path: str
    was: str | None = None
    added: int | None = None
    removed: int | None = None
    before: Blob | None = None
    after: Blob | None = None

    @property
    def binary(self) -> bool:
        """Whether git takes one of the two for something that is not text."""
        return self.added is None and not self.path.endswith("/")

    @property
    def size(self) -> int:
        """The size of the larger of the two, in bytes."""
        return max((blob.size or 0 for blob in (self.before, self.after) if blob), default=0)


def patches(snapshots: Snapshots, before: str, after: str) -> list[Patch]:
    """Return the files that differ between two snapshots, with their sizes, in git's order.

    Repositories inside the tree are looked into. A file that moved with most of its lines is one
    renamed file.

    Raises:
        WorkspaceError: A snapshot is not there, or git is not.
    """
    found = list(_patches(snapshots, before, after, ""))
    ids = {blob.id for patch in found for blob in (patch.before, patch.after) if blob}
    sizes = _sizes(snapshots, sorted(ids))

    def sized(blob: Blob | None) -> Blob | None:
        return blob and msgspec.structs.replace(blob, size=sizes.get(blob.id))

    return [
        msgspec.structs.replace(patch, before=sized(patch.before), after=sized(patch.after))
        for patch in found
    ]


def difference(snapshots: Snapshots, patch: Patch) -> str | None:
    """Return how one file differs, as a unified diff without file names.

    Returns:
        None for what has no text: a binary file, a directory, a file over `LARGEST`.

    Raises:
        WorkspaceError: The snapshot is not there, or git is not.
    """
    if patch.binary or patch.path.endswith("/") or patch.size > LARGEST:
        return None
    old, new = patch.before, patch.after
    modes = ""
    if old is not None and new is not None:
        if old.mode != new.mode:
            modes = f"old mode {old.mode}\nnew mode {new.mode}\n"
        if old.id == new.id:
            return modes
        plain = ("--no-color", "--no-ext-diff", "--no-textconv", "--full-index")
        out = snapshots.run("diff", *plain, old.id, new.id, what="compare two files")
        text = out.decode(errors="replace")
        return modes + text[max(text.find("\n@@ ") + 1, 0) :]
    only = new or old
    if only is None:
        return None
    sign = "+" if new is not None else "-"
    content = snapshots.run("cat-file", "blob", only.id, what="read a file")
    return _one_sided(content.decode(errors="replace"), sign)


def _one_sided(text: str, sign: str) -> str:
    if not text:
        return ""
    lines = text.removesuffix("\n").split("\n")
    there = f"1,{len(lines)}"
    head = f"@@ -0,0 +{there} @@" if sign == "+" else f"@@ -{there} +0,0 @@"
    end = "" if text.endswith("\n") else "\\ No newline at end of file\n"
    return "\n".join([head, *(f"{sign}{line}" for line in lines)]) + "\n" + end


def _patches(snapshots: Snapshots, before: str, after: str, inside: str) -> Iterator[Patch]:
    out = snapshots.run(
        "diff-tree", "--find-renames", "-z", "-r", "--raw", "--numstat", before, after,
        what="compare two snapshots",
    )  # fmt: skip
    fields = iter(out.split(b"\0"))
    raw: list[tuple[str, list[str], str | None, str]] = []
    counts: dict[str, tuple[int | None, int | None]] = {}
    for item in fields:
        if item.startswith(b":"):
            *facts, status = item[1:].decode().split(" ")
            first = os.fsdecode(next(fields))
            renamed = status[0] in "RC"
            path = os.fsdecode(next(fields)) if renamed else first
            raw.append((status[0], facts, first if renamed else None, path))
        elif item:
            added, removed, name = item.split(b"\t", 2)
            if not name:  # a renamed file: both names follow
                next(fields)
                name = next(fields)
            counts[os.fsdecode(name)] = (_number(added), _number(removed))
    for status, (old_mode, new_mode, old, new), was, path in raw:
        yield Patch(
            status,
            inside + path,
            None if was is None else inside + was,
            *counts.get(path, (None, None)),
            _blob(old, old_mode),
            _blob(new, new_mode),
        )
    ours, theirs = snapshots.extras(before), snapshots.extras(after)
    for path in sorted({*ours.nested, *theirs.nested}):
        one, other = ours.nested.get(path), theirs.nested.get(path)
        if one is None or other is None:
            yield Patch("A" if one is None else "D", f"{inside}{path}/")
        elif one != other:
            yield from _patches(snapshots, one, other, f"{inside}{path}/")
    for path in sorted({*ours.empty} ^ {*theirs.empty}):
        # One that lost its last file, or got its first, is told by that file.
        if not any(name.startswith(f"{path}/") for _, _, _, name in raw):
            yield Patch("D" if path in ours.empty else "A", f"{inside}{path}/")


def _blob(name: str, mode: str) -> Blob | None:
    return None if mode == _LINK or not name.strip(_NOTHING) else Blob(name, mode)


def _sizes(snapshots: Snapshots, ids: list[str]) -> dict[str, int]:
    if not ids:
        return {}
    data = "".join(f"{name}\n" for name in ids).encode()
    wanted = "--batch-check=%(objectname) %(objectsize)"
    out = snapshots.run("cat-file", wanted, data=data, what="look at the sizes of files")
    found: dict[str, int] = {}
    for line in out.decode().splitlines():
        name, _, size = line.partition(" ")
        if not size.isdigit():
            raise WorkspaceError(f"cannot compare two snapshots: a file of them is gone ({name}).")
        found[name] = int(size)
    return found


def _number(text: bytes) -> int | None:
    return None if text == b"-" else int(text)
