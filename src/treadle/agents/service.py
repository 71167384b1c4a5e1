"""`RunnerService`: handlers of a `ToolRegistry`, starts by task, a status page, signals, and a sweep for lost tasks."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from treadle.agents.agent import Agent
from treadle.agents.coverage import idle_topics, matches_topics, unserved_facets
from treadle.agents.evaluator import Evaluator
from treadle.agents.persistence import Persistence, check_payload
from treadle.agents.poller import agent_handler
from treadle.agents.status import StatusServer
from treadle.agents.tools import ToolRegistry
from treadle.model.errors import InvalidPolicy, NonRetryable, NotFound, Refused, StoreError
from treadle.model.states import RunState
from treadle.settings import agent_max_concurrent, agent_poll_interval_ms
from treadle.workers.context import Context
from treadle.workers.handlers import Handler, Registry, make_handler

_log = logging.getLogger("treadle.agents")
EXECUTE, RESUME = "afl:execute", "afl:resume"
SWEEP_EVERY = 30.0
_SWEPT_AT_ONCE = 20
_REMEMBERED_RUNS = 10_000


@dataclass
class RunnerConfig:
    """How a runner works; times in milliseconds. Its locks on work items are the claims on their tasks."""

    server_group: str = "default"
    service_name: str = "afl-runner"
    server_name: str = ""
    topics: list[str] = field(default_factory=list)
    task_list: str = "default"
    poll_interval_ms: int = field(default_factory=agent_poll_interval_ms)
    heartbeat_interval_ms: int = 10000
    lock_duration_ms: int = 60000
    lock_extend_interval_ms: int = 20000
    max_concurrent: int = field(default_factory=agent_max_concurrent)
    shutdown_timeout_ms: int = 30000
    http_port: int = 8080
    http_max_port_attempts: int = 20

    def __post_init__(self) -> None:
        self.server_name = self.server_name or socket.gethostname()
        if self.lock_duration_ms < 1 or self.lock_extend_interval_ms * 2 > self.lock_duration_ms:
            raise InvalidPolicy(
                "lock_extend_interval_ms must be at most half of lock_duration_ms, or a lock could run out in between."
            )
        if self.shutdown_timeout_ms < 0 or not 0 <= self.http_port <= 65535 or self.http_max_port_attempts < 1:
            raise InvalidPolicy("shutdown_timeout_ms, http_port (to 65535) and http_max_port_attempts (from 1) must make sense.")


class _ServiceRegistry(Registry):
    """The tools that the topics let through, and the engine's own tasks."""

    def __init__(self, tools: ToolRegistry, topics: list[str], evaluator: Evaluator) -> None:
        super().__init__()
        self._tools, self._topics, self._evaluator = tools, topics, evaluator
        self._monotonic = evaluator.persistence.engine.kernel.clock.monotonic
        for name, call in ((EXECUTE, self._execute), (RESUME, self._resume)):
            self.add(make_handler(name, call))

    def find(self, name: str) -> Handler | None:
        """The handler for tasks of that name: exact, short, or the default."""
        if name in (EXECUTE, RESUME):
            return self._handlers[name]
        tool = self._tools.find(name) if not name.startswith("afl:") and matches_topics(name, self._topics) else None
        return None if tool is None else agent_handler(name, tool, self._evaluator.update_step, self._monotonic)

    def names(self) -> list[str]:
        """What is served, for the server registry."""
        return sorted(
            [EXECUTE, RESUME, *(name for name in self._tools.names() if matches_topics(name, self._topics) or "." not in name)]
        )

    def _execute(self, payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
        """Start the workflow that the task names; doing it twice starts one run."""
        inputs = payload.get("inputs") or {}
        if not payload.get("flow_id") or not isinstance(inputs, Mapping):
            raise NonRetryable(
                "afl:execute needs a flow_id (a published name or a digest) and inputs that are an object.", "invalid_input"
            )
        check_payload(inputs)
        key = str(payload.get("runner_id") or payload.get("workflow_id") or ctx.task_id)
        engine = self._evaluator.persistence.engine
        started = self._evaluator.persistence.run(
            engine.runs.start(
                str(payload["flow_id"]), payload.get("workflow_name"), inputs, idempotency_key=key, task_list=ctx.task.task_list
            )
        )
        return {"workflow_id": started.id, "runner_id": started.id}

    def _resume(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Drive the run that the task names to its next fixed point."""
        result = self._evaluator.resume(str(payload.get("workflow_id", "")))
        return {"workflow_id": result.workflow_id, "status": str(result.status)}


class RunnerService(Agent):
    """Handles event tasks with tools, `max_concurrent` at once in threads, and `afl:execute` tasks; see `RunnerConfig`."""

    _config: RunnerConfig

    def __init__(
        self,
        persistence: Persistence,
        evaluator: Evaluator,
        config: RunnerConfig | None = None,
        tool_registry: ToolRegistry | None = None,
    ) -> None:
        config = config or RunnerConfig()
        super().__init__(persistence, evaluator, config, tuple(config.topics))
        self.tools = ToolRegistry() if tool_registry is None else tool_registry
        self._profile.renew_every = config.lock_extend_interval_ms / 1000
        self.grace = config.shutdown_timeout_ms / 1000
        self._registry = _ServiceRegistry(self.tools, config.topics, evaluator)
        self._status: StatusServer | None = None
        self._started_at = 0.0
        self._swept: str | None = None
        self._versions: OrderedDict[str, int] = OrderedDict()

    @property
    def lease_for(self) -> int:
        """A lock on a work item is the claim on its task."""
        return self._config.lock_duration_ms

    @property
    def http_port(self) -> int | None:
        """The port of the status page while the service runs."""
        return None if self._status is None else self._status.port

    def registry(self) -> Registry:
        """The tools as handlers."""
        return self._registry

    def start(self) -> None:
        """Serve until `stop`, SIGTERM or SIGINT; blocks. Raises `NoFreePort` before anything is claimed."""
        config = self._config
        self._started_at = self._persistence.engine.kernel.clock.monotonic()
        self._status = StatusServer(config.http_port, config.http_max_port_attempts, self._health, self._describe)
        try:
            with _signals(self.stop):
                super().start()
        finally:
            self._status.close()
            self._status = None

    def prepare(self) -> None:
        """Say what will not be served."""
        for message in self.check():
            _log.warning("%s", message)

    def check(self) -> list[str]:
        """What a person should know before this runner starts: topics without a handler, event facets that nobody handles."""
        names = self.tools.names() if self.tools.default is None else [*self.tools.names(), *self._config.topics]
        said = [
            f"the topic pattern {pattern!r} matches no registered handler" for pattern in idle_topics(self._config.topics, names)
        ]
        unserved = self._persistence.run(
            unserved_facets(self._persistence, lambda name: self._registry.find(name) is not None, self._config.task_list)
        )
        return said + [f"no handler for the event facet {name}" for name in unserved if matches_topics(name, self._config.topics)]

    def until_stopped(self, stop: threading.Event) -> None:
        """Sweep now and then."""
        while not stop.wait(SWEEP_EVERY):
            try:
                self.sweep()
            except StoreError as error:
                _log.warning("runs could not be looked over: %s", error)

    def sweep(self) -> int:
        """Look over the next runs that have not moved since the last look for steps without a live task, and repair them (D55).

        A move `repair` in a run's log names the steps. Locks that were left to run out long ago are tidied away too. How many
        runs were repaired.
        """

        async def look() -> int:
            engine = self._persistence.engine
            runs = await engine.run_reads.list_runs(states=(RunState.RUNNING,), before_id=self._swept, limit=_SWEPT_AT_ONCE)
            self._swept = runs[-1].id if len(runs) == _SWEPT_AT_ONCE else None
            repaired = 0
            for run in runs:
                before, self._versions[run.id] = self._versions.get(run.id), run.version
                if before != run.version:
                    continue  # it moves
                try:
                    steps = await engine.runs.repair(run.id, actor=self.server_id)
                except (Refused, NotFound):
                    continue  # it changes too fast to need that, or is gone
                if steps:
                    repaired += 1
                    _log.warning("run %s had steps that nobody would go on with (%s); it goes on", run.id, ", ".join(steps[:5]))
            while len(self._versions) > _REMEMBERED_RUNS:
                self._versions.popitem(last=False)
            await self._persistence.locks.tidy()
            return repaired

        return self._persistence.run(look())

    def _health(self) -> dict[str, Any]:
        return {"ok": True}

    def _describe(self) -> dict[str, Any]:
        counts = self._profile.counts.copy()
        host = self._host
        return {
            "server_id": self.server_id,
            "state": "running" if self.is_running else "startup",
            "running": self.is_running,
            "uptime_ms": round((self._persistence.engine.kernel.clock.monotonic() - self._started_at) * 1000),
            "handled": {name: {"handled": done, "not_handled": not_done} for name, (done, not_done) in counts.items()},
            "active_work_items": 0 if host is None else host.worker.running,
            "config": asdict(self._config),
        }


@contextmanager
def _signals(stop: Any) -> Iterator[None]:
    """SIGTERM and SIGINT stop the service, where it runs in the main thread; else they are left alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
