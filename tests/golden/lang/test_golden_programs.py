"""Golden programs: what was compiled once stays the same, and old JSON can be loaded forever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.golden.lang.regenerate import HERE, golden

from treadle.lang import Program, digest_of

SOURCES = sorted(HERE.glob("*.afl"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_the_compiled_program_is_the_golden_one(path: Path) -> None:
    assert golden(path) == path.with_suffix(".json").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_golden_json_loads_and_has_its_digest(path: Path) -> None:
    stored = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert Program.load(stored["program"]).dump() == stored["program"]
    assert digest_of(_without_locations(stored["program"])) == stored["digest"]


def _without_locations(node: object) -> dict[str, object]:
    def strip(part: object) -> object:
        if isinstance(part, dict):
            return {key: strip(value) for key, value in part.items() if key != "location"}
        return [strip(each) for each in part] if isinstance(part, list) else part

    found = strip(node)
    assert isinstance(found, dict)
    return found
