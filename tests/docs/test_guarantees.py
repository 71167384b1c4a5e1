"""The guarantees page names existing tests for each promise."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "guarantees.md").read_text("utf-8")
_FILE = r"(?:tests|conformance/treadle_conformance)/[\w/]+\.py"
_ID = re.compile(rf"\[`({_FILE})::(test_\w+)`\]\(\.\./\.\./({_FILE})\)")
_LOOSE = re.compile(rf"{_FILE}::\w+")
_TEST = re.compile(r"^ *(?:async )?def (test_\w+)\(", re.MULTILINE)
WITHOUT_TESTS = {"How often code runs"}
"""A table that summarises other promises."""


def promises() -> dict[str, str]:
    """Return the text under each promise, by heading."""
    section = PAGE.split("\n## Promises\n")[1].split("\n## ")[0]
    parts = re.split(r"^### (.+)$", section, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@cache
def names_in(file: str) -> frozenset[str]:
    """The names of the tests in a file, found without running it."""
    return frozenset(_TEST.findall((ROOT / file).read_text("utf-8")))


def test_promises_have_unique_names() -> None:
    headings = re.findall(r"^### (.+)$", PAGE, re.MULTILINE)
    assert len(headings) == len(set(headings)) > 20
    assert set(headings) == set(promises())


@pytest.mark.parametrize("name", sorted(set(promises()) - WITHOUT_TESTS))
def test_a_promise_names_its_faults_its_stores_and_tests_that_exist(name: str) -> None:
    said = promises()[name]
    assert "| faults | stores | shown by |" in said
    found = _ID.findall(said)
    assert found, "every promise needs a test"
    for file, test, target in found:
        assert file == target
        assert (ROOT / file).is_file(), file
        assert test in names_in(file), f"{file}::{test}"


def test_every_test_id_on_the_page_links_to_its_file() -> None:
    assert len(_LOOSE.findall(PAGE)) == len(_ID.findall(PAGE)) > 80


def test_the_page_states_its_exclusions_and_its_confidence() -> None:
    assert len(re.findall(r"^- \*\*", PAGE.split("\n## Not promised\n")[1].split("\n## ")[0], re.MULTILINE)) >= 10
    assert "\n## How sure we are\n" in PAGE
