"""Names that services once had on `Engine`. They still work for users; the project itself uses the new ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import apsw

    from treadle.goals.service import Objectives
    from treadle.goals.topology import Topology
    from treadle.kernel.access.sessions import Sessions
    from treadle.kernel.access.tokens import Tokens
    from treadle.kernel.external.service import ExternalJobs
    from treadle.kernel.functions.service import Functions
    from treadle.kernel.lists import Lists
    from treadle.kernel.queue.dead_letters import DeadLetters
    from treadle.kernel.reads.demand import Scaling
    from treadle.kernel.recovery import Recovery
    from treadle.kernel.remote_workers.service import RemoteWorkers
    from treadle.kernel.runs.flows import Flows
    from treadle.kernel.runs.reads import RunReads
    from treadle.kernel.store.ports import Store
    from treadle.kernel.store.verify import VerifyReport
    from treadle.kernel.telemetry.observer import Telemetry


class FormerNames:
    """Attributes that are found in `kernel`, `kernel.reads` or `goals`."""

    dead_letters: DeadLetters
    external_jobs: ExternalJobs
    flows: Flows
    functions: Functions
    lists: Lists
    recovery: Recovery
    remote_workers: RemoteWorkers
    run_reads: RunReads
    sessions: Sessions
    store: Store
    telemetry: Telemetry
    tokens: Tokens
    read_connection: Callable[[], apsw.Connection]
    use_tracing: Callable[..., None]
    verify: Callable[[], Awaitable[VerifyReport]]
    desired_workers: Callable[..., Awaitable[Scaling]]
    gate: Callable[..., Callable[[Any], Any]]
    objectives: Objectives
    use_topology: Callable[..., Topology]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in FormerNames.__annotations__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            if name == "desired_workers":
                return self.kernel.reads.desired_workers
            return getattr(self.goals if name in ("gate", "objectives", "use_topology") else self.kernel, name)
