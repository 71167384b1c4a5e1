"""The operations of `treadle.api` on an engine, for one caller: the facade that HTTP, MCP, commands and pages use.

`make_service` returns the service that performs a group; `treadle.kernel.guard` is in front of it.
"""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from treadle.api.contract import Call
from treadle.api.facade import Api, protocol_of
from treadle.engine.kernel import APPLICATIONS
from treadle.kernel.guard import Guard
from treadle.model.access import Access
from treadle.model.clock import milliseconds

if TYPE_CHECKING:
    from treadle.engine.engine import Engine
    from treadle.engine.kernel import Kernel

SERVICES = {
    "alerts": "trigger_services.alerts",
    "approvals": "approvals",
    "dead_letters": "dead_letters",
    "effects": "effects",
    "external_jobs": "external_jobs",
    "flows": "run_services.flow_operations",
    "functions": "run_services.function_operations",
    "lists": "lists",
    "metrics": "metrics",
    "runs": "run_services.run_operations",
    "schedules": "trigger_services.schedules",
    "steps": "run_services.step_operations",
    "streams": "streams",
    "tasks": "tasks",
    "tokens": "tokens",
    "traces": "traces",
    "watchers": "trigger_services.watchers",
}
"""The services of the kernel that perform groups; `tests/typing/services.py` compares them with the declarations."""


def make_service(kernel: Kernel, group: str) -> Any:
    """Return the service that performs a group of operations."""
    match group:
        case "events":
            from treadle.kernel.reads.event_log import EventLog

            return EventLog(kernel.core)
        case "servers":
            from treadle.kernel.reads.servers import Servers

            return Servers(kernel.reads)
        case "store":
            from treadle.kernel.maintenance import Maintenance

            upkeep, timer = kernel.external_upkeep, lambda: kernel.call_timer
            return Maintenance(kernel.core, kernel.reads, kernel.retention, upkeep, lambda: kernel.documents, timer)
        case "system":
            from treadle.kernel.system import System

            return System(
                kernel.core,
                kernel.reads,
                lambda: kernel.run_reads,
                lambda: kernel.throughput,
                lambda: kernel.trigger_services.status,
                kernel.explain_record,
                lambda: kernel.open_access,
            )
        case "work":
            from treadle.kernel.remote_workers.operations import WorkOperations

            return WorkOperations(kernel.remote_workers, kernel.reads, lease_for=milliseconds(kernel.settings.lease))
        case _:
            return attrgetter(SERVICES[group])(kernel)


class Operations(Api):
    """The operations on an engine, for one caller."""

    def __init__(self, engine: Engine, access: Access) -> None:
        self.engine = engine
        self.access = access

    def make_group(self, name: str) -> Any:
        """Return the guarded operations of a group."""
        return self._guard(name).bind(self.access)

    def check(self, call: Call) -> None:
        """Raise `Forbidden` unless the caller may make the call at all; the call itself checks that again, and its arguments."""
        self.access.check(call.route.scope, lists=call.route.lists)

    async def authorize(self, call: Call, **arguments: Any) -> None:
        """Raise `Forbidden` unless the caller may make the call with these arguments; changes nothing."""
        await self._guard(call.group).operations[call.name].authorize(self.access, **arguments)

    def _guard(self, group: str) -> Guard:
        kernel = self.engine.kernel
        if group not in kernel.guards:
            if group in APPLICATIONS:
                service = import_module(APPLICATIONS[group].operations).make_operations(self.engine)
            else:
                service = make_service(kernel, group)
            kernel.guards[group] = Guard(group, protocol_of(group), service, kernel.store, kernel.settings.namespace)
        return kernel.guards[group]
