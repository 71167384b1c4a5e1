"""Calls about traces, on an engine."""

from __future__ import annotations

from treadle.api.traces import Trace, TracesApi
from treadle.service.group import Group


class Traces(Group, TracesApi):
    """See `TracesApi`."""

    async def get(self, any_id: str, *, group: str | None = None, limit: int = 200, after: str | None = None) -> Trace:
        return await self.engine.kernel.traces.get(any_id, group=group, limit=limit, after=after)
