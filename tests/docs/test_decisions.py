"""Decisions that code and tests cite by number are recorded, with a reason."""

from __future__ import annotations

import re
from pathlib import Path

from build_tools import prose

ROOT = Path(__file__).parents[2]
RECORD = (ROOT / "docs/adr/decisions.md").read_text(encoding="utf-8")


def test_every_cited_decision_is_recorded() -> None:
    recorded = set(re.findall(r"^### (D\d+)$", RECORD, re.MULTILINE))
    cited: dict[str, str] = {}
    for folder in ("src", "tests", "bench", "docs"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".md", ".sql"}:
                cited |= dict.fromkeys(re.findall(r"\b(D[1-9]\d?)\b", path.read_text(encoding="utf-8")), str(path))
    assert cited
    assert not {number: path for number, path in cited.items() if number not in recorded}


def test_every_decision_has_a_reason() -> None:
    entries = re.split(r"^### D\d+$", RECORD, flags=re.MULTILINE)[1:]
    assert len(entries) > 50
    assert all(entry.count("*Why:*") == 1 for entry in entries)


def test_the_prose_check_finds_question_words_and_gerunds(tmp_path: Path) -> None:
    package = tmp_path / "src/treadle"
    package.mkdir(parents=True)
    (package / "looking.py").write_text('"""Scan files."""\n\n\ndef scan():\n    """What a scan found."""\n')
    (package / "scan.py").write_text('"""Scan files, whatever they are."""\n')
    found = list(prose.violations(tmp_path))
    assert len(found) == 2
    assert "'looking' is a gerund" in found[0]
    assert "looking.py:5" in found[1]
