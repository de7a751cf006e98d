"""What an attempt is ranked by: a number, more is better, or whether it succeeded. Pure."""

from __future__ import annotations

import math

import msgspec

from .errors import KassetteError


class Score(msgspec.Struct, frozen=True):
    """A score. ``solved`` is None where a plain number does not say it."""

    value: float
    text: str
    solved: bool | None = None


def score_of(given: object, who: str) -> Score | None:
    """Return what a scoring function gave as a score.

    Args:
        given: A bool (solved or not), a number, a pair (reached, of) such as tests passed of all
            tests, or None for not known.
        who: Whose it is, for the error.

    Raises:
        KassetteError: It is something else.
    """
    if given is None:
        return None
    if isinstance(given, bool):
        return Score(float(given), "solved" if given else "not solved", given)
    if isinstance(given, int | float) and math.isfinite(given):
        return Score(float(given), _number(given))
    if isinstance(given, tuple | list) and len(given) == 2:
        reached, of = given
        plain = all(isinstance(n, int | float) and not isinstance(n, bool) for n in given)
        if plain and all(map(math.isfinite, given)):
            if not 0 <= reached <= of or of <= 0:
                raise KassetteError(
                    f"the score of {who} is {given!r}; of a pair (reached, of) the second is how "
                    "many there are in all, at least one, and the first no more than that. Give "
                    "None where nothing was counted."
                )
            return Score(float(reached), f"{_number(reached)} / {_number(of)}", reached >= of)
    raise KassetteError(
        f"the score of {who} is {given!r}; a score is True or False, a number (more is better), "
        "a pair such as (passed, all), or None where it is not known."
    )


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
