"""`Idempotency-Key` on calls that have no key of their own."""

from __future__ import annotations

from tests.http.conftest import Stage

from treadle.model.access import Scope

BATCH = "/v1/tasks/batch"
BODY = {"tasks": [{"name": "greet"}, {"name": "greet"}]}
KEY = {"Idempotency-Key": "k"}


async def count(stage: Stage) -> int:
    return len(await stage.engine.kernel.reads.list_tasks(kind="handler", limit=100))


async def test_a_repeated_request_is_replayed_without_creating_a_task(stage: Stage):
    async with stage.client() as client:
        first = await client.post(BATCH, json=BODY, headers=KEY)
        again = await client.post(BATCH, json=BODY, headers=KEY)
    assert (first.status_code, "Idempotency-Replayed" in first.headers) == (201, False)
    assert (again.status_code, again.headers["Idempotency-Replayed"]) == (201, "true")
    assert (again.content, again.headers["Content-Type"]) == (first.content, first.headers["Content-Type"])
    assert await count(stage) == 2


async def test_without_a_key_a_repeated_request_is_executed_again(stage: Stage):
    async with stage.client() as client:
        for _ in range(2):
            await client.post(BATCH, json=BODY)
    assert await count(stage) == 4


async def test_the_key_with_another_body_is_refused(stage: Stage):
    async with stage.client() as client:
        await client.post(BATCH, json=BODY, headers=KEY)
        answer = await client.post(BATCH, json={"tasks": [{"name": "other"}]}, headers=KEY)
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")


async def test_a_rejected_request_can_be_corrected_under_the_same_key(stage: Stage):
    async with stage.client() as client:
        for wrong in ({"tasks": [{"name": "not a name"}]}, {"tasks": 3}):
            assert (await client.post(BATCH, json=wrong, headers=KEY)).status_code == 422
        assert (await client.post(BATCH, json=BODY, headers=KEY)).status_code == 201


async def test_a_concurrent_request_with_the_same_key_gets_retry_after(stage: Stage):
    request = b"\n".join([b"POST", BATCH.encode(), b"", b'{"tasks":[]}'])
    await stage.engine.kernel.requests.begin("local", "tasks_enqueue_many", "k", request)
    async with stage.client() as client:
        answer = await client.post(BATCH, content=b'{"tasks":[]}', headers=KEY | {"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (409, "request_in_progress", "1")


async def test_a_key_belongs_to_its_caller(stage: Stage):
    one, other = await stage.token(Scope.WORK, name="one"), await stage.token(Scope.WORK, name="other")
    for secret in (one, other):
        async with stage.shown(secret) as client:
            assert "Idempotency-Replayed" not in (await client.post(BATCH, json=BODY, headers=KEY)).headers
    assert await count(stage) == 4


async def test_a_revoked_token_does_not_get_stored_responses(stage: Stage):
    secret = await stage.token(Scope.WORK, name="one")
    async with stage.shown(secret) as client:
        await client.post(BATCH, json=BODY, headers=KEY)
        await stage.engine.kernel.tokens.revoke("one")
        assert (await client.post(BATCH, json=BODY, headers=KEY)).status_code == 401


ISSUE = {
    "id": 1,
    "number": 1,
    "title": "t",
    "repository": {
        "id": 5,
        "name": "loom",
        "full_name": "weavers/loom",
        "owner": {"login": "weavers"},
        "clone_url": "git@example.org:weavers/loom.git",
        "default_branch": "main",
    },
}
FLOW = "namespace a {\n  workflow W(n: Int) => (out: Int) andThen {\n    yield W(out = $.n)\n  }\n}\n"


async def test_the_kernels_own_keys_with_another_body_are_refused_too(stage: Stage):
    await stage.engine.kernel.flows.publish("a", [("a.afl", FLOW)])
    bodies = {
        "/v1/tasks": ({"name": "greet", "payload": {"n": 1}}, {"name": "greet", "payload": {"n": 2}}),
        "/v1/runs": ({"flow": "a", "workflow": "a.W", "inputs": {"n": 1}}, {"flow": "a", "workflow": "a.W", "inputs": {"n": 2}}),
        "/v1/dispatch/jobs": ({"issue": ISSUE}, {"issue": {**ISSUE, "number": 2}}),
    }
    async with stage.client() as client:
        for number, (path, (first, other)) in enumerate(bodies.items()):
            key = {"Idempotency-Key": f"k{number}"}
            made = await client.post(path, json=first, headers=key)
            again = await client.post(path, json=first, headers=key)
            refused = await client.post(path, json=other, headers=key)
            assert (made.status_code, again.json()["id"]) == (201, made.json()["id"]), path
            assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_key_reused"), path


async def test_the_response_names_the_stored_task(stage: Stage):
    async with stage.client() as client:
        first = await client.post("/v1/tasks", json={"name": "greet", "unique_key": "u"})
        again = await client.post("/v1/tasks", json={"name": "other", "unique_key": "u"})
    assert again.json() == {"id": first.json()["id"], "name": "greet", "created": False}
