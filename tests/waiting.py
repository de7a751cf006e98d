"""Waiting for what has to have happened, instead of for a time in which it should."""

from __future__ import annotations

import asyncio

from kassette_nb.storage import Storage


async def until_recorded(storage: Storage, run_id: str = "r", lines: int = 1) -> None:
    """Wait until a run has so many lines."""
    while True:
        try:
            found = storage.read(run_id)
        except KeyError:
            found = None
        if found is not None and found[0].count(b"\n") >= lines:
            return
        await asyncio.sleep(0.005)
