"""Displaying: a static twin and, beside it, the live view.

Two outputs, because a trusted notebook reopened without its kernel shows an error line for a
widget instead of the HTML in the same output. The twin is rewritten when what it shows has
settled; the live view's output is never touched again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from IPython.display import DisplayHandle, display

from .. import display as hooks
from ..errors import StorageError
from .view import View

#: What pandas was told of TeX before a table of ours was made; empty until then.
_tex_was: list[bool] = []
#: Seconds between two looks at attempts that run.
EVERY = 0.5


class Shown(Protocol):
    """An object with a static twin and a live view."""

    def _repr_html_(self) -> str: ...

    def panel(self) -> View: ...


def show(shown: object) -> bool:
    """Display an object's twin and its live view."""
    try:
        twin = _twin(shown)
        view: View = shown.panel()  # type: ignore[attr-defined]  # registered for Shown only
    except StorageError as problem:
        # A traceback through a widget's making hides the one sentence that helps.
        text = f"{type(problem).__name__}: {problem}"
        display({"text/plain": text}, raw=True)
        return True
    handle = DisplayHandle()
    handle.display(twin, raw=True)
    view.when_settled(_rewriter(shown, handle))
    bundle, metadata = _live(view)
    display(bundle, metadata=metadata, raw=True)
    return True


def progress(attempts: object) -> bool:
    """Display how far attempts are, as one line that is rewritten while they run."""
    handle = DisplayHandle()
    handle.display({"text/plain": repr(attempts)}, raw=True)

    def follow() -> None:
        done = False
        while not done:
            time.sleep(EVERY)
            done = attempts.done  # type: ignore[attr-defined]  # registered for Attempts only
            handle.update({"text/plain": repr(attempts)}, raw=True)

    # A thread, so that a blocking cell does not stop it; it ends with the attempts.
    threading.Thread(target=follow, name="kassette progress", daemon=True).start()
    return True


def _rewriter(shown: object, handle: DisplayHandle) -> Callable[[], None]:
    def rewrite() -> None:
        handle.update(_twin(shown), raw=True)

    return rewrite


def _twin(shown: object) -> dict[str, str]:
    html: str = shown._repr_html_()  # type: ignore[attr-defined]  # registered for Shown only
    return {"text/html": html, "text/plain": repr(shown)}


def _live(view: View) -> tuple[dict[str, object], dict[str, object]]:
    bundle, metadata = view._repr_mimebundle_() or ({}, {})
    return {**bundle, "text/plain": "live view: run this cell again to get it back"}, metadata


def register() -> None:
    """Give runs, storages and comparisons their live views."""
    for kind in ("run", "runs", "comparison"):
        hooks.register(kind, show)
    hooks.register("attempts", progress)
    hooks.register("frame", _without_tex)


def unregister() -> None:
    """Take them away again."""
    for kind in ("run", "runs", "comparison", "attempts", "frame"):
        hooks.unregister(kind)
    if _tex_was:
        import pandas as pd

        pd.set_option("display.html.use_mathjax", _tex_was.pop())


def _without_tex(_frame: object) -> bool:
    """Have pandas say that its tables are no TeX: a text in one may be a link that lies."""
    import pandas as pd

    if not _tex_was:
        _tex_was.append(pd.get_option("display.html.use_mathjax"))
        pd.set_option("display.html.use_mathjax", False)
    return False
