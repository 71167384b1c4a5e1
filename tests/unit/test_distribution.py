"""How tests are distributed to processes."""

from __future__ import annotations

import re
from pathlib import Path

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
