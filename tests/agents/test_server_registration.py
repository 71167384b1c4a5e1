"""Section 5 of the agent SDK: servers register themselves, beat, count, and are missed."""

from __future__ import annotations

from dataclasses import fields

import pytest
from tests.agents.scenes import add, started, until

from treadle import Engine
from treadle.agents import (
    AgentPoller,
    AgentPollerConfig,
    Evaluator,
    HandledCount,
    Persistence,
    ServerDefinition,
    ServerState,
    TaskState,
)
from treadle.model.errors import StoreUnavailable
from treadle.model.tasks import Server
from treadle.settings import Settings
from treadle.testing import ManualClock


def a_poller(store: Persistence, **config: object) -> AgentPoller:
    poller = AgentPoller(store, Evaluator(store), AgentPollerConfig(**config))  # type: ignore[arg-type]
    poller.register("billing.Pay", lambda payload: {"id": str(1 // payload["n"])})
    poller.register("Message", lambda _: {})
    return poller


def test_a_server_definition_has_the_fields_of_the_specification():
    names = "uuid server_group service_name server_name server_ips start_time ping_time topics handlers handled state manager error"
    assert [field.name for field in fields(ServerDefinition)] == names.split()
    assert (ServerState.STARTUP, ServerState.RUNNING, ServerState.SHUTDOWN, ServerState.ERROR) == (
        "startup",
        "running",
        "shutdown",
        "error",
    )


@pytest.mark.postgres
def test_the_handlers_of_a_server_must_be_the_names_that_it_can_process(persistence):
    poller = a_poller(persistence, service_name="pay-service", server_group="eu", server_name="box-1")
    with started(poller):
        server = persistence.get_server(poller.server_id)
        assert server.handlers == ["Message", "billing.Pay"]
        assert (server.service_name, server.server_group, server.server_name) == ("pay-service", "eu", "box-1")
        assert server.state == ServerState.RUNNING
        assert server.start_time > 0
    assert persistence.get_server(poller.server_id).state == ServerState.SHUTDOWN


def test_a_server_goes_from_startup_to_running_to_shutdown(persistence, monkeypatch):
    """5.2, 5.3: as it is saved, and so as others see it."""
    store, states = persistence.engine.kernel.store, []
    save = store.servers.save

    async def noted(server: Server) -> None:
        await save(server)
        states.append(server.state)

    monkeypatch.setattr(store.servers, "save", noted)
    poller = a_poller(persistence)
    with started(poller):
        assert persistence.get_server(poller.server_id).state == ServerState.RUNNING
    assert states[:2] == ["starting", "running"]
    assert persistence.get_server(poller.server_id).state == ServerState.SHUTDOWN


def test_a_server_sends_heartbeats_and_counts_handled_tasks(persistence):
    poller = a_poller(persistence, heartbeat_interval_ms=50)
    with started(poller):
        first = persistence.get_server(poller.server_id).ping_time
        good, bad = add(persistence, n=1), add(persistence, n=0)
        until(lambda: persistence.get_task(good).state == TaskState.COMPLETED)
        until(lambda: persistence.get_task(bad).state == TaskState.FAILED)
        until(lambda: persistence.get_server(poller.server_id).ping_time > first)
        until(lambda: persistence.get_server(poller.server_id).handled == [HandledCount("billing.Pay", 1, 1)])
        assert poller.registered_names() == ["Message", "billing.Pay"]


def test_a_server_that_stops_beating_is_shown_as_lost_and_its_work_is_taken_over():
    clock = ManualClock()
    with Persistence(engine=Engine("memory://", settings=Settings(), clock=clock)) as store:
        store.save_server(ServerDefinition(uuid="gone", server_name="gone", state=ServerState.RUNNING, handlers=["billing.Pay"]))
        task_id = add(store, n=1)
        assert store.claim_task(["billing.Pay"]).uuid == task_id
        clock.advance(31)
        assert store.get_server("gone").state == ServerState.LOST
        clock.advance(100)
        assert a_poller(store).poll_once() == 1
        assert store.get_task(task_id).state == TaskState.COMPLETED


def test_a_server_is_saved_pinged_and_listed_through_the_store(persistence):
    given = ServerDefinition(
        uuid="s-1",
        server_group="g",
        service_name="svc",
        server_name="n",
        server_ips=["10.0.0.1"],
        topics=["a.*"],
        handlers=["a.B"],
        handled=[HandledCount("a.B", 2, 1)],
        state=ServerState.ERROR,
        error={"code": "x"},
    )
    persistence.save_server(given)
    found = persistence.get_server("s-1")
    given.start_time, given.ping_time = found.start_time, found.ping_time
    assert found == given
    assert persistence.ping_server("s-1")
    assert not persistence.ping_server("s-2")
    assert [server.uuid for server in persistence.list_servers()] == ["s-1"]


def test_a_loop_that_cannot_continue_leaves_the_server_in_error(memory):
    class Broken(AgentPoller):
        def prepare(self) -> None:
            raise StoreUnavailable("nothing works", rejected=True)  # anything else is tried again

    poller = Broken(memory, Evaluator(memory))
    with pytest.raises(StoreUnavailable):
        poller.start()
    server = memory.get_server(poller.server_id)
    assert (server.state, server.error["message"]) == (ServerState.ERROR, "nothing works")
    assert not poller.is_running
