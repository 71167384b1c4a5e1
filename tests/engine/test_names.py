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


def test_the_services_of_the_kernel_have_the_methods_that_the_reference_lists():
    section = (ROOT / "docs/reference/python.md").read_text().partition("## Services of `engine.kernel`\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \| (.+) \|$", section, re.MULTILINE)
    assert len(rows) > 8
    kernel = Engine("memory://").kernel
    for names, purpose in rows:
        services = [getattr(kernel, name) for name in re.findall(r"\w+", names)]
        methods = re.findall(r"`([a-z_]+)[`(]", purpose)
        assert [name for name in methods if not any(hasattr(service, name) for service in services)] == [], names


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'Engine' object has no attribute 'tokenz'"):
        Engine("memory://").tokenz  # noqa: B018
