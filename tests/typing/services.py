"""Services of the kernel have the methods that the operations declare: mypy compares their types."""

# ruff: noqa: F841

from __future__ import annotations

from treadle.api.alerts import AlertsApi
from treadle.api.approvals import ApprovalsApi
from treadle.api.dead_letters import DeadLettersApi
from treadle.api.effects import EffectsApi
from treadle.api.events import EventsApi
from treadle.api.external_jobs import ExternalJobsApi
from treadle.api.flows import FlowsApi
from treadle.api.functions import FunctionsApi
from treadle.api.lists import ListsApi
from treadle.api.metrics import MetricsApi
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
from treadle.engine.kernel import Kernel
from treadle.kernel.maintenance import Maintenance
from treadle.kernel.reads.event_log import EventLog
from treadle.kernel.reads.servers import Servers
from treadle.kernel.remote_workers.operations import WorkOperations
from treadle.kernel.system import System


def compare(kernel: Kernel) -> None:
    """Assign each service to the protocol of its group."""
    alerts: AlertsApi = kernel.trigger_services.alerts
    approvals: ApprovalsApi = kernel.approvals
    dead_letters: DeadLettersApi = kernel.dead_letters
    effects: EffectsApi = kernel.effects
    external_jobs: ExternalJobsApi = kernel.external_jobs
    flows: FlowsApi = kernel.run_services.flow_operations
    functions: FunctionsApi = kernel.run_services.function_operations
    lists: ListsApi = kernel.lists
    runs: RunsApi = kernel.run_services.run_operations
    schedules: SchedulesApi = kernel.trigger_services.schedules
    steps: StepsApi = kernel.run_services.step_operations
    metrics: MetricsApi = kernel.metrics
    streams: StreamsApi = kernel.streams
    tasks: TasksApi = kernel.tasks
    tokens: TokensApi = kernel.tokens
    traces: TracesApi = kernel.traces
    watchers: WatchersApi = kernel.trigger_services.watchers


def compare_made(
    event_log: EventLog, all_servers: Servers, maintenance: Maintenance, status: System, workers: WorkOperations
) -> None:
    """Assign each service that is made for its group to the protocol."""
    events: EventsApi = event_log
    servers: ServersApi = all_servers
    store: StoreApi = maintenance
    system: SystemApi = status
    work: WorkApi = workers
