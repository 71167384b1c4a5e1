"""Arguments in one line: bounded, storable, and for every value that user code may pass."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sizes import examples

from treadle.model.values import LINE_LIMIT, BlobRef, arguments_text, call_text


class Odd(str):
    """A text whose methods fail."""

    def __str__(self) -> str:
        raise ValueError("no")

    __repr__ = __str__


class Hostile:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, ""),
        ({"url": "https://a/7", "row": 7}, 'url = "https://a/7", row = 7'),
        ({"item": {"id": 7, "name": "Ada", "tags": ["a"]}}, 'item = {id: 7, name: "Ada", tags: [1 item]}'),
        ({"ids": [1, None, True]}, "ids = [1, null, true]"),
        ({"ids": list(range(500))}, "ids = [500 items]"),
        ({"file": BlobRef("d", 20_000, True)}, "file = (list of 19 KiB)"),
        ({"api_key": "s3", "with": {"password": "p"}}, "api_key = ***, with = {password: ***}"),
        ({"text": "x" * 100}, f'text = "{"x" * 47}…"'),
        ({"made": Hostile()}, "made = <Hostile>"),
        ({"markup": "<b>\n"}, 'markup = "<b>\\n"'),
    ],
)
def test_arguments_are_shown_by_name_and_value(values: dict[str, Any], text: str):
    assert arguments_text(values) == text


def test_arguments_of_a_call_have_the_names_of_its_parameters():
    def fetch(url: str, row: int, *rest: Any, **more: Any) -> None: ...

    assert call_text(fetch, ("u", 7), {}) == 'url = "u", row = 7'
    assert call_text(fetch, ("u", 7, 8), {"more": 1}) == 'url = "u", row = 7, #3 = 8, more = 1'
    assert call_text("text".startswith, ("t",), {}) == '#1 = "t"'
    assert call_text(Hostile(), (1,), {}) == ""
    assert call_text(fetch, (), {}) == ""


_JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=200) | st.builds(Odd) | st.builds(Hostile),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=60), inner, max_size=6),
    max_leaves=12,
)


@settings(max_examples=examples(24), deadline=None)
@given(st.dictionaries(st.text(max_size=80), _JSON, max_size=20))
def test_any_arguments_become_a_short_storable_line(values: dict[str, Any]):
    text = arguments_text(values)
    assert len(text) <= LINE_LIMIT + 3
    assert "\x00" not in text
    text.encode()
