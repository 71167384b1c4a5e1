"""The part of `Engine` that is about the goal pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from treadle.model.clock import Duration
from treadle.workers.handlers import make_handler

if TYPE_CHECKING:
    from treadle.goals.gates import Gates
    from treadle.goals.service import Objectives
    from treadle.goals.topology import Topology
    from treadle.goals.wiring import GoalKernel
    from treadle.wiring.engine import Engine

G = TypeVar("G", bound=Callable[..., Any])


class GoalFace:
    """Objectives, gates and the topology; loaded when they are first used, as they need the extra `goals`."""

    topology: Topology | None = None
    """What this engine's workers do in the goal pipeline; see `use_topology`."""
    _gates: Gates | None = None
    _goal_kernel: GoalKernel | None = None

    @property
    def goals(self) -> GoalKernel:
        """What the goal pipeline needs."""
        if self._goal_kernel is None:
            from treadle.goals.wiring import GoalKernel

            self._goal_kernel = GoalKernel(cast("Engine", self))
        return self._goal_kernel

    @property
    def objectives(self) -> Objectives:
        """Objectives: what people want, and how far it is."""
        return self.goals.objectives

    @property
    def gates(self) -> Gates:
        """The gates of the goal pipeline that this process has."""
        if self._gates is None:
            from treadle.goals.gates import Gates

            self._gates = Gates()
        return self._gates

    def gate(self, name: str, *, timeout: Duration | None = None) -> Callable[[G], G]:
        """Register the decorated function as a gate of the goal pipeline: it takes (bundle) or (bundle, ctx), and judges it."""

        def register(call: G) -> G:
            self.gates.add(make_handler(name, call, timeout=timeout))
            return call

        return register

    def use_topology(self, path: str | Path, *, roles: Iterable[str] | None = None) -> Topology:
        """Let this engine's workers play the roles of that topology file in the goal pipeline, or only those of `roles`."""
        from treadle.goals.topology_file import load_topology, with_roles

        self.topology = with_roles(load_topology(path), roles)
        return self.topology

    @property
    def topology_interval(self) -> float | None:
        """Seconds between looks, if the topology says so."""
        interval_for = None if self.topology is None else self.topology.interval_for()
        return None if interval_for is None else interval_for / 1000
