"""Warnings that point at the user's code, not at the library's."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import FrameType

_HERE = f"{Path(__file__).parent}/"
_PLUMBING = ("asyncio", "concurrent", "threading", "runpy", "_pytest", "IPython", "ipykernel")


def tell(message: str, place: str) -> None:
    """Warn with a `UserWarning`.

    Args:
        message: What, and what to do.
        place: What it is about. Where no code of the user's is on this thread's stack (an append
            over the network has a thread of its own), the warning points there.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        ours = frame.f_code.co_filename.startswith(_HERE)
        if not ours and module.partition(".")[0] not in _PLUMBING:
            break
        frame = frame.f_back
    if frame is None:
        warnings.warn_explicit(message, UserWarning, place, 1)
        return
    warnings.warn_explicit(
        message, UserWarning, frame.f_code.co_filename, frame.f_lineno, module=module
    )
