"""`AgentPoller`: a standalone agent with callbacks by facet name."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from treadle.agents.agent import Agent
from treadle.agents.evaluator import Evaluator
from treadle.agents.invoke import call_tool, payload_for
from treadle.agents.persistence import Persistence
from treadle.agents.step_log import call_logged
from treadle.model.errors import InvalidInput
from treadle.model.names import check_name
from treadle.model.outcomes import Outcome
from treadle.settings import agent_default
from treadle.workers.context import Context
from treadle.workers.handlers import Handler, Registry, make_handler

Callback = Callable[[dict[str, Any]], Any]
"""Takes the payload and returns a dict; may be a coroutine function."""


@dataclass
class AgentPollerConfig:
    """The configuration of a poller; times in milliseconds."""

    service_name: str = "afl-agent"
    server_group: str = "default"
    server_name: str = ""
    task_list: str = "default"
    poll_interval_ms: int = field(default_factory=partial(agent_default, "poll_interval_ms"))
    max_concurrent: int = field(default_factory=partial(agent_default, "max_concurrent"))
    heartbeat_interval_ms: int = 10000

    def __post_init__(self) -> None:
        self.server_name = self.server_name or socket.gethostname()


class AgentPoller(Agent):
    """Handles tasks with registered callbacks, matched by qualified name first, then by short name.

    poller = AgentPoller(persistence=store, evaluator=Evaluator(store))
    poller.register("billing.ProcessPayment", process_payment)
    poller.start()  # until poller.stop()
    """

    def __init__(self, persistence: Persistence, evaluator: Evaluator, config: AgentPollerConfig | None = None) -> None:
        super().__init__(persistence, evaluator, config or AgentPollerConfig())
        self._registry = Registry()

    def register(self, facet_name: str, callback: Callback) -> None:
        """Register the callback for tasks of a qualified or short name, or replace the one of that name."""
        check_name(facet_name, "facet name")
        if facet_name.startswith("afl:"):
            raise InvalidInput(f"{facet_name!r}: names that start with afl: are reserved for the engine.")
        if not callable(callback):
            raise InvalidInput(f"The callback of {facet_name} must be a function, not {type(callback).__name__}.")
        self._registry.put(agent_handler(facet_name, callback, self._evaluator.update_step, self._monotonic))

    register_async = register
    """An alias of `register`, which also accepts coroutine functions."""

    def registered_names(self) -> list[str]:
        """All registered names, sorted."""
        return self._registry.names()

    def registry(self) -> Registry:
        """Return the callbacks as handlers."""
        return self._registry

    def update_step(self, step_id: str, partial_result: Mapping[str, Any]) -> None:
        """Merge partial results into a step's returns without completing it."""
        self._evaluator.update_step(step_id, partial_result)


def agent_handler(
    name: str,
    callback: Callback,
    update: Callable[[str, Mapping[str, Any]], None],
    monotonic: Callable[[], float],
    *,
    timeout_for: int | None = None,
    metadata: dict[str, Any] | None = None,
) -> Handler:
    """Wrap an agent's function as a handler: it runs in a thread, with the agent keys in its payload."""

    def call(payload: dict[str, Any], ctx: Context) -> Outcome:
        limit = ctx.task.timeout_for if ctx.task.timeout_for is not None else timeout_for
        return call_logged(ctx, monotonic, limit, lambda: call_tool(callback, payload_for(payload, ctx, update, metadata), limit))

    return make_handler(name, call, timeout=None if timeout_for is None else timeout_for / 1000)
