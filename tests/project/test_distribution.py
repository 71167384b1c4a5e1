"""How tests are selected, and distributed to processes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import tests

ROOT = Path(tests.__path__[0]).parent


def test_tests_that_share_a_fixture_run_in_the_same_process():
    sources = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    sharing = {path for path, source in sources.items() if re.search(r'fixture\([^)]*(?<!loop_)scope="module"', source)}
    sharing |= {path for path, source in sources.items() if path.parent.name == "lsp" and "editor: Editor" in source}
    sharing |= {path for path in sources if path.parent.name == "browser"}
    assert len(sharing) > 20
    assert [path.name for path in sharing if not re.search(r"xdist_group\(|= IN_BROWSER|\[IN_BROWSER", sources[path])] == []


def test_no_hook_marks_tests():
    """A reader of a test sees whether `make test` runs it: no list elsewhere says so, and no hook marks items."""
    marking = re.compile(r"^def pytest_collection_modify", re.MULTILINE)
    assert [path for path in (ROOT / "tests").rglob("*.py") if marking.search(path.read_text())] == []


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder below `tests`, as `make test` does."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", f"--rootdir={ROOT}", "-c", str(ROOT / "pyproject.toml")]
    return subprocess.run([*command, *options, str(folder)], cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_module_that_cannot_be_imported_fails_the_run(tmp_path: Path):
    (tmp_path / "test_broken.py").write_text("import a_module_that_does_not_exist\n\n\ndef test_nothing():\n    pass\n")
    result = run_pytest(tmp_path)
    assert result.returncode != 0
    assert "a_module_that_does_not_exist" in result.stdout


def test_the_last_line_counts_the_tests_that_were_left_out(tmp_path: Path):
    (tmp_path / "test_cases.py").write_text(
        """
import pytest
from tests.sizes import POSTGRES, left_out, sampled

@pytest.mark.parametrize("store", ["sqlite", POSTGRES])
def test_above_the_stores(store): assert store == "sqlite"

@pytest.mark.postgres
@pytest.mark.parametrize("store", ["sqlite", POSTGRES])
def test_on_both(store): assert store

@pytest.mark.parametrize("point", sampled(range(10)))
def test_at_every_point(point): assert point in (0, 4, 9)

@pytest.mark.soak
@pytest.mark.parametrize("store", ["sqlite", POSTGRES])
def test_full_size(store): assert not store
"""
    )
    makefile = (ROOT / "Makefile").read_text()
    (quick,) = re.findall(r"^QUICK := (.*)$", makefile, re.MULTILINE)
    result = run_pytest(tmp_path, "-p", "tests.conftest", "-m", quick)
    *_, numbers, last = result.stdout.splitlines()
    assert "6 passed" in numbers
    assert last == "left out: 10 tests (2 at full size, 7 similar cases, 1 on PostgreSQL); `make test-all` runs them"
    rest = run_pytest(tmp_path, "-p", "tests.conftest", "-m", f"not ({quick})", "--collect-only", "-n", "0")
    assert "10/16 tests collected" in rest.stdout
