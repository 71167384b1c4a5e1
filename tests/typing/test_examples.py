"""The type checkers report every planted mistake of the typed examples, and nothing in correct code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "tests/typing/examples.py"
SNIPPETS = ["docs/snippets/first_task.py", *map(str, sorted((ROOT / "docs/snippets/tutorial").glob("*.py")))]
PLANTED = {number for number, line in enumerate(EXAMPLES.read_text().splitlines(), 1) if line.endswith("# E")}


def test_mypy_reports_exactly_the_planted_mistakes() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(EXAMPLES), *SNIPPETS]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "docs/snippets" not in found.stdout, found.stdout
    assert _reported(re.findall(r"^tests/typing/examples\.py:(\d+): error: (.*)$", found.stdout, re.MULTILINE)), found.stderr


def test_services_perform_the_operations_with_the_declared_types() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "tests/typing/services.py"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_pyright_reports_exactly_the_planted_mistakes(tmp_path: Path) -> None:
    pytest.importorskip("basedpyright")
    settings = {
        "include": [str(EXAMPLES)],
        "extraPaths": [str(ROOT / "src")],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
    }
    settings |= {"reportUnusedFunction": False, "reportPrivateUsage": False, "reportUnusedCoroutine": False}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    diagnostics = [each for each in json.loads(found.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    assert _reported([(str(each["range"]["start"]["line"] + 1), each["message"]) for each in diagnostics]), found.stderr


def _reported(found: list[tuple[str, str]]) -> bool:
    """Compare the lines of the messages with the planted ones; several messages may concern one line."""
    lines = {int(line): message for line, message in found}
    wrong = {line: message for line, message in lines.items() if line not in PLANTED}
    assert not wrong, f"errors in correct code: {wrong}"
    assert lines.keys() >= PLANTED, f"mistakes not reported at lines {sorted(PLANTED - lines.keys())}"
    return True
