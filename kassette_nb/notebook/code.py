"""The line of code that does what a button does.

Journal text stands in it only as an ASCII literal, so that running a copied line does what it
shows, whatever a model has written into a name.
"""

from __future__ import annotations

from ..values import JSON


def opened(url: str) -> str:
    """Return the code that opens a storage."""
    return f"kb.open({url!a})"


def run(url: str, run_id: str) -> str:
    """Return the code that names a run."""
    return f"{opened(url)}[{run_id!a}]"


def value(target: str, step_id: str, *, failed: bool = False) -> str:
    """Return the code that gives a recorded step's value, or its error."""
    return f"{target}[{step_id!a}].{'error' if failed else 'value'}"


def call(target: str, method: str, *args: JSON, **kwargs: JSON) -> str:
    """Return a method call; arguments that are None are left out."""
    given = [f"{value!a}" for value in args]
    given += [f"{name}={value!a}" for name, value in kwargs.items() if value is not None]
    return f"{target}.{method}({', '.join(given)})"
