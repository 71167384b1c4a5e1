"""How tests are distributed to processes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tests
from tests.distribution import TOGETHER

ROOT = Path(tests.__path__[0])


def test_tests_that_share_a_fixture_run_in_the_same_process():
    sharing = {
        path.relative_to(ROOT.parent).as_posix()
        for path in ROOT.rglob("test_*.py")
        if re.search(r'fixture\([^)]*(?<!loop_)scope="module"', path.read_text())
    }
    sharing |= {f"tests/lsp/{path.name}" for path in (ROOT / "lsp").glob("test_*.py") if "editor: Editor" in path.read_text()}
    assert {name for name in sharing if not name.startswith(TOGETHER)} == set()
    assert {name for name in TOGETHER if not (ROOT.parent / name).exists()} == set()


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
def test_a_module_that_cannot_be_imported_fails_the_run(tmp_path: Path):
    (tmp_path / "test_broken.py").write_text("import a_module_that_does_not_exist\n\n\ndef test_nothing():\n    pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    options = ["-q", "-n", "1", "-p", "tests.distribution", "--import-mode=importlib"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_broken.py"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    assert "a_module_that_does_not_exist" in result.stdout
