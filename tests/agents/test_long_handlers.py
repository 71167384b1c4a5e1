"""A handler that takes longer than the lease of `poll_once` runs once: the store renews the claim meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.agents.scenes import add, until
from tests.engines import SHARED, url_of

from treadle.agents import Agent, AgentPoller, Evaluator, Persistence, RunnerService, TaskState, ToolRegistry
from treadle.agents import agent as agent_module
from treadle.settings import Settings

LEASE_FOR = 600
TAKES = 2.0
"""Seconds: three leases."""


def poller(store: Persistence, handler: Callable) -> Agent:
    agent = AgentPoller(store, Evaluator(store))
    agent.register("billing.Pay", handler)
    return agent


def service(store: Persistence, handler: Callable) -> Agent:
    tools = ToolRegistry()
    tools.register("Pay", handler)
    return RunnerService(store, Evaluator(store), tool_registry=tools)


def blocking(ran: list[int]) -> Callable:
    def pay(payload: dict) -> dict:
        ran.append(payload["number"])
        time.sleep(TAKES)
        return {}

    return pay


def coroutine(ran: list[int]) -> Callable:
    async def pay(payload: dict) -> dict:
        ran.append(payload["number"])
        await asyncio.sleep(TAKES)
        return {}

    return pay


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("make", [poller, service])
@pytest.mark.parametrize("handler", [blocking, coroutine])
def test_poll_once_renews_its_claims_while_a_handler_runs(
    kind: str, make: Callable, handler: Callable, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "LEASE_FOR", LEASE_FOR)
    url, ran = url_of(kind, request, tmp_path), list[int]()
    with Persistence(url, settings=Settings()) as first, Persistence(url, settings=Settings()) as second:
        agents = [make(store, handler(ran)) for store in (first, second)]
        task_id = add(first, number=1)
        polling = threading.Thread(target=agents[0].poll_once, daemon=True)
        polling.start()
        until(lambda: ran)
        while polling.is_alive():
            agents[1].poll_once()
            time.sleep(0.05)
        assert ran == [1]
        assert first.get_task(task_id).state == TaskState.COMPLETED
