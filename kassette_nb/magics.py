"""``%kassette``: a method of `Run` or `Runs` in one line."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from typing import Any

import msgspec
from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class, no_var_expand
from msgspec import UNSET

from . import completion, display, printed, runs
from .errors import KassetteError
from .run import Run
from .runs import Runs
from .text import visible

_Words = list[str]
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*)\Z")


class Verb(msgspec.Struct, frozen=True):
    """One command: how it is typed, what options it takes, and what it does.

    ``call`` gets the run, the words behind its id, and the options.
    """

    usage: str
    call: Callable[[Run, _Words, dict[str, Any]], Any]
    options: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    words: int = 0
    spare: int = 0


_WHO = ("by", "note", "event")


def _fork(run: Run, _: _Words, options: dict[str, Any]) -> Any:
    at = options.pop("at", None)
    if at is None:
        raise UsageError("say where to fork: %kassette fork ID --at STEP")
    known = any(step.step_id == at for step in run.fold().steps)
    return run.fork(at if known or not at.isdecimal() else int(at), **options)


def _settle(run: Run, words: _Words, options: dict[str, Any]) -> Any:
    action, *rest = words
    value: Any = rest[0] if rest else UNSET
    if action == "record":
        if not rest:
            raise UsageError("record needs the tool's result, as JSON; null if it has none")
        value = _json(value)
    attempt = options.get("attempt")
    if attempt is not None:
        if not attempt.isdecimal():
            raise UsageError(f"--attempt {attempt} is not a number")
        options["attempt"] = int(attempt)
    return run.settle(action, value, **options)


VERBS: dict[str, Verb] = {
    "show": Verb("show ID", lambda run, _, o: run),
    "approve": Verb("approve ID", lambda run, _, o: run.approve(**o), _WHO),
    "reject": Verb("reject ID", lambda run, _, o: run.reject(**o), _WHO),
    "settle": Verb(
        "settle ID record|retry|fail [VALUE]", _settle, (*_WHO, "attempt"), words=1, spare=1
    ),
    "fork": Verb("fork ID --at STEP", _fork, ("at", "label"), ("start",)),
    "retry": Verb("retry ID", lambda run, _, o: run.retry(**o), (), ("start",)),
    "resume": Verb("resume ID", lambda run, _, o: run.resume()),
    "cancel": Verb("cancel ID", lambda run, _, o: run.cancel(**o), ("reason",)),
    "export": Verb(
        "export ID FILE.ipynb", lambda run, w, o: run.to_notebook(w[0], **o), (), ("overwrite",), 1
    ),
}
#: Verbs that are not about one run, or are read in their own way.
OTHERS = ("respond", "diff", "recover", "storage")


@magics_class
class KassetteMagics(Magics):
    """The debugger's line magic."""

    storage: str | None = None

    # Without it IPython evaluates {…} and $… of the line, and a completed step id may hold both.
    @no_var_expand
    @line_magic
    def kassette(self, line: str) -> Any:
        """Look at runs and act on them.

        %kassette                           the browser of runs
        %kassette show ID                   the panel of one run
        %kassette approve|reject ID         answer a question (--by NAME, --note TEXT, --event STEP)
        %kassette respond ID JSON           answer with a value (the same options behind it)
        %kassette settle ID record JSON     a tool in doubt: it happened, with this result;
                                            or: retry, or: fail TEXT (--attempt N)
        %kassette fork ID --at STEP         a new run from the steps before STEP (--start, --label)
        %kassette retry ID                  a new run without the failure (--start)
        %kassette resume|cancel ID          go on with an interrupted run; call one off (--reason)
        %kassette diff A B [C ...]          runs side by side
        %kassette recover                   go on with all interrupted runs whose code is loaded
        %kassette export ID FILE.ipynb      a notebook that documents the run (--overwrite)
        %kassette storage URL               which storage these commands look at

        The Tab key completes commands, run ids and step ids; $name stands for the run id in that
        variable; ids with spaces need quotes.
        """
        try:
            asked = line.split(None, 2)
            if asked[:1] == ["respond"] and len(asked) == 3:
                return self._respond(asked[1], asked[2])
            return self._run(shlex.split(line))
        except KassetteError as problem:
            raise UsageError(visible(str(problem))) from None
        except OSError as problem:  # a folder that is no longer there, a full disk
            raise UsageError(visible(f"{type(problem).__name__}: {problem}")) from None
        except ValueError as problem:  # shlex: an open quote
            raise UsageError(f"cannot read %kassette {line!r}: {problem}") from None

    def opened(self) -> Runs:
        """Return the runs of the storage that the commands look at."""
        return runs.open(self.storage)

    def _run(self, words: _Words) -> Any:
        if not words:
            return self.opened()
        name, *rest = words
        verb = VERBS.get(name)
        if verb is None:
            return self._other(name, rest)
        given, options = _options(name, rest, verb.options, verb.flags)
        if not 1 + verb.words <= len(given) <= 1 + verb.words + verb.spare:
            raise UsageError(f"usage: %kassette {verb.usage}")
        return verb.call(self._find(given[0]), given[1:], options)

    def _other(self, name: str, words: _Words) -> Any:
        if name == "storage" and len(words) == 1:
            found = runs.open(words[0])
            self.storage = words[0]
            return found
        if name == "diff" and len(words) >= 2:
            return runs.compare([self._find(word) for word in words])
        if name == "recover" and not words:
            return self.opened().recover()
        hint = f" Did you mean %kassette show {name}?" if name in self.opened() else ""
        shown = " ".join([name, *words])
        raise UsageError(visible(f"cannot read %kassette {shown}; see %kassette?.{hint}"))

    def _find(self, word: str) -> Run:
        variable = _VARIABLE.match(word)
        if variable is None:
            return self.opened()[word]
        value = self.shell.user_ns.get(variable[1]) if self.shell else None
        run_id = getattr(value, "run_id", value)
        if not isinstance(run_id, str):
            raise UsageError(f"{word} is neither a run nor a run id")
        return self.opened()[run_id]

    def _respond(self, run_id: str, rest: str) -> Any:
        """Answer with JSON as it is typed: the shell's rules would take its quotes away."""
        try:
            value, end = json.JSONDecoder().raw_decode(rest)
        except (json.JSONDecodeError, RecursionError) as problem:
            raise UsageError(f"not valid JSON: {problem}; texts need double quotes") from None
        given, options = _options("respond", shlex.split(rest[end:]), _WHO, ())
        if given:
            raise UsageError(f"what is {given[0]!r}? The answer is one JSON value")
        return self._find(run_id).respond(value, **options)


def _options(
    verb: str, words: _Words, options: tuple[str, ...], flags: tuple[str, ...]
) -> tuple[_Words, dict[str, Any]]:
    given: _Words = []
    found: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        name = word.removeprefix("--")
        if not word.startswith("--"):
            given.append(word)
        elif name in flags:
            found[name] = True
        elif name in options:
            value = next(rest, None)
            if value is None:
                raise UsageError(f"{word} needs a value")
            found[name] = value
        else:
            known = ", ".join(f"--{known}" for known in (*options, *flags)) or "no options"
            raise UsageError(f"%kassette {verb} does not take {word}; it takes {known}")
    return given, found


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode())
    except msgspec.DecodeError as problem:
        raise UsageError(
            f"not valid JSON: {problem}; quote it: '{{\"id\": 7}}', '\"a text\"'"
        ) from None


def load(ipython: Any) -> None:
    """Register the magic, its completion, the live views, and where background prints go."""
    from .notebook import show

    def launched(session: Any) -> bool:
        """Show a session that `Workflow.launch` started as the panel of its run."""
        return show.show(runs.open(session.storage).look(session.run_id))

    magics = KassetteMagics(ipython)
    ipython.register_magics(magics)
    completion.install(ipython, magics.opened, {**dict.fromkeys(OTHERS), **VERBS})
    show.register()
    display.register("background", launched)
    printed.install()


def unload(ipython: Any) -> None:
    """Take back what `load` registered."""
    from .notebook import show

    ipython.magics_manager.magics["line"].pop("kassette", None)
    completion.remove(ipython)
    show.unregister()
    display.unregister("background")
    printed.remove()
