"""GitHub's webhooks: only what GitHub signed is taken in, once for each delivery, and only what was asked for becomes a job."""

from __future__ import annotations

import copy
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treadle.dispatch import AgentCoordinator
from treadle.engine import Engine
from treadle.interfaces.http.app import make_app
from treadle.interfaces.http.ingest import is_signed
from treadle.interfaces.http.middleware import BODY_OVERHEAD
from treadle.model.access import Scope
from treadle.settings import Settings

SECRET = "a secret between us"
DELIVERY = "72d3162e-cc78-11e3-81ab-4c9367dc0958"
SETTINGS = Settings(store="memory://", github_secret=SECRET, github_labels=("agent", "please do"))

OPENED: dict[str, Any] = {
    "action": "opened",
    "issue": {
        "id": 2001,
        "number": 17,
        "title": "The shuttle gets stuck",
        "body": "It does. ✂",
        "labels": [{"id": 1, "name": "bug", "color": "f00"}, {"id": 2, "name": "please do"}],
        "user": {"login": "ada"},
    },
    "repository": {
        "id": 5,
        "name": "loom",
        "full_name": "weavers/loom",
        "owner": {"login": "weavers", "id": 9},
        "clone_url": "https://github.example/weavers/loom.git",
        "default_branch": "main",
        "private": True,
    },
    "installation": {"id": 77, "node_id": "x"},
    "sender": {"login": "ada"},
}


class Hub:
    """GitHub, as far as it matters."""

    def __init__(self, engine: Engine, client: httpx.AsyncClient) -> None:
        self.engine = engine
        self.client = client

    async def send(
        self, body: Any, *, event: str = "issues", delivery: str = DELIVERY, signature: str | None = None
    ) -> httpx.Response:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"X-GitHub-Event": event, "X-GitHub-Delivery": delivery, "Content-Type": "application/json"}
        headers["X-Hub-Signature-256"] = sign(raw) if signature is None else signature
        return await self.client.post("/v1/ingest/github", content=raw, headers=headers)

    async def jobs(self) -> int:
        return len(await AgentCoordinator(self.engine).get_all_tasks())


def sign(body: bytes) -> str:
    return "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()


def changed(*path: str | int, to: Any) -> dict[str, Any]:
    made = copy.deepcopy(OPENED)
    place: Any = made
    for each in path[:-1]:
        place = place[each]
    place[path[-1]] = to
    return made


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    """A server that needs tokens; GitHub has none."""
    async with Engine(settings=SETTINGS) as engine:
        await engine.kernel.tokens.create("ada", [Scope.ADMIN])
        transport = httpx.ASGITransport(make_app(engine))
        async with httpx.AsyncClient(transport=transport, base_url="https://work.example.org") as client:
            yield Hub(engine, client)


async def test_an_issue_becomes_a_typed_job_once_for_each_delivery(hub: Hub):
    first = await hub.send(OPENED)
    assert (first.status_code, first.json()["created"]) == (202, True)
    again = await hub.send(OPENED)
    assert (again.status_code, again.json()) == (200, {"task_id": first.json()["task_id"], "created": False})
    (job,) = await AgentCoordinator(hub.engine).get_all_tasks()
    assert (job.id, job.status, job.issue.number, job.issue.title) == (
        again.json()["task_id"],
        "pending",
        17,
        "The shuttle gets stuck",
    )
    assert [label.name for label in job.issue.labels] == ["bug", "please do"]
    assert job.issue.repository.full_name == "weavers/loom"
    assert job.issue.installation is not None
    assert job.issue.installation.id == 77
    assert job.metadata == {"source": "github", "delivery": DELIVERY, "action": "opened"}
    assert (await hub.engine.kernel.reads.get_task(job.id)).trace_id == DELIVERY


async def test_a_repeated_delivery_is_the_same_task_even_after_that_ended(hub: Hub):
    first = (await hub.send(OPENED)).json()["task_id"]
    async with AgentCoordinator(hub.engine) as coordinator:
        job = await coordinator.dequeue("worker-1")
        assert job is not None
        await coordinator.update_status(job.id, "completed")
    again = await hub.send(OPENED)
    assert (again.status_code, again.json()["task_id"]) == (200, first)
    reopened = await hub.send(OPENED | {"action": "reopened"}, delivery="another")
    assert reopened.status_code == 202
    assert reopened.json()["task_id"] != first


async def test_a_body_replayed_under_another_delivery_id_creates_no_job(hub: Hub):
    first = (await hub.send(OPENED)).json()["task_id"]
    async with AgentCoordinator(hub.engine) as coordinator:
        job = await coordinator.dequeue("worker-1")
        assert job is not None
        await coordinator.update_status(job.id, "completed")
    replayed = await hub.send(OPENED, delivery="another")
    assert (replayed.status_code, replayed.json()) == (200, {"task_id": first, "created": False})
    assert await hub.jobs() == 1


async def test_an_issue_opened_with_a_label_is_one_job_despite_two_deliveries(hub: Hub):
    first = await hub.send(OPENED)
    second = await hub.send(OPENED | {"action": "labeled", "label": {"name": "please do"}}, delivery="another")
    assert (second.status_code, second.json()["task_id"]) == (200, first.json()["task_id"])
    assert await hub.jobs() == 1


@pytest.mark.parametrize(
    "webhook",
    [
        changed("issue", "labels", to=[{"name": "bug"}]),
        changed("issue", "labels", to=[]),
        changed("action", to="closed"),
        changed("action", to="edited"),
        OPENED | {"action": "labeled", "label": {"name": "bug"}},
        OPENED | {"action": "labeled"},
    ],
    ids=["other label", "no label", "closed", "edited", "labeled with another", "labeled with nothing"],
)
async def test_unrequested_events_create_no_jobs(hub: Hub, webhook: dict[str, Any]):
    answer = await hub.send(webhook)
    assert (answer.status_code, answer.content) == (204, b"")
    assert await hub.jobs() == 0


async def test_other_events_are_ignored_and_a_ping_is_answered(hub: Hub):
    assert (await hub.send(OPENED, event="issue_comment")).status_code == 204
    pong = await hub.send({"zen": "Keep it logically awesome."}, event="ping")
    assert (pong.status_code, pong.json()) == (200, {"pong": True})
    assert await hub.jobs() == 0


@pytest.mark.parametrize(
    "signature",
    [
        "",
        "sha256=",
        sign(b"another body"),
        sign(json.dumps(OPENED).encode())[7:],
        sign(json.dumps(OPENED).encode()).upper(),
        "sha1=0",
    ],
    ids=["none", "empty", "of another body", "without its kind", "upper case", "sha1"],
)
@pytest.mark.parametrize("event", ["issues", "ping"])
async def test_invalid_signatures_are_rejected_with_the_same_message(hub: Hub, signature: str, event: str):
    answer = await hub.send(OPENED, signature=signature, event=event)
    assert (answer.status_code, answer.json()["code"]) == (403, "signature_refused")
    assert SECRET not in answer.text
    assert await hub.jobs() == 0


async def test_a_token_does_not_stand_in_for_the_signature(hub: Hub):
    secret = (await hub.engine.kernel.tokens.create("bob", [Scope.ADMIN])).secret
    hub.client.headers["Authorization"] = f"Bearer {secret}"
    assert (await hub.send(OPENED, signature="sha256=0")).status_code == 403


async def test_a_signature_with_invalid_characters_is_rejected():
    assert not is_signed(SECRET, b"", "sha256=\udcff\u2713")


@pytest.mark.parametrize("delivery", ["", "x" * 600], ids=["none", "too long"])
async def test_a_delivery_needs_an_id(hub: Hub, delivery: str):
    assert (await hub.send(OPENED, delivery=delivery)).status_code == 422


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_input"),
        (b"payload=%7B%7D", "invalid_input"),
        (b"\xff\xfe", "invalid_input"),
        (b'{"issue":{"x":' + b"[" * 5000, "invalid_input"),
        (b"[]", "invalid_issue"),
        (b"{}", "invalid_issue"),
        (changed("issue", to=[]), "invalid_issue"),
        (changed("issue", "id", to="2001"), "invalid_issue"),
        (changed("issue", "title", to=""), "invalid_issue"),
        (changed("repository", "full_name", to="loom"), "invalid_issue"),
        (changed("issue", "body", to="a\x00b"), "invalid_payload"),
    ],
)
async def test_malformed_bodies_are_refused(hub: Hub, body: Any, code: str):
    answer = await hub.send(body)
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert await hub.jobs() == 0


async def test_oversized_bodies_are_refused(hub: Hub):
    limit = hub.engine.kernel.settings.payload_limit
    big = await hub.send(b"x" * (limit + BODY_OVERHEAD + 1))
    assert (big.status_code, big.json()["code"]) == (413, "payload_too_large")
    large = await hub.send(changed("issue", "body", to="x" * limit))
    assert (large.status_code, large.json()["code"]) == (413, "payload_too_large")


async def test_without_a_secret_no_delivery_is_accepted():
    async with Engine(settings=replace(SETTINGS, github_secret="")) as engine:
        transport = httpx.ASGITransport(make_app(engine, open_access=True))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            answer = await Hub(engine, client).send(OPENED, signature="sha256=" + hmac.new(b"", b"", hashlib.sha256).hexdigest())
    assert (answer.status_code, answer.json()["code"]) == (409, "github_not_configured")
    assert "TREADLE_GITHUB_SECRET" in answer.json()["detail"]


async def test_without_labels_every_issue_is_a_job_but_a_label_makes_none():
    async with Engine(settings=replace(SETTINGS, github_labels=())) as engine:
        transport = httpx.ASGITransport(make_app(engine, open_access=True))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            hub = Hub(engine, client)
            assert (await hub.send(OPENED | {"action": "labeled", "label": {"name": "bug"}})).status_code == 204
            assert (await hub.send(changed("issue", "labels", to=[]), delivery="b")).status_code == 202


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
_paths = st.sampled_from(
    [
        tuple(int(part) if part.isdigit() else part for part in path.split("."))
        for path in [
            "action",
            "issue",
            "repository",
            "installation",
            "label",
            "issue.id",
            "issue.number",
            "issue.title",
            "issue.body",
            "issue.labels",
            "issue.labels.0",
            "issue.labels.1.name",
            "repository.id",
            "repository.owner",
            "repository.clone_url",
            "installation.id",
        ]
    ]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.binary(max_size=200) | _json | st.builds(lambda path, to: changed(*path, to=to), _paths, _json), labeled=st.booleans()
)
async def test_every_signed_webhook_gets_a_documented_status(hub: Hub, body: Any, labeled: bool):
    if labeled and isinstance(body, dict) and "action" in body:
        body = body | {"action": "labeled", "label": {"name": "agent"}}
    answer = await hub.send(body)
    assert answer.status_code in (200, 202, 204, 413, 422), answer.text
