"""All groups of calls together, whether they run on a store or on a server: the interface of commands, tools and pages."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from treadle.api.contract import Call, calls_of

if TYPE_CHECKING:
    from treadle.api.alerts import AlertsApi
    from treadle.api.approvals import ApprovalsApi
    from treadle.api.dead_letters import DeadLettersApi
    from treadle.api.dispatch import DispatchApi
    from treadle.api.effects import EffectsApi
    from treadle.api.events import EventsApi
    from treadle.api.external_jobs import ExternalJobsApi
    from treadle.api.flows import FlowsApi
    from treadle.api.functions import FunctionsApi
    from treadle.api.handlers import HandlersApi
    from treadle.api.lists import ListsApi
    from treadle.api.metrics import MetricsApi
    from treadle.api.objectives import ObjectivesApi
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


class Api:
    """The groups of calls. Each is a protocol in the file of this package with its name, and is loaded on first use."""

    alerts: AlertsApi
    approvals: ApprovalsApi
    dead_letters: DeadLettersApi
    dispatch: DispatchApi
    effects: EffectsApi
    external_jobs: ExternalJobsApi
    events: EventsApi
    flows: FlowsApi
    functions: FunctionsApi
    handlers: HandlersApi
    lists: ListsApi
    metrics: MetricsApi
    objectives: ObjectivesApi
    runs: RunsApi
    schedules: SchedulesApi
    servers: ServersApi
    steps: StepsApi
    store: StoreApi
    streams: StreamsApi
    tasks: TasksApi
    system: SystemApi
    tokens: TokensApi
    traces: TracesApi
    watchers: WatchersApi
    work: WorkApi

    def make_group(self, name: str) -> Any:
        """Make the implementation of a group."""
        raise NotImplementedError

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in Api.__annotations__:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.", name=name, obj=self)
            implementation = self.make_group(name)
            setattr(self, name, implementation)
            return implementation


def protocol_of(group: str) -> type:
    """The protocol of a group."""
    protocol = getattr(import_module(f"treadle.api.{group}"), Api.__annotations__[group])
    assert isinstance(protocol, type)
    return protocol


@cache
def all_calls() -> tuple[Call, ...]:
    """Every call of every group."""
    return tuple(call for group in Api.__annotations__ for call in calls_of(group, protocol_of(group)))
