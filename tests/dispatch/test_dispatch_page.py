"""The table of docs/reference/dispatch.md names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_page_names_exists():
    page = (ROOT / "docs" / "reference" / "dispatch.md").read_text("utf-8")
    text = "".join(path.read_text("utf-8") for path in (ROOT / "tests" / "dispatch").glob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 40
    assert [name for name in sorted(named) if f"def {name}(" not in text] == []
