"""``%kassette``: a method of `Run` or `Runs` in one line."""

from __future__ import annotations

import json
import shlex
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class

from . import display, runs
from .errors import KassetteError
from .run import Run


@magics_class
class KassetteMagics(Magics):
    """The debugger's line magic."""

    storage: str | None = None

    @line_magic
    def kassette(self, line: str) -> Any:
        """Look at runs and act on them.

        %kassette                           the browser of runs
        %kassette show ID                   the panel of one run
        %kassette approve|reject ID         answer a question (--by NAME, --note TEXT)
        %kassette respond ID JSON           answer with a value
        %kassette fork ID --at STEP         a new run from the steps before STEP
        %kassette resume|cancel ID          go on with an interrupted run; call one off
        %kassette diff A B [C ...]          runs side by side
        %kassette storage URL               which storage these commands look at
        """
        try:
            asked = line.split(None, 2)
            if asked[:1] == ["respond"] and len(asked) == 3:
                return self._respond(asked[1], asked[2])
            return self._run(shlex.split(line))
        except KassetteError as problem:
            raise UsageError(str(problem)) from None

    def _run(self, words: list[str]) -> Any:
        opened = runs.open(self.storage)
        if not words:
            return opened
        verb, *rest = words
        ids, options = _options(rest)
        if verb == "storage" and len(ids) == 1:
            self.storage = ids[0]
            return runs.open(self.storage)
        if verb == "diff" and len(ids) >= 2:
            return runs.compare([opened[run_id] for run_id in ids])
        if len(ids) == 1 and verb in ("show", "approve", "reject", "resume", "cancel", "fork"):
            run: Run = opened[ids[0]]
            if verb == "show":
                return run
            if verb == "fork" and "at" not in options:
                raise UsageError("say where to fork: %kassette fork ID --at STEP")
            try:
                return getattr(run, verb)(**options)
            except TypeError:
                raise UsageError(f"%kassette {verb} does not take {', '.join(options)}") from None
        hint = f" Did you mean %kassette show {verb}?" if verb in opened else ""
        raise UsageError(f"cannot read %kassette {' '.join(words)}; see %kassette?.{hint}")

    def _respond(self, run_id: str, rest: str) -> Any:
        """Answer with JSON as it is typed: the shell's rules would take its quotes away."""
        try:
            value, end = json.JSONDecoder().raw_decode(rest)
        except json.JSONDecodeError as problem:
            raise UsageError(f"not valid JSON: {problem}; texts need double quotes") from None
        _, options = _options(shlex.split(rest[end:]))
        return runs.open(self.storage)[run_id].respond(value, **options)


def _options(words: list[str]) -> tuple[list[str], dict[str, str]]:
    ids: list[str] = []
    options: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if word.startswith("--"):
            value = next(rest, None)
            if value is None:
                raise UsageError(f"{word} needs a value")
            options[word.removeprefix("--")] = value
        else:
            ids.append(word)
    return ids, options


def load(ipython: Any) -> None:
    """Register the magic and the live views."""
    from .notebook import show

    def launched(session: Any) -> bool:
        """Show a session that `Workflow.launch` started as the panel of its run."""
        return show.show(runs.open(session.storage).look(session.run_id))

    ipython.register_magics(KassetteMagics)
    show.register()
    display.register("background", launched)


def unload(ipython: Any) -> None:
    """Take back what `load` registered."""
    from .notebook import show

    ipython.magics_manager.magics["line"].pop("kassette", None)
    show.unregister()
    display.unregister("background")
