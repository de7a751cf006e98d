"""A workflow's parameters, and whether a journal's recorded input fits them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from . import values
from .errors import ArgumentError, MetadataMismatchError
from .journal import Journal
from .values import JSON

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Arguments:
    """The parameters of one workflow function, ctx left out.

    Raises:
        TypeError: The function cannot be a workflow; says why.
    """

    def __init__(self, fn: Callable[..., Any], name: str) -> None:
        self.name = name
        signature = inspect.signature(fn)
        parameters = list(signature.parameters.values())
        if not parameters:
            raise TypeError(f"workflow {name!r} must take ctx as its first parameter")
        for parameter in parameters[1:]:
            if parameter.kind not in _BY_NAME or parameter.name == "run_id":
                raise TypeError(
                    f"workflow {name!r}: parameter {str(parameter)!r} cannot be recorded. "
                    "Arguments are recorded by name, so *args, **kwargs and positional-only ones "
                    "are refused; the run's id is ctx.run_id."
                )
        self._signature = signature.replace(parameters=parameters[1:])

    def given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return by name what a caller gave, without defaults.

        Raises:
            ArgumentError: One is unknown, or there are too many.
        """
        try:
            return dict(self._signature.bind_partial(*args, **kwargs).arguments)
        except TypeError as problem:
            raise self._unfit(problem) from None

    def new(self, given: Mapping[str, Any], limit: int) -> dict[str, JSON]:
        """Return the whole input of a new run, defaults included, as replay will see it.

        Raises:
            ArgumentError: An argument is missing.
            JournalValueError: One does not survive JSON.
        """
        try:
            bound = self._signature.bind(**given)
        except TypeError as problem:
            raise self._unfit(problem) from None
        bound.apply_defaults()
        what = f"arguments of workflow {self.name!r}"
        decoded: dict[str, JSON] = values.decode(
            values.encode(dict(bound.arguments), what=what, limit=limit)
        )
        return decoded

    def recorded(self, journal: Journal, given: Mapping[str, Any]) -> dict[str, JSON]:
        """Return the recorded input, if it is for this workflow and agrees with what is given.

        Raises:
            MetadataMismatchError: It is another workflow's, or an argument differs.
        """
        opening = journal.opening
        run_id = journal.run_id
        if opening.workflow is not None and opening.workflow != self.name:
            raise _mismatch(run_id, "workflow", opening.workflow, self.name)
        metadata = values.decode(opening.metadata, what="metadata")
        metadata = {} if metadata is None else metadata
        names = list(self._signature.parameters)
        if not isinstance(metadata, dict):
            raise _mismatch(run_id, "arguments", metadata, names)
        try:
            self._signature.bind(**metadata)
        except TypeError:
            raise _mismatch(run_id, "arguments", list(metadata), names) from None
        for name, value in given.items():
            wanted = values.decode(values.encode(value, what=f"argument {name!r}"))
            if name not in metadata or not values.same(wanted, metadata[name]):
                raise _mismatch(run_id, f"argument {name!r}", metadata.get(name), wanted)
        return metadata

    def _unfit(self, problem: TypeError) -> ArgumentError:
        takes = ", ".join(self._signature.parameters) or "none"
        return ArgumentError(
            f"workflow {self.name!r}: {problem}; its arguments are: {takes}. Nothing was executed.",
            workflow=self.name,
        )


def _mismatch(run_id: str, what: str, recorded: object, given: object) -> MetadataMismatchError:
    return MetadataMismatchError(
        f"run {run_id!r}: its {what} is recorded as {_short(recorded)}, not {_short(given)}. "
        "Nothing was executed. Use another run id for another input, or leave the arguments out "
        "to go on with the recorded ones.",
        run_id=run_id,
        what=what,
        recorded=recorded,
        given=given,
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
