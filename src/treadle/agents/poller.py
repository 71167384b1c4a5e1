"""`AgentPoller`: a standalone agent with callbacks by facet name."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from treadle.agents.agent import Agent, matches_topics
from treadle.agents.config import AgentPollerConfig, RegistryRunnerConfig
from treadle.agents.evaluator import Evaluator
from treadle.agents.invoke import call_tool, check_handler, payload_for
from treadle.agents.modules import IMPORT_LIMIT, Modules, OutsideRoots, check_registration, missing_requirements, runner_roots
from treadle.agents.persistence import Persistence
from treadle.agents.step_log import call_logged
from treadle.model.errors import InvalidInput
from treadle.model.outcomes import Outcome
from treadle.model.records import HandlerRegistration
from treadle.model.text import safe_logger
from treadle.workers.context import Context, RegisteredHandler, Registry, make_handler

Callback = Callable[[dict[str, Any]], Any]
"""Takes the payload and returns a dict; may be a coroutine function."""


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
        check_handler(facet_name, callback)
        self._registry.put(agent_handler(facet_name, lambda _: callback, self._evaluator.update_step, self._monotonic))

    register_async = register
    """An alias of `register`, which also accepts coroutine functions."""


def agent_handler(
    name: str,
    find: Callable[[int | None], Callback],
    update: Callable[[str, Mapping[str, Any]], None],
    monotonic: Callable[[], float],
    *,
    timeout_for: int | None = None,
    metadata: dict[str, Any] | None = None,
) -> RegisteredHandler:
    """Wrap an agent's function as a handler: it runs in a thread, with the agent keys in its payload.

    `find` returns the function, given the milliseconds that the attempt may take.
    """

    def call(payload: dict[str, Any], ctx: Context) -> Outcome:
        limit = ctx.task.timeout_for if ctx.task.timeout_for is not None else timeout_for

        def work() -> Any:
            function = find(limit)
            return call_tool(function, payload_for(payload, ctx, update, copy.deepcopy(metadata)), limit)

        return call_logged(ctx, monotonic, limit, work)

    return make_handler(name, call, timeout=None if timeout_for is None else timeout_for / 1000)


_log = safe_logger("treadle.agents")


class LiveRegistry(Registry):
    """A registry that replaces all its handlers together."""

    def replace(self, handlers: Iterable[RegisteredHandler]) -> None:
        """Replace all handlers; running calls keep theirs."""
        self._handlers = {handler.name: handler for handler in handlers}


class RegistryRunner(Agent):
    """Re-reads the registrations periodically: new ones are served without a restart, changed ones from their next task on."""

    _config: RegistryRunnerConfig
    _registry: LiveRegistry

    def __init__(self, persistence: Persistence, evaluator: Evaluator, config: RegistryRunnerConfig | None = None) -> None:
        config = config or RegistryRunnerConfig()
        super().__init__(persistence, evaluator, config, tuple(config.topics))
        self._registry = LiveRegistry()
        self._registrations: list[HandlerRegistration] = []
        self.modules = Modules(runner_roots(persistence.kernel.settings.handler_roots))

    def register_handler(
        self,
        facet_name: str,
        module_uri: str,
        entrypoint: str = "handle",
        version: str = "1.0.0",
        checksum: str = "",
        timeout_ms: int = 30000,
        requirements: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Store a registration, or replace the one of that facet; runners see it with their next refresh.

        Raises `OutsideRoots` for a module that would never be loaded; a missing module is only logged.
        """
        registration = HandlerRegistration(
            facet_name, module_uri, entrypoint, version, checksum, timeout_ms, requirements or [], metadata or {}
        )
        check_registration(registration)
        try:
            self.modules.locate(module_uri)
        except OutsideRoots:
            raise
        except InvalidInput as error:
            if not module_uri.startswith("file:") and not all(part.isidentifier() for part in module_uri.split(".")):
                raise
            _log.warning("handler %s: %s It will be loaded when a task arrives.", facet_name, error)
        self._persistence.save_handler_registration(registration)

    def refresh(self) -> None:
        """Read the registrations again; does nothing if they are unchanged."""
        registrations = [
            registration
            for registration in self._persistence.list_handler_registrations()
            if matches_topics(registration.facet_name, self._config.topics)
        ]
        readable = [registration for registration in registrations if registration.unreadable is None]
        if registrations == self._registrations and len(self._registry) == len(readable):
            return
        previous = {registration.facet_name: registration for registration in self._registrations}
        for registration in registrations:
            if previous.get(registration.facet_name) != registration and registration.unreadable is not None:
                _log.warning("handler %s is not served: %s Register it again.", registration.facet_name, registration.unreadable)
            if previous.get(registration.facet_name) != registration and (
                missing := missing_requirements(registration.requirements)
            ):
                _log.warning("handler %s has unmet requirements: %s", registration.facet_name, ", ".join(missing))
        self._registry.replace([self._handler(registration) for registration in readable])
        self._registrations = registrations
        if (host := self._host) is not None:
            self._persistence.run(_refresh_queues(host))

    def prepare(self) -> None:
        """Read the registrations, and log unserved facets."""
        self.refresh()
        super().prepare()

    def prepare_once(self) -> None:
        """Read the registrations."""
        self.refresh()

    def _handled_names(self) -> list[str]:
        """All registered facets, also those that the topics exclude."""
        return [registration.facet_name for registration in self._persistence.list_handler_registrations()]

    def until_stopped(self, stop: threading.Event) -> None:
        """Refresh periodically."""
        every = self._config.registry_refresh_interval_ms / 1000
        self._repeat(stop, every, self.refresh, "the handler registrations could not be read")

    def _handler(self, registration: HandlerRegistration) -> RegisteredHandler:
        def find(timeout_for: int | None) -> Callback:
            limit = min(IMPORT_LIMIT, (timeout_for or registration.timeout_ms) * 0.8 / 1000)
            return self.modules.find(registration, in_thread=self._starting, limit=limit)

        return agent_handler(
            registration.facet_name,
            find,
            self._evaluator.update_step,
            self._monotonic,
            timeout_for=registration.timeout_ms,
            metadata=registration.metadata,
        )


async def _refresh_queues(host: Any) -> None:
    """Look up queues again, on the engine's loop: names without a handler may have one now."""
    host.worker.wake(())
