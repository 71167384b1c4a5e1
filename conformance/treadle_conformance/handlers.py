"""Handler registrations, the servers of agents, and steps by id."""

from __future__ import annotations

from treadle.model.records import HandlerRegistration
from treadle_conformance.servers import a_server


def a_registration(facet_name: str = "billing.Pay", **fields: object) -> HandlerRegistration:
    return HandlerRegistration(facet_name=facet_name, module_uri="handlers.billing", **fields)  # type: ignore[arg-type]


async def test_a_registration_round_trips(store, clock):
    given = a_registration(
        entrypoint="pay",
        version="2.0",
        checksum="abc",
        timeout_ms=5_000,
        requirements=["requests>=2"],
        metadata={"region": "ä", "deep": {"list": [1, 2.5, None]}},
    )
    await store.operators.save_handler("default", given)
    (found,) = await store.operators.list_handlers("default")
    assert (found.created, found.updated) == (clock.now(), clock.now())
    given.created = given.updated = clock.now()
    assert found == given


async def test_saving_a_registration_again_replaces_it_and_keeps_its_creation_time(store, clock):
    await store.operators.save_handler("default", a_registration(metadata={"a": 1}))
    made_at = clock.now()
    await clock.advance(1_000)
    await store.operators.save_handler("default", a_registration(checksum="new"))
    (found,) = await store.operators.list_handlers("default")
    assert (found.checksum, found.metadata, found.created, found.updated) == ("new", {}, made_at, clock.now())


async def test_registrations_are_listed_by_name_and_per_namespace(store):
    for name in ("b.B", "a.Z", "a.A"):
        await store.operators.save_handler("default", a_registration(name))
    await store.operators.save_handler("elsewhere", a_registration("c.C"))
    assert [found.facet_name for found in await store.operators.list_handlers("default")] == ["a.A", "a.Z", "b.B"]
    assert [found.facet_name for found in await store.operators.list_handlers("elsewhere")] == ["c.C"]


async def test_removing_a_registration_twice_returns_false(store):
    await store.operators.save_handler("default", a_registration())
    assert not await store.operators.delete_handler("elsewhere", "billing.Pay")
    assert await store.operators.delete_handler("default", "billing.Pay")
    assert not await store.operators.delete_handler("default", "billing.Pay")
    assert await store.operators.list_handlers("default") == []


async def test_a_server_keeps_the_fields_reported_by_agents(store):
    said = {"server_group": "eu", "service_name": "billing", "topics": ["a.*"], "counts": {"a.B": [3, 1]}, "error": '{"code":"x"}'}
    await store.servers.save(a_server(**said))
    (found,) = await store.servers.list_all()
    assert {name: getattr(found, name) for name in said} == said


async def test_finding_a_step_of_an_unknown_id_returns_none(store):
    assert await store.runs.find_step("0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a71") is None
