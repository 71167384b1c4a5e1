"""What the goal pipeline needs, made together from an engine's parts. Loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.goals.artifacts import Artifacts
from treadle.goals.monitor import Monitor
from treadle.goals.reads import GoalReads
from treadle.goals.roles import Outside, Roles
from treadle.goals.schemas import need_jsonschema
from treadle.goals.service import Objectives
from treadle.goals.settler import GoalSettler
from treadle.goals.topology import Topology
from treadle.model.names import GOAL_KINDS
from treadle.workers.call import Executor

if TYPE_CHECKING:
    from treadle.wiring.engine import Engine


class GoalKernel:
    """Objectives, what is read of them, and the settler of the roles of one engine."""

    def __init__(self, engine: Engine) -> None:
        need_jsonschema()
        namespace = engine.settings.namespace
        store, committer = engine.store, engine.committer
        self._engine = engine
        self.artifacts = Artifacts(store, engine.value_store, namespace=namespace)
        reads = GoalReads(store, self.artifacts, engine.reads, namespace=namespace)
        self.objectives = Objectives(store, committer, self.artifacts, reads, engine.ids, namespace=namespace)
        self.monitor = Monitor(store, committer, self.artifacts, namespace=namespace)
        self.settler = GoalSettler(
            store, committer, self.artifacts, lambda: engine.topology, engine.clock, engine.emit, namespace=namespace
        )

    def roles(self, topology: Topology, executor: Executor) -> Roles:
        """The roles that the topology gives to a worker of this engine; their tasks are settled here from now on."""
        engine = self._engine
        settler = engine.run_kernel.settler
        settler.by_kind.update(dict.fromkeys(GOAL_KINDS, self.settler.settle))
        return Roles(Outside(topology, self.artifacts, self.monitor, engine.registry, engine.gates, executor, engine.clock))
