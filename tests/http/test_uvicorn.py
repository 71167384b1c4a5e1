"""The private parts of uvicorn that the HTTP interface uses still exist; if not, a test names the missing one."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import tomllib
from pathlib import Path

import pytest
import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.server import ServerState

from treadle.interfaces.http.connections import connections

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
ADAPT = (
    f"uvicorn {uvicorn.__version__} has changed: adapt src/treadle/interfaces/http/connections.py, run tests/http/test_server.py, "
    "and raise the upper bound of uvicorn in pyproject.toml"
)


def test_the_installed_uvicorn_is_within_the_declared_bounds():
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    (declared,) = [each for each in map(Requirement, extras["http"]) if each.name == "uvicorn"]
    assert any(each.operator == "<" for each in declared.specifier), "its protocol is private, so it needs an upper bound"
    assert uvicorn.__version__ in declared.specifier, ADAPT


async def test_a_connection_has_the_attributes_that_are_used():
    async def app(scope: object, receive: object, send: object) -> None: ...

    made = connections()(config=uvicorn.Config(app, lifespan="off"), server_state=ServerState(), app_state={})  # type: ignore[call-arg]
    assert isinstance(made, AutoHTTPProtocol), ADAPT
    assert isinstance(made, asyncio.Protocol), ADAPT
    for name in ("cycle", "transport"):
        assert hasattr(made, name), f"the attribute `{name}` of its HTTP protocol is gone; {ADAPT}"


@pytest.mark.parametrize("module", ["h11_impl", "httptools_impl"])
def test_a_request_cycle_has_the_attributes_that_are_used(module: str):
    try:
        found = importlib.import_module(f"uvicorn.protocols.http.{module}")
    except ModuleNotFoundError:
        pytest.skip("this parser is not installed")
    source = inspect.getsource(found.RequestResponseCycle.__init__)
    for name in ("response_complete", "more_body"):
        assert f"self.{name}" in source, f"the attribute `{name}` of its request cycle is gone; {ADAPT}"


def test_a_server_leaves_signals_to_its_subclass():
    assert hasattr(uvicorn.Server, "capture_signals"), f"the method `capture_signals` of its server is gone; {ADAPT}"
