"""The tree of routes finds the same route as trying all of them in order."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.routing import Match
from tests.http.conftest import Stage

from treadle.api.contract import PREFIX
from treadle.api.facade import all_calls
from treadle.interfaces.http.app import api_document, api_routes
from treadle.interfaces.http.routes import HttpRoute, RouteTable, contract_routes

ROUTES = contract_routes()
TABLE = RouteTable(ROUTES)
PATHS = [(call.route.method, PREFIX + re.sub(r"{\w+}", "claim", call.route.path)) for call in all_calls()]


def scope(method: str, path: str) -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path}


def slowly(method: str, path: str) -> tuple[object, dict[str, str]]:
    """The result of trying all routes one after the other."""
    for route in ROUTES:
        pattern = re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", route.path)
        if route.method == method and (found := re.fullmatch(pattern, path)):
            return route, found.groupdict()
    raise AssertionError(path)


@pytest.mark.parametrize(("method", "path"), PATHS, ids=[f"{method} {path}" for method, path in PATHS])
def test_routing_finds_the_same_route_as_a_linear_search(method: str, path: str):
    match, child = TABLE.matches(scope(method, path))
    assert match is Match.FULL
    assert (child["route"], child["path_params"]) == slowly(method, path)


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/tasks/x/y/z"), ("GET", "/"), ("GET", ""), ("GET", "/v1/nothing")])
def test_unknown_paths_match_no_route(method: str, path: str):
    assert TABLE.matches(scope(method, path)) == (Match.NONE, {})


def test_a_path_with_another_method_is_a_partial_match():
    assert TABLE.matches(scope("PATCH", "/v1/tasks"))[0] is Match.PARTIAL


def test_an_empty_segment_is_not_a_parameter():
    assert TABLE.matches(scope("GET", "/v1/tasks/"))[0] is Match.NONE


def test_a_method_that_a_fixed_path_lacks_is_found_at_the_path_with_a_parameter():
    async def handler(_: Any) -> Any: ...

    fixed, named = HttpRoute("POST", "/a/batch", handler), HttpRoute("GET", "/a/{id}", handler)
    match, child = RouteTable([fixed, named]).matches(scope("GET", "/a/batch"))
    assert (match, child["route"], child["path_params"]) == (Match.FULL, named, {"id": "batch"})


def test_encoded_slashes_belong_to_the_segment_and_plain_ones_to_a_rest():
    async def handler(_: Any) -> Any: ...

    table = RouteTable([HttpRoute("GET", "/a/{name}/b", handler), HttpRoute("GET", "/r/{rest:path}", handler)])
    raw = scope("GET", "/a/x/y/b") | {"raw_path": b"/a/x%2Fy/b?z=%2F"}
    assert table.matches(raw)[1]["path_params"] == {"name": "x/y"}
    assert table.matches(scope("GET", "/r/x/y"))[1]["path_params"] == {"rest": "x/y"}


async def test_wrong_methods_wrong_paths_and_trailing_slashes_are_answered(stage: Stage):
    async with stage.client() as client:
        assert (await client.patch("/v1/tasks")).json()["code"] == "method_not_allowed"
        assert (await client.get("/v1/nothing")).json()["code"] == "no_such_route"
        moved = await client.get("/v1/tasks/")
    assert (moved.status_code, moved.headers["Location"]) == (307, "http://127.0.0.1/v1/tasks")


def test_the_document_has_each_route_once():
    documented = [route for route in api_routes().routes if route.operation is not None]
    ids = [said["operationId"] for methods in api_document()["paths"].values() for said in methods.values()]
    assert len(ids) == len(set(ids)) == len(documented)
