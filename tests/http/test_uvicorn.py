"""The HTTP interface uses nothing private of uvicorn, so it needs no upper bound."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path

import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from treadle.interfaces.http.server import HeadGuard

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_installed_uvicorn_fits_and_has_no_upper_bound():
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    (declared,) = [each for each in map(Requirement, extras["http"]) if each.name == "uvicorn"]
    assert all(each.operator == ">=" for each in declared.specifier)
    assert uvicorn.__version__ in declared.specifier


async def test_a_guarded_connection_only_extends_methods_of_asyncio():
    async def app(scope: object, receive: object, send: object) -> None: ...

    protocol = HeadGuard(app, 1).protocol
    (extended,) = [kind for kind in protocol.__mro__ if AutoHTTPProtocol in kind.__bases__]
    overridden = {name for name in vars(extended) if hasattr(AutoHTTPProtocol, name) and not name.startswith("__")}
    assert overridden == {"connection_made", "data_received", "connection_lost"}
    assert all(hasattr(asyncio.Protocol, name) for name in overridden)


def test_a_server_leaves_signals_to_its_subclass():
    assert hasattr(uvicorn.Server, "capture_signals")
