"""Outside services, wired into an engine: their jobs, and what is stored with the end of tasks and runs that await one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.kernel.external.rebuild import ExternalUpkeep
from treadle.kernel.external.service import ExternalJobs
from treadle.kernel.queue.service import PATIENCE
from treadle.kernel.queue.why import Reason
from treadle.kernel.store.units import Answer, Finish, Park, Row, Seen
from treadle.model.clock import Duration
from treadle.model.runs import Run
from treadle.model.states import TaskState
from treadle.model.tasks import Task
from treadle.workers.handlers import Registry
from treadle.workers.specialists import AT_ONCE, POLL_WITHIN, register

if TYPE_CHECKING:
    from treadle.wiring.engine import Engine


def wire_services(engine: Engine) -> None:
    """Give the engine its outside jobs; `wire_people` comes before it."""
    namespace = engine.settings.namespace

    async def settle(task: Task, seen: Seen, decided: Finish | Park) -> Answer:
        return await engine.run_kernel.settler.settle(task, seen, decided, PATIENCE)

    engine.external_jobs = ExternalJobs(
        engine.store,
        engine.committer,
        engine.value_store,
        engine.ids,
        engine.emit,
        namespace=namespace,
        settle=settle,
        cancel=engine.queue.cancel,
        public_url=engine.settings.public_url,
    )
    engine.external_upkeep = ExternalUpkeep(engine.store, engine.committer, namespace=namespace)

    async def closing(task: Task) -> tuple[Row, ...]:
        return (*await engine.approvals.rows_for_end(task), *await engine.external_jobs.rows_for_end(task))

    async def why_awaiting(task: Task) -> Reason | None:
        external = task.state == TaskState.AWAITING_EXTERNAL
        return await (engine.external_jobs.why(task) if external else engine.approvals.why(task))

    engine.queue.closing = closing
    engine.queue.closing_tasks = engine.external_jobs.tasks_for_end
    engine.reads.why_awaiting = why_awaiting


async def closing_of_run(engine: Engine, run: Run) -> tuple[Row, ...]:
    """What is stored with the cancel of a run, besides its tasks and steps."""
    return (*await engine.approvals.rows_for_run(run), *await engine.external_jobs.rows_for_run(run))


class ServiceFace:
    """The part of an engine that is about outside services."""

    registry: Registry
    external_jobs: ExternalJobs
    """Jobs in outside services: list, show, poll now, cancel, resolve by call-back."""
    external_upkeep: ExternalUpkeep
    """Their records against their events."""

    def specialist(
        self,
        name: str,
        specialist: object = None,
        *,
        scope: str | None = None,
        timeout: Duration | None = POLL_WITHIN,
        concurrency: int = AT_ONCE,
        deadline: Duration | None = None,
        idempotent_start: bool | None = None,
    ) -> Any:
        """Register a specialist, an object or a class with `start` and `poll`, for tasks of that name; also as a decorator.

        See `treadle.Specialist` for what its methods promise. With a `scope`, it is for tasks enqueued with that scope alone.
        `timeout` bounds one call to the service, `concurrency` how many are made at once in a process, `deadline` how long a
        job may take in all. `idempotent_start` says that the service makes one job of two submits with the same token.
        """

        def register_it(given: Any) -> Any:
            register(
                self.registry,
                name,
                given,
                scope=scope,
                timeout=timeout,
                concurrency=concurrency,
                deadline=deadline,
                idempotent_start=idempotent_start,
            )
            return given

        return register_it if specialist is None else register_it(specialist)
