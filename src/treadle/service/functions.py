"""Calls about durable functions, on an engine."""

from __future__ import annotations

from treadle.api.functions import Function, FunctionList, FunctionsApi, RunAdopted
from treadle.api.runs import RunStarted
from treadle.api.wire import record_of
from treadle.model.names import DEFAULT_LIST
from treadle.model.values import Json
from treadle.service.run_group import RunGroup
from treadle.service.run_records import run_record


class Functions(RunGroup, FunctionsApi):
    """See `FunctionsApi`."""

    async def list(self) -> FunctionList:
        found = await self.engine.functions.list_shown()
        return FunctionList([record_of(Function, each) for each in found])

    async def start(
        self,
        name: str,
        payload: dict[str, Json] | None = None,
        *,
        version: int | None = None,
        idempotency_key: str | None = None,
        task_list: str = DEFAULT_LIST,
        priority: int = 0,
        trace_id: str | None = None,
    ) -> RunStarted:
        self.access.check_list(task_list)
        started = await self.engine.start_function(
            name,
            payload,
            version=version,
            idempotency_key=idempotency_key,
            task_list=task_list,
            priority=priority,
            trace_id=trace_id,
            actor=self.actor,
        )
        return await self.started(started)

    async def adopt(self, run_id: str, version: int) -> RunAdopted:
        run = await self.engine.kernel.run_services.function_runs.adopt(run_id, version, actor=self.actor)
        known = await self.engine.functions.list_shown()
        servers = sum(each.servers for each in known if (each.name, each.version) == (run.workflow, version))
        return run_record(RunAdopted, run, servers=servers)
