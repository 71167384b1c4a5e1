"""Taking tasks for whoever executes them: what waits for a person is tended on the way, and never handed out."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.approvals import Tend
from treadle.kernel.crashpoints import reach
from treadle.kernel.ports import Store
from treadle.model.states import TaskState
from treadle.model.tasks import Task


async def take(store: Store, tend: Tend, lane_ids: Sequence[int], owner_id: str, lease_for: int, limit: int) -> list[Task]:
    """Take up to `limit` tasks of the lanes, in as many calls as that needs; none means that nothing was ready.

    A task that waits for an approval is ready when a reminder or its expiry is due: that is done here, as it is no handler's
    business.
    """
    taken: list[Task] = []
    while lane_ids and len(taken) < limit:
        tasks = await store.claim(lane_ids, owner_id, lease_for, limit - len(taken))
        if not tasks:
            break
        reach("claim.after")
        for task in tasks:
            if task.state == TaskState.AWAITING_APPROVAL:
                await tend(task, task.claim)
            else:
                taken.append(task)
    return taken
