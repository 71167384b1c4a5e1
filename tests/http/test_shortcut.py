"""The shortcut to routes comes to the same as trying all of them in order."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.routing import Match
from tests.http.conftest import Stage

from treadle.api.contract import PREFIX
from treadle.api.facade import all_calls
from treadle.engine import Engine
from treadle.http.app import make_app
from treadle.http.routes import contract_router
from treadle.http.shortcut import Shortcut

ROUTES = contract_router().routes
SHORTCUT = Shortcut(ROUTES)
PATHS = [(call.route.method, PREFIX + re.sub(r"{\w+}", "claim", call.route.path)) for call in all_calls()]


def scope(method: str, path: str) -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path}


def slowly(method: str, path: str) -> tuple[object, dict[str, Any]]:
    """What trying all routes one after the other comes to."""
    for route in ROUTES:
        match, child = route.matches(scope(method, path))
        if match is Match.FULL:
            return route, child["path_params"]
    raise AssertionError(path)


@pytest.mark.parametrize(("method", "path"), PATHS, ids=[f"{method} {path}" for method, path in PATHS])
def test_each_route_is_found_as_if_all_were_tried(method: str, path: str):
    match, child = SHORTCUT.matches(scope(method, path))
    assert match is Match.FULL
    assert (child["route"], child["path_params"]) == slowly(method, path)


@pytest.mark.parametrize(
    ("method", "path"), [("PATCH", "/v1/tasks"), ("GET", "/v1/tasks/x/y/z"), ("GET", "/"), ("GET", ""), ("GET", "/v1/nothing")]
)
def test_what_it_does_not_find_is_left_to_the_others(method: str, path: str):
    assert SHORTCUT.matches(scope(method, path)) == (Match.NONE, {})


async def test_wrong_methods_and_wrong_paths_are_answered_as_before(stage: Stage):
    async with stage.client() as client:
        assert (await client.patch("/v1/tasks")).json()["code"] == "method_not_allowed"
        assert (await client.get("/v1/nothing")).json()["code"] == "no_such_route"


def test_the_document_has_each_route_once():
    document = make_app(Engine("memory://")).openapi()
    ids = [said["operationId"] for methods in document["paths"].values() for said in methods.values()]
    assert len(ids) == len(set(ids))
