"""What the goal pipeline needs, made together from an engine's parts. Loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.kernel.goal_artifacts import Artifacts
from treadle.kernel.goal_monitor import Monitor
from treadle.kernel.goal_reads import GoalReads
from treadle.kernel.goal_schemas import need_jsonschema
from treadle.kernel.goal_settler import GoalSettler
from treadle.kernel.objectives import Objectives
from treadle.model.names import GOAL_KINDS
from treadle.model.topology import Topology
from treadle.workers.call import Executor
from treadle.workers.goals import Outside, Roles

if TYPE_CHECKING:
    from treadle.wiring.engine import Engine


class GoalKernel:
    """Objectives, what is read of them, and the settler of the roles of one engine."""

    def __init__(self, engine: Engine) -> None:
        need_jsonschema()
        namespace = engine.settings.namespace
        store, committer = engine.store, engine.committer
        self._engine = engine
        self.artifacts = Artifacts(store, engine.vault, namespace=namespace)
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
