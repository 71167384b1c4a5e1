"""Engines under test: the URLs of empty databases of each kind, and settings that do not read the environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tests.contract.databases import new_file
from tests.sizes import MEMORY, POSTGRES

from treadle import Engine
from treadle.kernel.store.database import Port
from treadle.kernel.store.ports import Store
from treadle.model.clock import Clock
from treadle.model.errors import StoreUnavailable
from treadle.settings import Settings
from treadle.stores import make_store

SHARED = ("sqlite", POSTGRES)
"""Databases that several engines can use at once."""

ALL = (MEMORY, *SHARED)


def url_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database that nobody has used."""
    match kind:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{new_file(request, tmp_path)}"
        case _:
            return str(request.getfixturevalue("postgres_url"))


def make_engine(url: str, **settings: Any) -> Engine:
    return Engine(url, settings=Settings(**settings))


class WrappedPort:
    """A port of a store whose methods are wrapped."""

    def __init__(self, inner: Any, wrap: Callable[[str, Any], Any]) -> None:
        self._inner, self._wrap = inner, wrap

    def __getattr__(self, name: str) -> Any:
        return self._wrap(name, getattr(self._inner, name))


def port_of(member: Any, wrap: Callable[[str, Any], Any]) -> WrappedPort | None:
    """The attribute of a store with wrapped methods, if it is a port."""
    return WrappedPort(member, wrap) if isinstance(member, Port) else None


class Refusing:
    """A store that refuses so many calls of some of its methods; `refusals` are those still to come."""

    def __init__(self, **counts: int) -> None:
        self.refusals = [name for name, count in counts.items() for _ in range(count)]
        self._inner: Any = None

    def store_of(self, url: str, clock: Clock) -> Store:
        self._inner = make_store(url, clock)
        return cast("Store", self)

    def __getattr__(self, name: str) -> Any:
        return port_of(getattr(self._inner, name), self._wrap) or self._wrap(name, getattr(self._inner, name))

    def _wrap(self, name: str, method: Any) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            if name in self.refusals:
                self.refusals.remove(name)
                raise StoreUnavailable("The store cannot be reached.")
            return await method(*arguments, **options)

        return call if name in self.refusals else method
