"""What goes into a tool comes out as it was: JSON values with bytes anywhere in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albedo_provisioner.bundle.values import MOST_DEPTH, decode, encode

names = st.text(max_size=5) | st.sampled_from(["$blob", "$plain"])
plain = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9) | st.binary(max_size=9)
)
anything = st.recursive(plain, lambda each: st.lists(each, max_size=4) | st.dictionaries(names, each, max_size=4))


@given(anything)
def test_every_value_comes_out_as_it_went_in(value: Any) -> None:
    content, blobs = encode(value)
    assert decode(json.loads(json.dumps(content)), blobs) == value


def test_tuples_come_out_as_lists_and_buffers_as_bytes() -> None:
    content, blobs = encode((1, bytearray(b"a"), memoryview(b"b")))
    assert decode(content, blobs) == [1, b"a", b"b"]


@pytest.mark.parametrize(
    "value",
    [{1: 2}, {None: 1}, {1}, object(), 1j, [range(3)]],
    ids=["number", "none", "set", "object", "complex", "range"],
)
def test_what_is_neither_json_nor_bytes_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        encode(value)


def test_what_is_nested_too_deeply_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match=str(MOST_DEPTH)):
        encode(value)


@pytest.mark.parametrize("content", [{"$blob": 1}, {"$blob": -1}, {"$blob": "x"}, [{"$blob": None}]])
def test_a_blob_that_is_not_there_is_an_error(content: Any) -> None:
    with pytest.raises(ValueError, match="blob"):
        decode(content, [b"only"])
