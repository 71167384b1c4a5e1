"""Shared part of the groups that start runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.api import runs as api
from treadle.api.runs import RunStarted
from treadle.kernel.functions.steps import is_function
from treadle.kernel.queue.why import shown_server_state
from treadle.kernel.runs.flows import find_workflow, missing_handlers, needed_handlers
from treadle.kernel.runs.records import StartedRun
from treadle.model.errors import UnreadableValue
from treadle.model.runs import Run
from treadle.model.tags import decode_tags
from treadle.service.group import Group
from treadle.service.run_records import R, run_record


class RunGroup(Group):
    """Base of the groups that start runs."""

    async def started(self, started: StartedRun) -> RunStarted:
        """The run, with the handlers that it needs and that no live worker has."""
        run = await self.find_run(started.id)  # an idempotency key may stand for a run of another list
        servers, now = (
            await self.engine.kernel.store.servers.list_all(self.engine.kernel.settings.namespace),
            await self.engine.kernel.store.now(),
        )
        live = [each for each in servers if shown_server_state(each, now) == "running" and run.task_list in each.task_lists]
        missing = await self.missing_handlers(run)
        return await self.shown(RunStarted, run, created=started.created, missing_handlers=missing, workers=len(live))

    async def shown(self, kind: type[R], run: Run, **more: Any) -> R:
        """A record of the run with its activity, and `more`."""
        reads = self.engine.kernel.run_reads
        activity, took = await reads.activities([run]), await reads.times([run])
        tags = await self.engine.kernel.search.list_tags([run.id])
        return run_record(kind, run, activity.get(run.id), took.get(run.id), tags=decode_tags(tags.get(run.id, {})), **more)

    async def listed(self, found: Sequence[Run]) -> list[api.Run]:
        """Records of runs for a list."""
        reads = self.engine.kernel.run_reads
        doing, took = await reads.activities(found), await reads.times(found)
        tags = await self.engine.kernel.search.list_tags([run.id for run in found])
        return [
            run_record(api.Run, run, doing.get(run.id), took.get(run.id), tags=decode_tags(tags.get(run.id, {}))) for run in found
        ]

    async def missing_handlers(self, run: Run) -> list[str]:
        """The handlers that the workflow may need and no live worker has; none if it is finished, a function or unreadable."""
        if run.finished or is_function(run.flow_id):
            return []
        try:
            program = await self.engine.kernel.flows.program(run.flow_id)
        except UnreadableValue:
            return []
        needed = needed_handlers(program, find_workflow(program, run.workflow))
        servers, now = (
            await self.engine.kernel.store.servers.list_all(self.engine.kernel.settings.namespace),
            await self.engine.kernel.store.now(),
        )
        return missing_handlers(needed, (), servers, run.task_list, now)
