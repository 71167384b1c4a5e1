"""The OpenAPI document is complete, and what it says is so."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.http.conftest import Stage

from treadle.api.contract import PREFIX, Call
from treadle.api.facade import all_calls
from treadle.interfaces.http.app import api_document
from treadle.interfaces.http.docs_page import page
from treadle.interfaces.http.problems import DOCUMENTED, problem
from treadle.model.access import Scope

DOCUMENT = api_document()
CALLS = all_calls()
OWN = {
    "external_jobs_call_back",
    "ingest_github",
    "server_health",
    "server_live",
    "server_status",
    "server_metrics",
    "events_stream",
    "streams_follow",
    "session_log_in",
    "session_log_out",
    "session_show",
    "session_sign_in",
}


def said(call: Call) -> dict[str, Any]:
    return DOCUMENT["paths"][f"{PREFIX}{call.route.path}"][call.route.method.lower()]


def test_every_call_of_the_contract_and_every_route_of_the_server_is_in_it():
    found = {said["operationId"] for methods in DOCUMENT["paths"].values() for said in methods.values()}
    assert found == {call.id for call in CALLS} | OWN
    assert len(CALLS) == len({(call.route.method, call.route.path) for call in CALLS})


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.id)
def test_a_call_documents_its_scope_problems_and_parameters(call: Call):
    here = said(call)
    assert here["x-scope"] == str(call.route.scope)
    assert call.doc
    assert set(here["responses"]) == {str(status) for status in (call.route.status, *DOCUMENTED, *call.route.problems)}
    assert all(parameter.doc.text for parameter in (*call.path, *call.others)), "every parameter says something"
    headers = [each["name"] for each in here.get("parameters", ()) if each["in"] == "header"]
    assert ("Idempotency-Key" in headers) is (call.keyed or call.route.creates)


def test_every_answer_is_a_record_with_a_schema():
    schemas = DOCUMENT["components"]["schemas"]
    text = json.dumps(DOCUMENT)
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in schemas
    for path, methods in DOCUMENT["paths"].items():
        for described in methods.values():
            if described["tags"][0] not in ("server", "session", "events") and not path.endswith("/follow"):
                answer = next(each for status, each in described["responses"].items() if status < "300")
                media = next(iter(answer["content"].values()))
                assert media["schema"]["$ref"].rpartition("/")[2] in schemas


def objects_in(part: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas of objects in a part of the document, with their places."""
    if isinstance(part, dict):
        if part.get("type") == "object":
            yield path, part
        for name, value in part.items():
            yield from objects_in(value, f"{path}/{name}")
    elif isinstance(part, list):
        for index, value in enumerate(part):
            yield from objects_in(value, f"{path}/{index}")


def test_free_form_objects_may_have_any_field_and_bodies_no_others():
    objects = dict(objects_in(DOCUMENT))
    closed = [place for place, schema in objects.items() if "properties" not in schema and not schema.get("additionalProperties")]
    assert closed == []
    payload = DOCUMENT["components"]["schemas"]["TasksEnqueue"]["properties"]["payload"]["anyOf"][0]
    assert payload == {"type": "object", "additionalProperties": True}
    assert DOCUMENT["components"]["schemas"]["TasksEnqueue"]["additionalProperties"] is False


def test_it_declares_its_server_and_every_tag_with_a_description():
    assert [server["url"] for server in DOCUMENT["servers"]] == ["/"]
    used = {tag for methods in DOCUMENT["paths"].values() for described in methods.values() for tag in described["tags"]}
    assert {tag["name"] for tag in DOCUMENT["tags"] if tag["description"]} == used


def test_no_example_looks_like_a_secret():
    text = json.dumps(DOCUMENT)
    assert "tdl_" not in text
    assert "tds_" not in text


async def test_the_example_of_every_body_fits(stage: Stage):
    async with stage.client() as client:
        for call in CALLS:
            if call.in_query or not call.others:
                continue
            body = said(call)["requestBody"]["content"]["application/json"]["schema"]
            name = next(each["$ref"] for each in body.get("anyOf", [body]) if "$ref" in each).rpartition("/")[2]
            (example,) = DOCUMENT["components"]["schemas"][name]["examples"]
            path = PREFIX + call.route.path
            for parameter in call.path:
                path = path.replace(f"{{{parameter.name}}}", str(parameter.doc.example or "x"))
            answer = await client.request(call.route.method, path, json=example)
            assert answer.status_code < 500
            if answer.status_code >= 300:
                assert answer.json()["code"] != "invalid_request", f"{call.id}: its parameters need examples: {answer.text}"


async def test_the_document_and_the_page_need_no_token_and_no_other_host(stage: Stage):
    await stage.token(Scope.ADMIN)
    async with stage.client() as client:
        served = await client.get("/v1/openapi.json")
        shown = await client.get("/v1/docs")
    assert served.json()["paths"].keys() == DOCUMENT["paths"].keys()
    assert (shown.status_code, shown.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert shown.text == page(served.json())
    assert not any(word in shown.text for word in ("<script", "http://", "https://", "src=", "@import", "url("))
    for call in CALLS:
        assert f"{call.route.method} {PREFIX}{call.route.path}" in shown.text


async def test_status_and_metrics_are_for_readers(closed: Stage):
    reader, worker = await closed.token(Scope.READ, name="reader"), await closed.token(Scope.WORK, name="worker")
    restricted = await closed.token(Scope.READ, name="restricted", task_lists=["one"])
    async with closed.shown(reader) as client:
        assert (await client.get("/status")).json().keys() == (await client.get("/v1/status")).json().keys()
        text = await client.get("/metrics")
        assert (text.status_code, text.headers["Content-Type"].partition(";")[0]) == (200, "text/plain")
        assert "treadle_" in text.text
    for secret in (worker, restricted):
        async with closed.shown(secret) as client:
            assert (await client.get("/status")).status_code == (await client.get("/metrics")).status_code == 403
    async with closed.client() as client:
        assert (await client.get("/status")).status_code == (await client.get("/metrics")).status_code == 401


async def test_without_the_package_metrics_are_not_implemented(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "treadle.engine.metrics", raising=False)
    async with stage.client() as client:
        answer = await client.get("/metrics")
    assert (answer.status_code, answer.json()["code"]) == (501, "missing_dependency")


def test_a_problem_fits_its_schema():
    body = json.loads(bytes(problem(403, "forbidden", "x", scope="read").body))
    assert body.keys() <= DOCUMENT["components"]["schemas"]["ProblemDetails"]["properties"].keys()
