"""Globs on names of files: what they match, and that no glob takes long."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.model.errors import InvalidWatcher
from treadle.model.watchers import compile_pattern


def matches(pattern: str, name: str, *, recursive: bool = False) -> bool:
    return compile_pattern(pattern, recursive=recursive).fullmatch(name) is not None


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("*.csv", "a.csv", True),
        ("*.csv", "in/a.csv", False),
        ("*", ".hidden", False),
        ("**/*.csv", "a.csv", True),
        ("**/*.csv", "in/deep/a.csv", True),
        ("**/*.csv", ".in/a.csv", False),
        ("in/**", "in/a/b", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("[!a]x", "bx", True),
        ("[!a]x", "ax", False),
        ("[!a]x", "/x", False),
        ("[[]x", "[x", True),
        ("[a&&b]", "&", True),
        ("[a", "[a", True),
        ("a*b*c", "a1b2b3c", True),
        ("a*b*c", "a1b2b3", False),
        ("*a", "a", True),
        ("***", "abc", True),
    ],
)
def test_a_glob_matches_names_by_its_wildcards(pattern: str, name: str, expected: bool):
    assert matches(pattern, name) is expected


def test_a_single_part_glob_matches_at_every_depth_on_request():
    assert matches("*.csv", "in/deep/a.csv", recursive=True)


@pytest.mark.parametrize("pattern", ["", "/a", "../a", "a" * 1001, "**/a/" * 5 + "b", "[z-a]", "[a--b]"])
def test_an_invalid_glob_is_refused(pattern: str):
    with pytest.raises(InvalidWatcher):
        compile_pattern(pattern)


def test_a_glob_of_many_stars_ends_soon_on_a_long_name():
    assert not matches("a*" * 400 + "b", "a" * 255)


@given(st.text("ab*?.", min_size=1, max_size=8), st.text("ab.", max_size=8))
def test_greedy_matching_of_globs_loses_no_match(pattern: str, name: str):
    if pattern in ("**", ".."):
        return
    letters = {"*": "[^/]*", "?": "[^/]"}
    plain = "".join(letters.get(letter, re.escape(letter)) for letter in pattern)
    hides = pattern[0] in "*?" and name.startswith(".")
    assert matches(pattern, name) is (not hides and re.fullmatch(plain, name) is not None)
