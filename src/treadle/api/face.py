"""All groups of calls together: what a command, a tool or a page is given, whether it stands on a store or on a server."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from treadle.api.contract import Call, calls_of

if TYPE_CHECKING:
    from treadle.api.approvals import ApprovalsApi
    from treadle.api.dead_letters import DeadLettersApi
    from treadle.api.dispatch import DispatchApi
    from treadle.api.events import EventsApi
    from treadle.api.external_jobs import ExternalJobsApi
    from treadle.api.flows import FlowsApi
    from treadle.api.functions import FunctionsApi
    from treadle.api.handlers import HandlersApi
    from treadle.api.lists import ListsApi
    from treadle.api.objectives import ObjectivesApi
    from treadle.api.runs import RunsApi
    from treadle.api.schedules import SchedulesApi
    from treadle.api.servers import ServersApi
    from treadle.api.steps import StepsApi
    from treadle.api.store import StoreApi
    from treadle.api.system import SystemApi
    from treadle.api.tasks import TasksApi
    from treadle.api.tokens import TokensApi
    from treadle.api.watchers import WatchersApi
    from treadle.api.work import WorkApi


class Api(Protocol):
    """The groups of calls; each is the file of this package that has its name, and is loaded by those who use it."""

    @property
    def approvals(self) -> ApprovalsApi: ...

    @property
    def dead_letters(self) -> DeadLettersApi: ...

    @property
    def dispatch(self) -> DispatchApi: ...

    @property
    def external_jobs(self) -> ExternalJobsApi: ...

    @property
    def events(self) -> EventsApi: ...

    @property
    def flows(self) -> FlowsApi: ...

    @property
    def functions(self) -> FunctionsApi: ...

    @property
    def handlers(self) -> HandlersApi: ...

    @property
    def lists(self) -> ListsApi: ...

    @property
    def objectives(self) -> ObjectivesApi: ...

    @property
    def runs(self) -> RunsApi: ...

    @property
    def schedules(self) -> SchedulesApi: ...

    @property
    def servers(self) -> ServersApi: ...

    @property
    def steps(self) -> StepsApi: ...

    @property
    def store(self) -> StoreApi: ...

    @property
    def tasks(self) -> TasksApi: ...

    @property
    def system(self) -> SystemApi: ...

    @property
    def tokens(self) -> TokensApi: ...

    @property
    def watchers(self) -> WatchersApi: ...

    @property
    def work(self) -> WorkApi: ...


def groups() -> dict[str, type]:
    """The groups and their protocols, in the order in which they are written."""
    named = {name: member.fget.__annotations__["return"] for name, member in vars(Api).items() if isinstance(member, property)}
    return {name: getattr(import_module(f"treadle.api.{name}"), protocol) for name, protocol in named.items()}


@cache
def all_calls() -> tuple[Call, ...]:
    """Every call of every group."""
    return tuple(call for name, protocol in groups().items() for call in calls_of(name, protocol))
