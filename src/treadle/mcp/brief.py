"""AFL in brief, for models: one page with examples that compile."""

from __future__ import annotations

from pathlib import Path

BRIEF = Path(__file__).with_name("brief.md").read_text("utf-8")
