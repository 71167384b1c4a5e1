"""The public names of `Engine`: few and documented."""

import re
from pathlib import Path

import pytest

from treadle import Engine

ROOT = Path(__file__).parents[2]


def test_an_engine_has_at_most_forty_two_public_names():
    assert len([name for name in dir(Engine("memory://")) if not name.startswith("_")]) <= 42


def test_every_public_name_is_documented():
    text = (ROOT / "docs/reference/python/engine.md").read_text()
    for name in dir(Engine("memory://")):
        assert name.startswith("_") or re.search(rf"\b{name}\b", text), name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'Engine' object has no attribute 'tokenz'"):
        Engine("memory://").tokenz  # noqa: B018
