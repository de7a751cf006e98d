"""The one hook by which an object of a lower layer gets a rich view.

The notebook extension registers a function by name; until then, and outside notebooks, objects
show their plain ``repr``. This module imports nothing of the package.
"""

from __future__ import annotations

from collections.abc import Callable

Show = Callable[[object], bool]
_views: dict[str, Show] = {}


def register(kind: str, show: Show) -> None:
    """Let ``show(obj)`` display every object that asks for the view ``kind``."""
    _views[kind] = show


def unregister(kind: str) -> None:
    """Forget the view; objects go back to their plain form."""
    _views.pop(kind, None)


def show(kind: str, obj: object) -> bool:
    """Display ``obj`` and return True, or return False where no view is registered."""
    view = _views.get(kind)
    return view is not None and view(obj)
