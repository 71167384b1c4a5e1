"""The public names of `Engine`: few, documented, and with former names that still work."""

import re
from pathlib import Path

import pytest

from treadle import Engine
from treadle.engine.former_names import FormerNames

ROOT = Path(__file__).parents[2]
FORMER = sorted(FormerNames.__annotations__)


def test_an_engine_has_at_most_forty_two_public_names():
    assert len([name for name in dir(Engine("memory://")) if not name.startswith("_")]) <= 42


def test_every_public_name_is_documented():
    text = (ROOT / "docs/reference/python/engine.md").read_text()
    for name in dir(Engine("memory://")):
        assert name.startswith("_") or re.search(rf"\b{name}\b", text), name


@pytest.mark.parametrize("name", FORMER)
def test_a_former_name_works_and_is_not_listed(name: str):
    engine = Engine("memory://")
    places = (engine.kernel, engine.kernel.reads, engine.goals)
    assert any(getattr(engine, name) == getattr(place, name, None) for place in places)
    assert name not in dir(engine)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'Engine' object has no attribute 'tokenz'"):
        Engine("memory://").tokenz  # noqa: B018
