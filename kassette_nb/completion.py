"""What the Tab key offers behind ``%kassette``: commands, run ids, step ids, options."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from .errors import KassetteError
from .runs import Runs

_LINE = "%kassette "
#: Ids offered at most.
MOST = 1_000


def install(ipython: Any, opened: Callable[[], Runs], verbs: Mapping[str, Any]) -> None:
    """Complete the magic's line in this shell; an earlier completion of ours is replaced.

    Args:
        ipython: The shell.
        opened: Opens the storage.
        verbs: The commands; those with ``options`` and ``flags`` take these.
    """
    from IPython.core.completer import SimpleCompletion, context_matcher

    remove(ipython)

    def match(context: Any) -> dict[str, Any]:
        line = context.line_with_cursor[: context.cursor_position].lstrip()
        if not line.startswith(_LINE):
            return {"completions": []}
        word = line.rpartition(" ")[2]
        found = offers(line, opened, verbs)
        # The rest of Python has no place in this line; and IPython's words end at a sign like #.
        return {
            "completions": [SimpleCompletion(text=each, type="kassette") for each in found],
            "suppress": True,
            "matched_fragment": word,
        }

    ipython.Completer.custom_matchers.append(context_matcher(identifier="kassette")(match))


def remove(ipython: Any) -> None:
    """Take back what `install` did."""
    matchers = ipython.Completer.custom_matchers
    matchers[:] = [
        each for each in matchers if getattr(each, "matcher_identifier", "") != "kassette"
    ]


def offers(line: str, opened: Callable[[], Runs], verbs: Mapping[str, Any]) -> list[str]:
    """Return the words that may stand in the place of the line's last one."""
    words = line.split(" ")
    before = [each for each in words[1:-1] if each]
    try:
        found = _candidates(before, words[-1], opened, verbs)
    except KassetteError:
        return []
    return [each for each in found if each.startswith(words[-1])][:MOST]


def _candidates(
    before: list[str], word: str, opened: Callable[[], Runs], verbs: Mapping[str, Any]
) -> list[str]:
    if not before:
        return sorted(verbs)
    verb = before[0]
    if verb not in verbs:
        return []
    if word.startswith("-"):
        known = verbs[verb]
        return [f"--{name}" for name in (*known.options, *known.flags)] if known else []
    if before[-1] in ("--at", "--event"):
        return _steps(before, opened)
    if before[-1].startswith("--"):
        return []
    if verb == "diff" or len(before) == 1:
        return [] if verb in ("storage", "recover") else list(opened().storage.list())
    if verb == "settle" and len(before) == 2:
        return ["record", "retry", "fail"]
    return []


def _steps(before: list[str], opened: Callable[[], Runs]) -> list[str]:
    folded = opened()[before[1]].fold()
    if before[-1] == "--event":
        ids = [question.step_id for question in folded.waits]
    else:
        ids = [step.step_id for step in folded.steps]
    # An id that shows less than it is, is not one to be put into a cell unseen.
    return [shlex.quote(each) if _special(each) else each for each in ids if each.isprintable()]


def _special(text: str) -> bool:
    return any(sign in text for sign in " \t'\"\\")
