"""JSON values: what both stores keep alike is taken, everything else is refused at the edge (D12)."""

from __future__ import annotations

import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.model.errors import InvalidPayload, PayloadTooLarge
from treadle.model.values import PAYLOAD_LIMIT, decode, decode_error, decode_or_error, encode

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_decoding_an_encoded_value_returns_the_same_value(value):
    assert decode(encode(value)) == value


def test_the_text_is_compact_and_keeps_letters_as_they_are():
    assert encode({"a": [1, "ü"], "b": None}) == '{"a":[1,"ü"],"b":null}'


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, {"a": [math.nan]}])
def test_numbers_that_json_does_not_have_are_refused(value):
    with pytest.raises(InvalidPayload):
        encode(value)


@pytest.mark.parametrize("value", ["\x00", "a\x00b", {"\x00": 1}, ["\\\x00"], "\\\\\x00"])
def test_the_character_zero_is_refused(value):
    with pytest.raises(InvalidPayload, match=r"U\+0000"):
        encode(value)


@pytest.mark.parametrize("value", ["\\u0000", "\\\\u0000", {"\\u0000": ["\\u0000"]}])
def test_text_that_only_looks_like_the_character_zero_is_taken(value):
    assert decode(encode(value)) == value


@pytest.mark.parametrize("value", ["\ud800", "a\udfff", {"\ud800": 1}])
def test_a_lone_surrogate_is_refused(value):
    with pytest.raises(InvalidPayload):
        encode(value)


def test_a_whole_character_beyond_the_basic_plane_is_taken():
    assert decode(encode("🙂")) == "🙂"


@pytest.mark.parametrize("value", [{1, 2}, object(), b"x", {"a": object()}, {(1, 2): 3}])
def test_a_value_that_is_not_json_is_refused(value):
    with pytest.raises(InvalidPayload, match="not JSON"):
        encode(value)


def test_a_value_that_contains_itself_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(InvalidPayload):
        encode(loop)


def test_a_value_too_deep_to_read_is_refused():
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidPayload):
        encode(deep)


def test_the_limit_counts_bytes_of_text():
    assert encode("x" * 8, limit=10) == '"xxxxxxxx"'
    with pytest.raises(PayloadTooLarge):
        encode("x" * 9, limit=10)
    assert encode("ü" * 4, limit=10)
    with pytest.raises(PayloadTooLarge, match="result takes 12 bytes"):
        encode("ü" * 5, "result", limit=10)


@pytest.mark.parametrize("make", [lambda part: [part, part], lambda part: {"a": part, "b": part}, lambda part: (part,) * 2])
def test_a_value_with_shared_parts_is_measured_at_full_size_before_encoding(make):
    """Sixty doublings are a few hundred objects, and would be exabytes of text."""
    shared: object = 0
    for _ in range(60):
        shared = make(shared)
    for value in (shared, {"out": shared}, {"odd": object(), "out": shared}):
        with pytest.raises(PayloadTooLarge, match="at least"):
            encode(value)


@given(json_values)
def test_no_value_is_refused_for_a_size_that_it_does_not_have(value):
    text = encode(value)
    assert encode(value, limit=len(text.encode())) == text


def test_the_default_limit_is_a_mebibyte():
    encode("x" * (PAYLOAD_LIMIT - 2))
    with pytest.raises(PayloadTooLarge):
        encode("x" * (PAYLOAD_LIMIT - 1))


def test_null_decodes_to_no_value():
    assert decode(None) is None
    assert decode("null") is None


def test_a_value_of_a_few_kilobytes_does_not_take_the_memory_of_its_limit():
    value = {"items": list(range(2_000))}
    tracemalloc.start()
    try:
        text = encode(value, limit=64 * 1024 * 1024)
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()
    assert decode(text) == value


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", '{"code": 1}', '{"code": "a", "message": []}'])
def test_a_damaged_error_is_replaced_by_the_reason(text):
    assert decode_error(text)["code"] == "unreadable_value"


def test_a_text_of_another_codec_is_replaced_by_the_name_of_the_codec():
    reason = {
        "code": "unreadable_value",
        "message": "A value was stored with the codec 'zlib'; give the engine that codec to read it.",
    }
    assert decode_error("@code:zlib:abc") == decode_or_error("@code:zlib:abc") == reason


def test_a_healthy_error_is_decoded_with_all_its_fields():
    assert decode_error('{"code": "failed", "step": 1}') == decode_or_error('{"code": "failed", "step": 1}')
    assert (decode_error(None), decode_or_error('{"code": 1}')) == ({}, {"code": 1})
