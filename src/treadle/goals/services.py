"""The services of the goal pipeline on one kernel; imported on first use."""

from __future__ import annotations

from collections.abc import Callable

from treadle.engine.kernel import Kernel
from treadle.goals.artifacts import Artifacts
from treadle.goals.reads import GoalReads
from treadle.goals.schemas import need_jsonschema
from treadle.goals.service import Objectives
from treadle.goals.settler import GoalSettler, Monitor
from treadle.goals.topology import Topology


class GoalServices:
    """Objectives, their reads, the deadline monitor and the settler of the roles."""

    def __init__(self, kernel: Kernel, topology: Callable[[], Topology | None]) -> None:
        need_jsonschema()
        namespace = kernel.settings.namespace
        store, committer = kernel.store, kernel.committer
        self.artifacts = Artifacts(store, kernel.value_store, namespace=namespace)
        reads = GoalReads(store, self.artifacts, kernel.reads, namespace=namespace)
        self.objectives = Objectives(store, committer, self.artifacts, reads, kernel.ids, namespace=namespace)
        self.monitor = Monitor(store, committer, self.artifacts, namespace=namespace)
        self.settler = GoalSettler(store, committer, self.artifacts, topology, kernel.clock, kernel.emit, namespace=namespace)
