"""The operations of `treadle.api` on an engine, for one caller: the facade that HTTP, MCP, commands and pages use.

`Implementations` names the service that performs each group; `treadle.kernel.guard` is in front of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from treadle.api.contract import Call
from treadle.api.facade import Api, protocol_of
from treadle.kernel.guard import Guard
from treadle.model.access import Access
from treadle.model.clock import milliseconds

if TYPE_CHECKING:
    from treadle.api.alerts import AlertsApi
    from treadle.api.approvals import ApprovalsApi
    from treadle.api.dead_letters import DeadLettersApi
    from treadle.api.effects import EffectsApi
    from treadle.api.events import EventsApi
    from treadle.api.external_jobs import ExternalJobsApi
    from treadle.api.flows import FlowsApi
    from treadle.api.functions import FunctionsApi
    from treadle.api.lists import ListsApi
    from treadle.api.runs import RunsApi
    from treadle.api.schedules import SchedulesApi
    from treadle.api.servers import ServersApi
    from treadle.api.steps import StepsApi
    from treadle.api.store import StoreApi
    from treadle.api.streams import StreamsApi
    from treadle.api.system import SystemApi
    from treadle.api.tasks import TasksApi
    from treadle.api.tokens import TokensApi
    from treadle.api.traces import TracesApi
    from treadle.api.watchers import WatchersApi
    from treadle.api.work import WorkApi
    from treadle.engine.engine import Engine
    from treadle.engine.kernel import Kernel


class Implementations:
    """The service that performs each group of operations; mypy compares its methods with the declarations."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    @property
    def alerts(self) -> AlertsApi:
        return self._kernel.trigger_services.alerts

    @property
    def effects(self) -> EffectsApi:
        return self._kernel.effects

    @property
    def events(self) -> EventsApi:
        from treadle.kernel.reads.event_log import EventLog

        kernel = self._kernel
        return EventLog(kernel.core)

    @property
    def external_jobs(self) -> ExternalJobsApi:
        return self._kernel.external_jobs

    @property
    def flows(self) -> FlowsApi:
        return self._kernel.run_services.flow_operations

    @property
    def functions(self) -> FunctionsApi:
        return self._kernel.run_services.function_operations

    @property
    def runs(self) -> RunsApi:
        return self._kernel.run_services.run_operations

    @property
    def steps(self) -> StepsApi:
        return self._kernel.run_services.step_operations

    @property
    def lists(self) -> ListsApi:
        return self._kernel.lists

    @property
    def approvals(self) -> ApprovalsApi:
        return self._kernel.approvals

    @property
    def dead_letters(self) -> DeadLettersApi:
        return self._kernel.dead_letters

    @property
    def tasks(self) -> TasksApi:
        return self._kernel.tasks

    @property
    def schedules(self) -> SchedulesApi:
        return self._kernel.trigger_services.schedules

    @property
    def servers(self) -> ServersApi:
        from treadle.kernel.reads.servers import Servers

        return Servers(self._kernel.reads)

    @property
    def store(self) -> StoreApi:
        from treadle.kernel.maintenance import Maintenance

        kernel = self._kernel
        return Maintenance(
            kernel.core, kernel.reads, kernel.retention, kernel.external_upkeep, lambda: kernel.bodies, lambda: kernel.call_timer
        )

    @property
    def streams(self) -> StreamsApi:
        return self._kernel.streams

    @property
    def system(self) -> SystemApi:
        from treadle.kernel.system import System

        kernel = self._kernel
        return System(
            kernel.core,
            kernel.reads,
            lambda: kernel.run_reads,
            lambda: kernel.throughput,
            lambda: kernel.trigger_services.status,
            kernel.explain_record,
            lambda: kernel.open_access,
        )

    @property
    def tokens(self) -> TokensApi:
        return self._kernel.tokens

    @property
    def traces(self) -> TracesApi:
        return self._kernel.traces

    @property
    def work(self) -> WorkApi:
        from treadle.kernel.remote_workers.operations import WorkOperations

        kernel = self._kernel
        lease_for = milliseconds(kernel.settings.lease)
        return WorkOperations(kernel.remote_workers, kernel.reads, lease_for=lease_for)

    @property
    def watchers(self) -> WatchersApi:
        return self._kernel.trigger_services.watchers


GROUP_MODULES = {
    "dispatch": "treadle.dispatch.operations",
    "handlers": "treadle.agents.handler_operations",
    "objectives": "treadle.goals.operations",
}
"""The modules of the applications that perform groups themselves: `make_operations(engine)` returns the implementation."""


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

    async def permit(self, call: Call, **arguments: Any) -> None:
        """Raise `Forbidden` unless the caller may make the call with these arguments; changes nothing."""
        await self._guard(call.group).operations[call.name].permit(self.access, **arguments)

    def _guard(self, group: str) -> Guard:
        kernel = self.engine.kernel
        if group not in kernel.guards:
            service: Any
            if group in GROUP_MODULES:
                service = import_module(GROUP_MODULES[group]).make_operations(self.engine)
            else:
                service = getattr(Implementations(kernel), group)
            kernel.guards[group] = Guard(group, protocol_of(group), service, kernel.store, kernel.settings.namespace)
        return kernel.guards[group]
