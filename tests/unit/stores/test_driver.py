"""The private API of asyncpg that the PostgreSQL store uses: a new version of the driver fails here, with the reason."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path

import asyncpg
from packaging.requirements import Requirement

WHERE = "treadle.stores.postgres.connection.connect.Connection._introspect_types caches the lookup of built-in types."


def test_the_driver_looks_up_types_as_the_store_expects() -> None:
    method = getattr(asyncpg.Connection, "_introspect_types", None)
    assert method is not None, f"asyncpg {asyncpg.__version__} has no Connection._introspect_types any more. {WHERE}"
    assert inspect.iscoroutinefunction(method), f"asyncpg {asyncpg.__version__}: _introspect_types is not a coroutine. {WHERE}"
    parameters = list(inspect.signature(method).parameters)
    assert parameters == ["self", "typeoids", "timeout"], f"asyncpg {asyncpg.__version__}: {parameters}. {WHERE}"
    callers = inspect.getsource(asyncpg.Connection)
    used = "types, intro_stmt = await self._introspect_types("
    assert used in callers, f"asyncpg {asyncpg.__version__} uses the result of _introspect_types differently. {WHERE}"


def test_the_version_of_the_driver_has_an_upper_bound() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (requirement,) = (Requirement(each) for each in project["optional-dependencies"]["postgres"])
    assert asyncpg.__version__ in requirement.specifier
    assert any(each.operator == "<" for each in requirement.specifier), "A new asyncpg must pass this file before it is allowed."
