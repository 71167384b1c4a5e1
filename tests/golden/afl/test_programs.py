"""Wrong programs produce exactly the diagnostics that they must produce; right programs none."""

from __future__ import annotations

import pytest
from tests.golden.afl.programs import Case, read

from treadle.lang import compile_sources

WRONG, RIGHT = read("wrong.txt"), read("right.txt")


@pytest.mark.parametrize("case", WRONG, ids=[case.title for case in WRONG])
def test_a_wrong_program_produces_its_diagnostics_and_no_others(case: Case) -> None:
    result = compile_sources([("x.afl", case.text)])
    found = [(each.line, each.rule, str(each.severity)) for each in result.diagnostics]
    assert found == [(each.line, each.rule, "error" if each.error else "warning") for each in case.expected], result.render()
    for diagnostic, expected in zip(result.diagnostics, case.expected, strict=True):
        assert expected.part in diagnostic.message
        assert diagnostic.end_line > diagnostic.line or diagnostic.end_column > diagnostic.column


@pytest.mark.parametrize("case", RIGHT, ids=[case.title for case in RIGHT])
def test_a_right_program_produces_no_diagnostic(case: Case) -> None:
    result = compile_sources([("x.afl", case.text)])
    assert result.diagnostics == (), result.render()


def test_the_corpus_has_enough_valid_and_invalid_programs() -> None:
    assert len(WRONG) >= 80
    assert len(RIGHT) >= 80
