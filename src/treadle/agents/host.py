"""The worker of an agent, registered with the agent's profile."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import msgspec

from treadle.engine.kernel import Kernel
from treadle.engine.worker_host import WorkerHost
from treadle.kernel.telemetry.events import TaskSettled, TelemetryEvent
from treadle.model.tasks import Server
from treadle.workers.lease_renewer import LeaseRenewer

OWN_KINDS = 16
"""Slots for the engine's own tasks beside those of handlers, so that neither blocks the other."""


@dataclass(slots=True)
class Profile:
    """An agent's entry in the server registry; it counts handled tasks by name, completed and not completed."""

    server_group: str
    service_name: str
    server_name: str
    topics: tuple[str, ...]
    max_concurrent: int
    error: dict[str, Any] | None = None
    renew_every: float | None = None
    """Seconds between renewals of a claim; None: a third of its lease."""
    _counts: dict[str, list[int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, name: str, done: bool) -> None:
        """Count one task; thread-safe."""
        with self._lock:
            self._counts.setdefault(name, [0, 0])[0 if done else 1] += 1

    def copy_counts(self) -> dict[str, list[int]]:
        """Return a copy of the counts; thread-safe."""
        with self._lock:
            return {name: list(counts) for name, counts in self._counts.items()}


class AgentHost(WorkerHost):
    """A `WorkerHost` that registers with an agent's profile and counts its tasks by name."""

    def __init__(self, kernel: Kernel, profile: Profile, **options: Any) -> None:
        self._profile = profile
        super().__init__(kernel, emit=self._heard, name=profile.server_name, **options)

    def _heard(self, event: TelemetryEvent) -> None:
        if isinstance(event, TaskSettled) and event.transition in ("succeed", "fail"):
            self._profile.count(event.name, event.transition == "succeed")
        self._kernel.emit(event)

    def _make_lease_renewer(self) -> LeaseRenewer:
        lease_renewer = super()._make_lease_renewer()
        if self._profile.renew_every is not None:
            lease_renewer.renew_every = self._profile.renew_every
        return lease_renewer

    def describe(self) -> Server:
        """Return the row of this agent in `servers`."""
        profile, server = self._profile, super().describe()
        return msgspec.structs.replace(
            server,
            state="error" if profile.error is not None else self._state,
            concurrency=profile.max_concurrent,
            server_group=profile.server_group,
            service_name=profile.service_name,
            topics=list(profile.topics),
            counts=profile.copy_counts(),
            error=server.error if profile.error is None else msgspec.json.encode(profile.error).decode(),
        )
