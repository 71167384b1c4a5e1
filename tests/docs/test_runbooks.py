"""Runbooks: each has the same parts, and every alert leads to one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations" / "runbooks.md").read_text("utf-8")
SECTIONS = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])


def test_every_runbook_has_symptom_diagnosis_fix_verification_and_warnings():
    parts = ("**Symptom.**", "**Diagnosis.**", "**Fix.**", "**Verify.**", "**Do not**")
    assert len(SECTIONS) >= 10
    assert [(title, part) for title, text in SECTIONS.items() for part in parts if text.count(part) != 1] == []


def test_every_alert_leads_to_a_runbook():
    named = set(re.findall(r"runbooks\.md#([\w-]+)", (ROOT / "deploy" / "monitoring" / "rules.yaml").read_text("utf-8")))
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in SECTIONS}
    assert named
    assert named <= anchors
