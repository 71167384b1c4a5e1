"""The configurations of agents; times are in milliseconds."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from functools import partial

from treadle.model.errors import InvalidPolicy
from treadle.model.names import check_name
from treadle.settings import agent_default


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
        check_name(self.task_list, "task list")
        self._check_whole("poll_interval_ms", "max_concurrent", "heartbeat_interval_ms")

    def _check_whole(self, *names: str) -> None:
        """Reject numbers that are not whole and positive."""
        for name in names:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise InvalidPolicy(f"{name} must be a whole number of 1 or more, not {value!r}.")


@dataclass
class RegistryRunnerConfig(AgentPollerConfig):
    """The configuration of a registry runner; times in milliseconds. `topics` are globs; without any, all facets are handled."""

    service_name: str = "afl-registry-runner"
    registry_refresh_interval_ms: int = 30000
    topics: list[str] = field(default_factory=lambda: list(agent_default("runner_topics")))

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_whole("registry_refresh_interval_ms")


@dataclass
class RunnerConfig(AgentPollerConfig):
    """The configuration of a runner; times in milliseconds.

    Its locks on work items are the claims on their tasks, extended at the latest after half of `lock_duration_ms`.
    """

    service_name: str = "afl-runner"
    topics: list[str] = field(default_factory=lambda: list(agent_default("runner_topics")))
    lock_duration_ms: int = 60000
    lock_extend_interval_ms: int = 20000
    shutdown_timeout_ms: int = 30000
    http_port: int = 8080
    http_max_port_attempts: int = 20
    http_host: str = field(default_factory=partial(agent_default, "http_host"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lock_duration_ms < 1 or self.lock_extend_interval_ms < 1:
            raise InvalidPolicy("lock_duration_ms and lock_extend_interval_ms must be 1 or more.")
        if self.shutdown_timeout_ms < 0 or not 0 <= self.http_port <= 65535 or self.http_max_port_attempts < 1:
            raise InvalidPolicy("shutdown_timeout_ms, http_port (to 65535) or http_max_port_attempts (from 1) is out of range.")
