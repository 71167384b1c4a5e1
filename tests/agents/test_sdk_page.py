"""The table of docs/reference/agent-sdk.md names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_page_names_exists():
    page = (ROOT / "docs" / "reference" / "agent-sdk.md").read_text("utf-8")
    text = "".join(path.read_text("utf-8") for path in (ROOT / "tests" / "agents").glob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 30
    assert [name for name in sorted(named) if f"def {name}(" not in text] == []
    assert all((ROOT / "tests" / "agents" / file).exists() for file in re.findall(r"`(test_\w+\.py)`", page))
