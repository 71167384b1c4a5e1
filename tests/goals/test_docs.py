"""The table from the protocol's sentences to tests names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "goal-pipeline.md"


def test_every_test_that_the_reference_names_exists():
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    places = ("tests/goals/test_protocol.py", "tests/crash/test_goals.py")
    defined = {name for place in places for name in re.findall(r"def (test_\w+)", (ROOT / place).read_text())}
    assert len(named) > 25
    assert named <= defined


def test_every_test_of_the_protocol_is_in_the_reference_or_exempt():
    text = (ROOT / "tests/goals/test_protocol.py").read_text()
    missing = set(re.findall(r"def (test_\w+)", text)) - set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    assert missing == {"test_workorders_carry_the_fields_of_their_artifacts"}


def test_every_file_that_the_reference_names_exists():
    for place in set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE.read_text())):
        assert (ROOT / place).exists()
