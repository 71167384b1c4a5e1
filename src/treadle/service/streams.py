"""Calls about streams, on an engine."""

from __future__ import annotations

from treadle.api.streams import StreamList, StreamPage, StreamsApi
from treadle.api.tasks import WAIT_LIMIT
from treadle.model.errors import InvalidInput, RunNotFound, StreamNotFound, TaskNotFound
from treadle.service.group import Group


class Streams(Group, StreamsApi):
    """See `StreamsApi`."""

    async def list(self, member_id: str) -> StreamList:
        await self._check(member_id)
        return StreamList(await self.engine.kernel.streams.list_streams(member_id))

    async def read(self, member_id: str, name: str, *, offset: int = 0, limit: int = 1000, wait_for: float = 0.0) -> StreamPage:
        if not 0 <= wait_for <= WAIT_LIMIT:
            raise InvalidInput(f"wait_for must be from 0 to {WAIT_LIMIT:g} seconds, not {wait_for:g}.")
        await self._check(member_id)
        page = await self.engine.kernel.streams.read(member_id, name, offset=offset, limit=limit, wait_for=wait_for)
        if page.ended and not page.entries:
            written = [each.name for each in await self.engine.kernel.streams.list_streams(member_id)]
            if name not in written:
                raise StreamNotFound(member_id, name, written)
        return page

    async def _check(self, member_id: str) -> None:
        """Raise `RunNotFound` unless the caller may see the run or the task."""
        try:
            await self.find_run(member_id)
        except RunNotFound as error:
            try:
                await self.find_task(member_id)
            except TaskNotFound:
                raise error from None
