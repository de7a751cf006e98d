"""Generated run ids: UUIDv7, so that they sort by the time they were made."""

from __future__ import annotations

import os
import time
import uuid


def new_run_id() -> str:
    """Return a fresh id (RFC 9562, version 7): 48 bits of milliseconds, then random bits."""
    value = time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(0x3 << 62) | 2 << 62
    return str(uuid.UUID(int=value))
