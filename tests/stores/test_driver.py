"""The PostgreSQL store uses the public API of asyncpg only, so that no new version of the driver is excluded."""

from __future__ import annotations

import tomllib
from pathlib import Path

import asyncpg
from packaging.requirements import Requirement

from treadle.stores.postgres.connection.connect import PostgresConnection


def test_no_private_name_of_the_driver_is_overridden() -> None:
    own = {name for name in vars(PostgresConnection) if name.startswith("_") and not name.startswith("__")}
    assert not own & set(dir(asyncpg.Connection))


def test_the_version_of_the_driver_has_no_upper_bound() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (requirement,) = (Requirement(each) for each in project["optional-dependencies"]["postgres"])
    assert asyncpg.__version__ in requirement.specifier
    assert not any(each.operator.startswith("<") for each in requirement.specifier)
