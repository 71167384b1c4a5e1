"""Outside workers, wired into an engine: interfaces offer them what `engine.remote_workers` does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from treadle.kernel.remote_workers.service import RemoteWorkers
from treadle.kernel.store.units import Answer, Finish, Park
from treadle.model.tasks import Claim, Task
from treadle.model.values import Json

if TYPE_CHECKING:
    from treadle.wiring.engine import Engine


class RemoteWorkersFace:
    """The part of an engine that is about outside workers."""

    remote_workers: RemoteWorkers
    """Programs in any language that claim and settle tasks through an interface: register, claim, heartbeat, complete."""


def wire_remote_workers(engine: Engine) -> None:
    """Give the engine its outside workers; `wire_people` and `wire_services` come before it."""
    settings = engine.settings

    async def settle(task: Task, claim: Claim, decided: Finish | Park, patience: float | None) -> Answer:
        return await engine.run_kernel.settler.settle(task, claim, decided, patience)

    async def update_step(run_id: str, step_id: str, partial: Mapping[str, Json]) -> bool:
        return await engine.runs.update_step(run_id, step_id, partial)

    def is_prompt(name: str) -> bool:
        return engine.fallback is not None and engine.fallback.find(name) is not None

    engine.remote_workers = RemoteWorkers(
        engine.store,
        engine.committer,
        engine.value_store,
        engine.external_jobs,
        engine.clock,
        engine.ids,
        engine.emit,
        tend=engine.approvals.tend,
        is_prompt=is_prompt,
        namespace=settings.namespace,
        lease_for=round(settings.lease * 1000),
        result_limit=settings.payload_limit,
        settle=settle,
        update_step=update_step,
    )
