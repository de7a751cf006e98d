"""A process that edits files and is killed while they are being kept; run by the test beside it."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

from kassette_nb import LocalStorage, Workspace, kassette
from kassette_nb.tree import Tree
from tests.trees import picture

STEPS = 400


def main(root: Path) -> None:
    phase = mmap.mmap(os.open(root / "phase", os.O_RDWR), 2)
    take = Tree.take

    def watched(self: Tree, parent: str | None = None) -> str:
        phase[0] = 1
        phase[1] += 1
        try:
            return take(self, parent)
        finally:
            phase[0] = 0

    Tree.take = watched  # type: ignore[method-assign]
    where = Workspace(str(root / "tree"), differs="keep")

    @kassette(storage=LocalStorage(root / "store"), workspace=where)
    async def work(ctx):
        def edit(number: int) -> dict[str, str]:
            folder = ctx.workspace / f"d{number % 7}"
            folder.mkdir(exist_ok=True)
            for n in range(8):
                (folder / f"{number % 3}-{n}.bin").write_bytes(os.urandom(3_000))
            (ctx.workspace / "tool.sh").chmod(0o755 if number % 2 else 0o644)
            if number % 5 == 4:
                (folder / f"{number % 3}-0.bin").unlink()
            return seen(ctx.workspace)

        for number in range(STEPS):
            await ctx.step("edit", edit, number)

    work.start_sync(run_id="run")


def seen(tree: Path) -> dict[str, str]:
    """A picture of a tree that JSON can carry."""
    return {path: f"{kind}:{hash_of(data)}" for path, (kind, data) in picture(tree).items()}


def hash_of(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
