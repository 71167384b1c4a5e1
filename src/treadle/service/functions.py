"""Calls about durable functions, on an engine."""

from __future__ import annotations

from typing import Unpack

from treadle.api.functions import FunctionList, FunctionsApi, RunAdopted
from treadle.api.options import FunctionOptions
from treadle.api.runs import RunStarted
from treadle.model.values import Json
from treadle.service.run_group import RunGroup


class Functions(RunGroup, FunctionsApi):
    """See `FunctionsApi`."""

    async def list(self) -> FunctionList:
        return FunctionList(await self.engine.kernel.functions.list_shown())

    async def start(
        self,
        name: str,
        payload: dict[str, Json] | None = None,
        **options: Unpack[FunctionOptions],
    ) -> RunStarted:
        return await self.started(await self.engine.start_function(name, payload, actor=self.actor, **options))

    async def adopt(self, run_id: str, version: int) -> RunAdopted:
        run = await self.engine.kernel.run_services.function_runs.adopt(run_id, version, actor=self.actor)
        known = await self.engine.kernel.functions.list_shown()
        servers = sum(each.servers for each in known if (each.name, each.version) == (run.workflow, version))
        return await self.shown(RunAdopted, run, servers=servers)
