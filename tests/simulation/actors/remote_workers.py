"""Remote workers: they register, claim, hold and settle through whichever server answers, and never see the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from tests.simulation.wire import Disconnected

from treadle import ApprovalRequest, Engine
from treadle.kernel.remote_workers.claim_waiters import POLL_EVERY
from treadle.kernel.remote_workers.service import RemoteWorkers
from treadle.kernel.store.queries import TaskFilter
from treadle.model.errors import ClaimLost, NotFound, StoreError, TaskNotFound
from treadle.model.names import HANDLER
from treadle.model.tasks import ClaimedTask, Task
from treadle.testing.simulation import Process

if TYPE_CHECKING:
    from tests.simulation.history import History

T = TypeVar("T")

_READY = TaskFilter(states=("pending",), kind=HANDLER)


class RemoteWorker:
    """One program, started again by the history when it dies; each start is a worker of its own."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._rng = history.rng
        self._heard: set[tuple[str, str, int]] = set()
        """Claims of which it was heard that their work is done."""

    async def play(self, process: Process) -> None:
        """Register, and work until that is enough."""
        while True:
            worker_id = await self._until_heard(
                lambda them: them.register(process.name, handlers=["out.*"], concurrency=3, heartbeat_every=2)
            )
            process.trace(f"is the worker {worker_id.id[-6:]}")
            try:
                await self._work(process, worker_id.id)
            except NotFound:
                process.trace("is not known any more")

    async def _work(self, process: Process, worker_id: str) -> None:
        loop = self._history.simulation.loop
        working: set[asyncio.Task[None]] = set()
        while True:
            wait_for = self._rng.choice((0, 1, 10))
            began, healed = loop.time(), not self._history.simulation.faults.on
            try:
                claimed = await self._ask(
                    lambda them, wait_for=wait_for: them.claim(  # type: ignore[misc]
                        worker_id, limit=self._rng.choice((1, 3)), wait_for=wait_for, lease_for=self._history.simulation.lease
                    )
                )
            except (Disconnected, StoreError):
                await asyncio.sleep(self._rng.random())
                continue
            if not claimed and healed and loop.time() - began > POLL_EVERY + 2:
                await self._check_nothing_was_ready(process)
            for task in claimed:
                process.trace(f"has {task.task.id[-6:]}#{task.task.claim_version}")
                activity = asyncio.get_running_loop().create_task(self._do(process, worker_id, task))
                working.add(activity)
                activity.add_done_callback(working.discard)
            if not wait_for:
                await asyncio.sleep(self._rng.random() * 2)
            if working and self._rng.random() < 0.5:
                await asyncio.wait(working)

    async def _check_nothing_was_ready(self, process: Process) -> None:
        """Check that no task was ready while a long poll returned nothing."""
        simulation = self._history.simulation
        since = process.clock.now() - (POLL_EVERY + 1) * 1000
        for task in await simulation.store.tasks.list_matching(_READY, 100):
            if task.name.startswith("out.") and _is_ready(task) and task.due_at < since and task.created_at < since:
                simulation.wrong(f"{process.shown} waited, and was not given {task.id} ({task.name}), which was ready")

    async def _do(self, process: Process, worker_id: str, claimed: ClaimedTask) -> None:
        """Do the task while its lease is kept; what is said of it is said until somebody has heard it."""
        task = claimed.task
        claim = (worker_id, task.id, task.claim_version)
        keeping = asyncio.get_running_loop().create_task(self._keep(*claim))
        try:
            await asyncio.sleep(claimed.payload.get("takes", 1))
            await self._history.stand_still(process)
            await self._say(process, claimed, claim)
        except (ClaimLost, TaskNotFound) as error:
            process.trace(f"has lost {task.id[-6:]}: {type(error).__name__}")
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _keep(self, *claim: Any) -> None:
        while True:
            await asyncio.sleep(self._history.simulation.lease / 3)
            try:
                await self._ask(lambda them: them.heartbeat(*claim, lease_for=self._history.simulation.lease))
            except (Disconnected, StoreError):
                continue
            except (ClaimLost, TaskNotFound):
                return

    async def _say(self, process: Process, claimed: ClaimedTask, claim: tuple[str, str, int]) -> None:
        task, payload = claimed.task, claimed.payload
        world = self._history.world
        first = payload.get("first", "complete")
        world.entered[task.id] += 1
        if first == "partial":
            await self._until_heard(lambda them: them.partial(*claim, {"half": True}))
        if first == "ask" and not claimed.approval_decisions:
            await self._until_heard(lambda them: them.ask(*claim, ApprovalRequest.of("May I go on?", expires=60)))
        elif first in ("fail", "release", "wait") and world.entered[task.id] == 1:
            sayings: dict[str, Callable[[RemoteWorkers], Awaitable[Any]]] = {
                "fail": lambda them: them.fail(*claim, "not yet", after=1),
                "release": lambda them: them.release(*claim),
                "wait": lambda them: them.wait(*claim, 2, checkpoint={"waited": True}),
            }
            await self._until_heard(sayings[first])
        else:
            result = {"out": 2 * payload["n"]} if "n" in payload else {"key": payload["key"], "by": task.claim_version}
            for _ in range(self._rng.choice((1, 1, 2))):
                await self._complete(process, claim, result)

    async def _complete(self, process: Process, claim: tuple[str, str, int], result: dict[str, Any]) -> None:
        """Complete the task; repeating the call changes nothing and is not an error."""
        history, task_id = self._history, claim[1]
        try:
            await self._until_heard(lambda them: them.complete(*claim, result))
        except ClaimLost:
            if claim in self._heard and not history.prunes:
                history.simulation.wrong(f"{process.shown} said again that {task_id} is done, and was told that it had lost it")
            raise
        self._heard.add(claim)
        history.world.acknowledged[task_id] = result

    async def _until_heard(self, what: Callable[[RemoteWorkers], Awaitable[T]]) -> T:
        while True:
            try:
                return await self._ask(what)
            except (Disconnected, StoreError):
                await asyncio.sleep(self._rng.random())

    async def _ask(self, what: Callable[[RemoteWorkers], Awaitable[T]]) -> T:
        async def served(engine: Engine) -> T:
            return await what(engine.kernel.remote_workers)

        return await self._history.wire.call(served)


def _is_ready(task: Task) -> bool:
    return task.owner_id is None and task.wake_at is None and not task.blocked_by
