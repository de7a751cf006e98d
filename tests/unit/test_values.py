"""A value comes back as it was given, or is refused with the path to what JSON cannot carry."""

import datetime
from enum import IntEnum
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kassette_nb import values
from kassette_nb.errors import JournalValueError, PayloadTooLargeError

text = st.text(st.characters(codec="utf-8"))
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
) | text
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(text, inner), max_leaves=20
)


def types(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: types(item) for key, item in value.items()}
    if isinstance(value, list):
        return [types(item) for item in value]
    return type(value), repr(value)


@given(json_values)
def test_every_json_value_survives_type_for_type(value: Any) -> None:
    back = values.decode(values.encode(value))
    assert types(back) == types(value)
    assert values.same(back, value)


class Level(IntEnum):
    LOW = 1


cycle: list[Any] = [1]
cycle.append({"again": cycle})
deep: list[Any] = []
for _ in range(300):
    deep = [deep]


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        ({"items": [1, {"when": datetime.date(2026, 1, 1)}]}, "$.items[1].when", "date"),
        ({"a": float("nan")}, "$.a", "nan"),
        ([float("inf")], "$[0]", "inf"),
        ({"s": {1, 2}}, "$.s", "set"),
        ({1: "x"}, "$", "keys must be strings"),
        ({"odd key": b"x"}, "$['odd key']", "bytes"),
        ({"m": "a\ud800"}, "$.m", "lone surrogate"),
        ({"level": Level.LOW}, "$.level", "Level"),
        (cycle, "$[1].again", "contains itself"),
        (deep, "$[0][0][0][0][0][0][0][0]", "200 levels"),
        (object(), "$", "object"),
    ],
)
def test_what_json_cannot_carry_is_refused_with_its_path(
    value: Any, path: str, reason: str
) -> None:
    with pytest.raises(JournalValueError) as refused:
        values.encode(value, what="result of step 'x'")
    assert refused.value.path == path
    assert reason in refused.value.reason
    assert "result of step 'x'" in str(refused.value)


def test_a_large_value_is_refused_with_its_size() -> None:
    with pytest.raises(PayloadTooLargeError, match="max_payload=10") as refused:
        values.encode("x" * 100, limit=10)
    assert (refused.value.size, refused.value.limit) == (102, 10)


def test_an_int_too_long_to_print_is_refused_by_name() -> None:
    with pytest.raises(JournalValueError):
        values.encode(10**5000)


@pytest.mark.parametrize("payload", [b"[" * 5000 + b"]" * 5000, b"1e999", b'"\xff"'])
def test_hostile_json_is_a_named_error(payload: bytes) -> None:
    with pytest.raises(JournalValueError):
        values.decode(msgspec.Raw(payload))


def test_same_json_knows_numbers_from_booleans() -> None:
    assert values.same({"a": 1, "b": [1.0]}, {"b": [1], "a": 1})
    assert not values.same(1, True)
    assert not values.same([1], [1, 2])
