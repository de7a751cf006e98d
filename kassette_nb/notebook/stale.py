"""Whether the code that is loaded now is the code that recorded a run's steps.

Nothing is executed to find out: the workflow's source says which function each step calls, and
that function's hash is compared with the recorded one. A function that cannot be made out this
way (a method of an object, one made at run time) makes no claim either way.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any

from ..codehash import code_hash
from ..entries import Step
from ..text import visible

_CALLS = frozenset({"step", "tool"})
#: Functions that are read in search of steps: a workflow's own, not a library's. And workflows
#: whose reading is kept.
MOST = 50
#: By the identity of the workflow's function, which is kept so that it is not given away.
_read: dict[int, tuple[Callable[..., Any], dict[str, set[str]]]] = {}


def fit(fn: Callable[..., Any], steps: Iterable[Step]) -> dict[str, Any]:
    """Return how the loaded code stands to the recorded steps.

    Returns:
        ``state`` is ``same``, ``differs`` or ``loaded`` (where no step can be compared), ``text``
        says it, and ``at`` is the first step that other code recorded, with its ``offset``.
    """
    hashes = expected(fn)
    compared = 0
    for step in steps:
        wanted = hashes.get(step.name)
        if wanted and step.code_hash is not None and not step.overridden:
            if step.code_hash not in wanted:
                shown = visible(step.step_id)
                text = f"code loaded, differs at `{shown}`"
                return {"state": "differs", "text": text, "at": shown, "offset": step.offset}
            compared += 1
    if compared:
        return {"state": "same", "text": "code loaded, same"}
    return {"state": "loaded", "text": "code loaded"}


def expected(fn: Callable[..., Any]) -> dict[str, set[str]]:
    """Return the hashes of the functions that a workflow's steps call, by step name.

    A name of which one function cannot be made out is left out.
    """
    known = _read.get(id(fn))
    if known is None or known[0] is not fn:
        if len(_read) >= MOST:  # each run of a cell makes another function
            _read.pop(next(iter(_read)))
        known = _read[id(fn)] = (fn, _expected(fn))
    return known[1]


def _expected(fn: Callable[..., Any]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    unknown: set[str] = set()
    todo, seen = [fn], set[int]()
    while todo and len(seen) < MOST:
        reading = inspect.unwrap(todo.pop())
        if not isinstance(reading, FunctionType) or id(reading) in seen:
            continue
        seen.add(id(reading))
        tree = _source(reading)
        if tree is None:
            continue
        names = _names(reading)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(names.get(node.id), FunctionType):
                other = names[node.id]
                if other.__module__ == reading.__module__:  # a part of the workflow, perhaps
                    todo.append(other)
            if not isinstance(node, ast.Call):
                continue
            for name, hashes in _called(node, reading, names):
                if hashes:
                    found.setdefault(name, set()).update(hashes)
                else:
                    unknown.add(name)
    return {name: hashes for name, hashes in found.items() if name not in unknown}


def _called(
    node: ast.Call, reading: FunctionType, names: dict[str, Any]
) -> Iterator[tuple[str, set[str]]]:
    """Yield the step names of a call on a ctx, with the hashes of their functions."""
    method = node.func.attr if isinstance(node.func, ast.Attribute) else None
    if method in _CALLS and len(node.args) >= 2 and isinstance(node.args[0], ast.Constant):
        yield str(node.args[0].value), _hashes(node.args[1], reading, names)
    elif method == "parallel" and node.args and isinstance(node.args[0], ast.Dict):
        for key, value in zip(node.args[0].keys, node.args[0].values, strict=True):
            if isinstance(key, ast.Constant):
                yield str(key.value), _hashes(value, reading, names)


def _hashes(node: ast.expr, reading: FunctionType, names: dict[str, Any]) -> set[str]:
    if isinstance(node, ast.Lambda):
        line = reading.__code__.co_firstlineno + node.lineno - 1
        return {
            h for code in _nested(reading.__code__)
            if code.co_name == "<lambda>" and code.co_firstlineno == line and (h := _hash(code))
        }  # fmt: skip
    if isinstance(node, ast.Name):
        inner = {
            h for code in _nested(reading.__code__)
            if code.co_name == node.id and (h := _hash(code))
        }  # fmt: skip
        if inner:
            return inner
        own = (reading.__code__, *_nested(reading.__code__))
        if any(node.id in (*code.co_varnames, *code.co_cellvars) for code in own):
            return set()  # a variable, whatever a global of that name may be
        found = names.get(node.id)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = names.get(node.value.id)
        found = inspect.getattr_static(owner, node.attr, None) if inspect.ismodule(owner) else None
    else:
        return set()
    made = code_hash(found) if callable(found) else None
    return {made} if made else set()


def _names(fn: FunctionType) -> dict[str, Any]:
    names = dict(fn.__globals__)
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not bound yet
            names.pop(name, None)
    return names


def _source(fn: FunctionType) -> ast.AST | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(fn)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)


def _hash(code: CodeType) -> str | None:
    cells = tuple(CellType() for _ in code.co_freevars)
    return code_hash(FunctionType(code, {}, closure=cells))
