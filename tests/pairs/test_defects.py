"""Whether the pairs would have found defects that were found otherwise: each is planted again."""

from __future__ import annotations

import pytest
from tests.pairs.defects import FOUND_BY, Defect
from tests.pairs.features import PAIRS
from tests.pairs.story import play


@pytest.mark.parametrize("defect", FOUND_BY, ids=lambda defect: defect.__name__)
def test_a_planted_defect_is_found(defect: Defect, monkeypatch: pytest.MonkeyPatch) -> None:
    (pair,) = [pair for pair in PAIRS if str(pair) == FOUND_BY[defect]]
    assert play(pair.case()).problems == []
    defect(monkeypatch)
    assert play(pair.case()).problems
