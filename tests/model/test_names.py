"""Names and keys that people give."""

from __future__ import annotations

import pytest

from treadle.model.errors import InvalidInput, InvalidName
from treadle.model.names import QueueKey, check_key, check_name, check_pattern, handles, handles_by_name, short_name


@pytest.mark.parametrize("name", ["a", "billing.Charge", "ns.sub.Facet", "a-b", "a:b/c", "_x9", "A" * 200])
def test_a_plain_name_is_accepted_unchanged(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", ".a", "a.", "a..b", "9a", "-a", "a\n", "a\x00", "ä", "a;drop table", "a" * 201, "a*", "a'", None, 5, b"a"],
)
def test_an_odd_name_is_refused_and_the_message_names_the_allowed_characters(name):
    with pytest.raises(InvalidName, match="not a valid task list: use letters"):
        check_name(name, "task list")


@pytest.mark.parametrize("key", ["k", "order 7", "ä/ö?", "x" * 512])
def test_a_key_is_any_printable_text(key):
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["", "a\n", "\x00", "x" * 513, None, 7, "\ud800"])
def test_an_invalid_key_is_refused(key):
    with pytest.raises(InvalidInput, match="unique key"):
        check_key(key, "unique key")


def test_a_short_name_is_the_part_after_the_last_dot():
    assert short_name("ns.sub.Charge") == "Charge"
    assert short_name("Charge") == "Charge"


def test_a_queue_is_identified_by_four_parts():
    assert QueueKey("n", "k", "l", "x") == ("n", "k", "l", "x")
    assert QueueKey._fields == ("namespace", "kind", "task_list", "name")


@pytest.mark.parametrize(
    ("patterns", "name", "expected"),
    [
        (["billing.Charge"], "billing.Charge", True),
        (["Charge"], "billing.Charge", True),
        (["billing.*"], "billing.Charge", True),
        (["billing.*"], "billing.eu.Charge", True),
        (["billing.*"], "Billing.Charge", False),
        (["*.Charge"], "Charge", False),
        (["*"], "anything.at/all", True),
        (["billing"], "billing.Charge", False),
        ([], "billing.Charge", False),
    ],
)
def test_a_name_is_handled_by_itself_its_short_name_or_a_glob(patterns: list[str], name: str, expected: bool) -> None:
    assert handles(patterns, name) is expected
    assert handles_by_name(patterns, name) is (expected and not any("*" in each for each in patterns))


@pytest.mark.parametrize("pattern", ["", "billing.?", "[a]", "a b", "billing..*", ".*", 7, None])
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidName):
        check_pattern(pattern)
