"""Calls about watchers, on an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from treadle.api.options import WatcherChanges, WatcherOptions
from treadle.api.watchers import SeenItem, SeenPage, WatchedSource, Watcher, WatcherPage, WatchersApi
from treadle.api.wire import record_of
from treadle.kernel.watchers import service as kernel
from treadle.kernel.watchers.options import make_body
from treadle.model.access import Scope
from treadle.model.addresses import is_allowed
from treadle.model.errors import WatchForbidden
from treadle.model.watchers import DIRECTORY, HTTP
from treadle.service.group import Group


class Watchers(Group, WatchersApi):
    """See `WatchersApi`. Options that are None were not given."""

    async def list(self, *, every: bool = False, limit: int = 100, before: str | None = None) -> WatcherPage:
        found = await self.engine.watchers.list_watchers(ended=every, limit=limit, before_id=before)
        return WatcherPage([_record(each) for each in found], found[-1].id if len(found) == limit else None)

    async def create(self, name: str, *, paused: bool = False, **options: Unpack[WatcherOptions]) -> Watcher:
        return _record(await self.engine.watchers.create(name, paused=paused, actor=self.actor, **_given(options)))

    async def permit_create(self, name: str, *, paused: bool, idempotency_key: str | None = None, **options: Any) -> None:
        """Only administrators may watch places that the settings do not allow."""
        source = make_body(_given(options)).source
        if not self.access.may(Scope.ADMIN) and not is_allowed(source.place, self.engine.kernel.settings.watch_allow):
            raise WatchForbidden(source.place)

    async def get(self, name: str) -> Watcher:
        return _record(await self.engine.watchers.get(name))

    async def seen(self, name: str, *, after: str | None = None, limit: int = 100) -> SeenPage:
        found = await self.engine.watchers.list_seen(name, after=after, limit=limit)
        items = [record_of(SeenItem, item, name=key, settling=item.pending is not None) for key, item in found]
        return SeenPage(items, found[-1][0] if len(found) == limit else None)

    async def edit(self, name: str, *, clear: Sequence[str] = (), **options: Unpack[WatcherChanges]) -> Watcher:
        changes = dict.fromkeys(clear) | _given(options)
        return _record(await self.engine.watchers.edit(name, actor=self.actor, **changes))  # type: ignore[arg-type]

    async def pause(self, name: str) -> Watcher:
        return _record(await self.engine.watchers.pause(name, actor=self.actor))

    async def resume(self, name: str) -> Watcher:
        return _record(await self.engine.watchers.resume(name, actor=self.actor))

    async def remove(self, name: str) -> Watcher:
        return _record(await self.engine.watchers.remove(name, actor=self.actor))

    async def look(self, name: str) -> Watcher:
        return _record(await self.engine.watchers.look(name, actor=self.actor))


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _record(watcher: kernel.Watcher) -> Watcher:
    body, source = watcher.body, watcher.body.source
    shown = record_of(
        WatchedSource,
        source,
        pattern=source.pattern if source.kind == DIRECTORY else None,
        timeout_for=source.timeout_for if source.kind == HTTP else None,
    )
    return record_of(Watcher, watcher, body, source=shown)
