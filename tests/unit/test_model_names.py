"""Names and keys that people give."""

from __future__ import annotations

import pytest

from treadle.model.errors import InvalidInput, InvalidName
from treadle.model.names import Lane, check_key, check_name, short_name


@pytest.mark.parametrize("name", ["a", "billing.Charge", "ns.sub.Facet", "a-b", "a:b/c", "_x9", "A" * 200])
def test_a_plain_name_is_taken_as_it_is(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", ".a", "a.", "a..b", "9a", "-a", "a\n", "a\x00", "ä", "a;drop table", "a" * 201, "a*", "a'", None, 5, b"a"],
)
def test_an_odd_name_is_refused_and_the_message_says_what_would_do(name):
    with pytest.raises(InvalidName, match="not a valid task list: use letters"):
        check_name(name, "task list")


@pytest.mark.parametrize("key", ["k", "order 7", "ä/ö?", "x" * 512])
def test_a_key_is_any_printable_text(key):
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["", "a\n", "\x00", "x" * 513, None, 7, "\ud800"])
def test_an_odd_key_is_refused(key):
    with pytest.raises(InvalidInput, match="unique key"):
        check_key(key, "unique key")


def test_a_short_name_is_what_follows_the_last_dot():
    assert short_name("ns.sub.Charge") == "Charge"
    assert short_name("Charge") == "Charge"


def test_a_lane_is_its_four_parts():
    assert Lane("n", "k", "l", "x") == ("n", "k", "l", "x")
    assert Lane._fields == ("namespace", "kind", "task_list", "name")
