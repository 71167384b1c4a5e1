"""`RunnerService`: handlers of a `ToolRegistry`, start tasks, a status page, signals, and a sweep for lost tasks."""

from __future__ import annotations

import signal
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from treadle.agents.agent import Agent, matches_topics
from treadle.agents.config import RunnerConfig
from treadle.agents.entities import ServerState
from treadle.agents.evaluator import Evaluator
from treadle.agents.invoke import ToolRegistry
from treadle.agents.persistence import Persistence, check_payload
from treadle.agents.poller import agent_handler
from treadle.engine.status_server import StatusServer, json_route
from treadle.model.errors import Contended, NonRetryable, NotFound, Refused
from treadle.model.states import RunState
from treadle.model.text import safe_logger
from treadle.workers.context import Context, RegisteredHandler, Registry, make_handler

_log = safe_logger("treadle.agents")
EXECUTE, RESUME = "afl:execute", "afl:resume"
SWEEP_EVERY = 30.0
_SWEPT_AT_ONCE = 20
_REMEMBERED_RUNS = 10_000


class _ServiceRegistry(Registry):
    """The tools selected by the topics, and the engine's own tasks."""

    def __init__(self, tools: ToolRegistry, topics: list[str], evaluator: Evaluator) -> None:
        super().__init__()
        self._tools, self._topics, self._evaluator = tools, topics, evaluator
        self._monotonic = evaluator.persistence.engine.kernel.clock.monotonic
        for name, call in ((EXECUTE, self._execute), (RESUME, self._resume)):
            self.add(make_handler(name, call))

    def find(self, name: str) -> RegisteredHandler | None:
        """Return the handler for tasks of that name: exact, short, or the default."""
        if name in (EXECUTE, RESUME):
            return self._handlers[name]
        tool = self._tools.find(name) if not name.startswith("afl:") and matches_topics(name, self._topics) else None
        return None if tool is None else agent_handler(name, lambda _: tool, self._evaluator.update_step, self._monotonic)

    def names(self) -> list[str]:
        """Return the served names, for the server registry."""
        return sorted(
            [EXECUTE, RESUME, *(name for name in self._tools.names() if matches_topics(name, self._topics) or "." not in name)]
        )

    def _execute(self, payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
        """Start the workflow that the task names; repeating the task starts no second run."""
        inputs = payload.get("inputs") or {}
        if not payload.get("flow_id") or not isinstance(inputs, Mapping):
            raise NonRetryable(
                "afl:execute needs a flow_id (a published name or a digest) and inputs that are an object.", "invalid_input"
            )
        check_payload(inputs)
        key = str(payload.get("runner_id") or payload.get("workflow_id") or ctx.task_id)
        engine = self._evaluator.persistence.engine
        started = self._evaluator.persistence.run(
            engine.kernel.runs.start(
                str(payload["flow_id"]),
                payload.get("workflow_name"),
                inputs,
                idempotency_key=key,
                task_list=ctx.task.task_list,
                on_failure="finish",
            )
        )
        return {"workflow_id": started.id, "runner_id": started.id}

    def _resume(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Drive the run that the task names to its next fixed point."""
        result = self._evaluator.resume(str(payload.get("workflow_id", "")))
        return {"workflow_id": result.workflow_id, "status": str(result.status)}


class RunnerService(Agent):
    """Handles event tasks with tools, up to `max_concurrent` concurrently in threads, and `afl:execute` tasks; see
    `RunnerConfig`."""

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
        self._profile.renew_every = min(config.lock_extend_interval_ms, config.lock_duration_ms / 2) / 1000
        self.grace = config.shutdown_timeout_ms / 1000
        self._registry = _ServiceRegistry(self.tools, config.topics, evaluator)
        self._status: StatusServer | None = None
        self._started_at = 0.0
        self._swept: str | None = None
        self._versions: OrderedDict[str, int] = OrderedDict()

    @property
    def lease_for(self) -> int:
        """Milliseconds that a lock on a work item, the claim on its task, is valid."""
        return self._config.lock_duration_ms

    @property
    def http_port(self) -> int | None:
        """The port of the status page while the service runs."""
        return None if self._status is None else self._status.port

    @property
    def http_host(self) -> str:
        """The address of the status page."""
        return self._config.http_host

    def start(self) -> None:
        """Serve until `stop`, SIGTERM or SIGINT; blocks. Raises `Refused` before anything is claimed."""
        config = self._config
        self._started_at = self._persistence.engine.kernel.clock.monotonic()
        status = StatusServer(
            {"/health": json_route(lambda: {"ok": self._state_now() == "running"}, "ok"), "/status": json_route(self._describe)},
            on_error=lambda error: _log.error("a status page failed: %r", error),
        )
        first, last = config.http_port, config.http_port + config.http_max_port_attempts - 1
        try:
            self._persistence.run(status.listen(config.http_host, range(first, last + 1)))
        except OSError as error:
            raise Refused(
                f"No port from {first} to {last} of {config.http_host} is free; set http_port to another one. ({error})",
                code="no_free_port",
            ) from None
        self._status = status
        try:
            with stopped_by_signals(self.stop):
                super().start()
        finally:
            self._persistence.run(status.close())
            self._status = None

    def _handled_names(self) -> list[str]:
        """The names of the tools; a default one may handle every topic."""
        return self.tools.names() if self.tools.default is None else [*self.tools.names(), *self._config.topics]

    def until_stopped(self, stop: threading.Event) -> None:
        """Sweep periodically."""
        self._repeat(stop, SWEEP_EVERY, self.sweep, "runs could not be checked for lost tasks")

    def sweep(self) -> int:
        """Check runs that have not progressed since the last sweep for steps without a live task, and repair them (D55).

        An entry `repair` in a run's log names the steps. Locks that expired long ago are deleted too. Returns the number of
        repaired runs.
        """

        async def look() -> int:
            engine = self._persistence.engine
            runs = await engine.kernel.run_reads.list_runs(states=(RunState.RUNNING,), before_id=self._swept, limit=_SWEPT_AT_ONCE)
            self._swept = runs[-1].id if len(runs) == _SWEPT_AT_ONCE else None
            repaired = 0
            for run in runs:
                before, self._versions[run.id] = self._versions.get(run.id), run.version
                if before != run.version:
                    continue  # it progresses
                try:
                    steps = await engine.kernel.runs.repair(run.id, actor=self.server_id)
                except (Contended, Refused, NotFound):
                    continue  # it changes too fast to need repair, or is gone
                if steps:
                    repaired += 1
                    _log.warning("run %s had steps without a live task (%s) and was repaired", run.id, ", ".join(steps[:5]))
            while len(self._versions) > _REMEMBERED_RUNS:
                self._versions.popitem(last=False)
            await self._persistence.locks.tidy()
            return repaired

        return self._persistence.run(look())

    def _state_now(self) -> str:
        if self._profile.error is not None:
            return ServerState.ERROR
        if self._stop.is_set():
            return ServerState.SHUTDOWN
        return ServerState.RUNNING if self.is_running else ServerState.STARTUP

    def _describe(self) -> dict[str, Any]:
        counts = self._profile.copy_counts()
        host = self._host or self._stopping
        return {
            "server_id": self.server_id,
            "state": self._state_now(),
            "running": self.is_running,
            "uptime_ms": round((self._persistence.engine.kernel.clock.monotonic() - self._started_at) * 1000),
            "handled": {name: {"handled": done, "not_handled": not_done} for name, (done, not_done) in counts.items()},
            "active_work_items": 0 if host is None else host.worker.running,
            "config": asdict(self._config),
        }


@contextmanager
def stopped_by_signals(stop: Any) -> Iterator[None]:
    """Stop the service on SIGTERM and SIGINT, if it runs in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
