"""The goal pipeline as an extension of an engine. Its services are imported on first use, as they need the extra `goals`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from treadle.api.tasks import Why
from treadle.goals.kinds import GOAL_KINDS
from treadle.kernel.queue.decide import TaskDecision
from treadle.kernel.store.units import Finish, Row, UnitAnswer
from treadle.model.clock import Duration
from treadle.model.records import Record
from treadle.model.states import OBJECTIVE
from treadle.model.tasks import Claim, NewTask, Task
from treadle.workers.context import make_handler

if TYPE_CHECKING:
    from treadle.engine.kernel import Kernel
    from treadle.goals.artifacts import Artifacts
    from treadle.goals.gates import Gates
    from treadle.goals.roles import Roles
    from treadle.goals.service import Objectives
    from treadle.goals.settler import GoalSettler
    from treadle.goals.topology import Topology
    from treadle.workers.call import Executor

G = TypeVar("G", bound=Callable[..., Any])


class Goals:
    """Objectives, gates and the topology of one engine."""

    kinds = GOAL_KINDS

    def __init__(self) -> None:
        self.topology: Topology | None = None
        """The roles of this engine's workers; set by `use_topology`."""

    def attach(self, kernel: Kernel) -> None:
        """Use that kernel from now on."""
        self._kernel = kernel
        for service in ("artifacts", "objectives", "settler"):
            self.__dict__.pop(service, None)

    @cached_property
    def artifacts(self) -> Artifacts:
        """The stored artifacts."""
        from treadle.goals.artifacts import Artifacts

        return Artifacts(self._kernel.core)

    @cached_property
    def objectives(self) -> Objectives:
        """Objectives: add, approve, block, show."""
        from treadle.goals.service import Objectives

        return Objectives(self._kernel, self.artifacts)

    @cached_property
    def settler(self) -> GoalSettler:
        """The end of the roles' tasks."""
        from treadle.goals.settler import GoalSettler

        return GoalSettler(self._kernel.core, self.artifacts, lambda: self.topology)

    @cached_property
    def gates(self) -> Gates:
        """The gates registered in this process."""
        from treadle.goals.gates import Gates

        return Gates()

    async def explain(self, record: Record) -> Why | None:
        """Return the reason for the status of an objective; None for any other record."""
        if record.entity != OBJECTIVE.entity:
            return None
        trail = await self.objectives.show(record.id)
        return Why(record.id, trail.objective.title, trail.objective.status, "objective", trail.why)

    def gate(self, name: str, *, timeout: Duration | None = None) -> Callable[[G], G]:
        """Register the decorated function as a gate: it takes (bundle) or (bundle, ctx), and judges it."""

        def register(call: G) -> G:
            self.gates.add(make_handler(name, call, timeout=timeout))
            return call

        return register

    def use_topology(self, path: str | Path, *, roles: Iterable[str] | None = None) -> Topology:
        """Assign the roles of that topology file, or only those in `roles`, to the workers of this engine."""
        from treadle.goals.topology import load_topology, with_roles

        self.topology = with_roles(load_topology(path), roles)
        return self.topology

    async def withdraw_role(self, name: str) -> None:
        """Send no more events to an additional role; workers whose topology declares it declare it again when they start."""
        await self.artifacts.put_roles({name: None})

    @property
    def lease_for(self) -> int | None:
        """The lease in milliseconds that the topology sets."""
        return None if self.topology is None else self.topology.lease_for()

    @property
    def poll_every(self) -> float | None:
        """Seconds between two polls, if the topology sets them."""
        interval_for = None if self.topology is None else self.topology.interval_for()
        return None if interval_for is None else interval_for / 1000

    async def follow(self, task: Task, finish: Finish) -> tuple[tuple[NewTask, ...], tuple[Row, ...]]:
        """Return the consequences of an operator ending a role's task."""
        return await self.settler.follow(task, finish)

    async def settle(self, task: Task, claim: Claim, decided: TaskDecision) -> UnitAnswer:
        """Commit the end of a role's task with the decision that follows from it."""
        return await self.settler.settle(task, claim, decided)

    def serve(self, executor: Executor) -> Roles | None:
        """Return the handlers of the roles that the topology assigns to this process."""
        if self.topology is None:
            return None
        from treadle.goals.roles import Roles

        return Roles(self._kernel, self.artifacts, self.settler, self.topology, self.gates, executor)
