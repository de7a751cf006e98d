"""The canonical form: RFC 8785's bytes, the same for equal values, stable under itself."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from kassette_nb import canonical
from kassette_nb.canonical import idempotency_key, same

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | text | st.binary(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.from_regex(r"[a-z$]{1,3}", fullmatch=True), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(values)
def test_its_bytes_are_those_of_the_standard_however_they_are_made(value: Any) -> None:
    form = canonical.canonical(value, "value")
    assert canonical._dump(form) == rfc8785.dumps(form)


@given(values)
def test_it_survives_the_journal(value: Any) -> None:
    form = canonical.canonical(value, "value")
    assert same(json.loads(json.dumps(form)), form)


def spelled_differently(value: Any) -> Any:
    """Return the same call as another caller would write it."""
    if isinstance(value, dict):
        return {
            spelled_differently(key): spelled_differently(value[key]) for key in reversed(value)
        }
    if isinstance(value, list):
        return tuple(map(spelled_differently, value))
    if isinstance(value, str):
        return unicodedata.normalize("NFD", value)
    if type(value) is int and abs(value) < 2**53:
        return float(value)
    return value


@given(values)
def test_the_same_call_has_one_key_however_it_is_spelled(value: Any) -> None:
    keys = {
        idempotency_key("run", "step", "tool", canonical.canonical(each, "value"))
        for each in (value, spelled_differently(value))
    }
    assert len(keys) == 1


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | text.map(lambda t: unicodedata.normalize("NFC", t)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.from_regex(r"[a-z$]{1,3}", fullmatch=True), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(plain, plain)
def test_different_calls_have_different_keys(one: Any, other: Any) -> None:
    forms = [canonical.canonical(each, "value") for each in (one, other)]
    keys = [idempotency_key("run", "step", "tool", form) for form in forms]
    equal = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (keys[0] == keys[1]) == equal
