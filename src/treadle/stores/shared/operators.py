"""Settings that operators change: task lists, rates, limits, handler registrations, and budgets of runs."""

from __future__ import annotations

from typing import Any

import msgspec

from treadle.model.lists import LaneRule, Limit, TaskList
from treadle.model.names import Lane
from treadle.model.records import HandlerRegistration
from treadle.model.usage import Budget, Usage
from treadle.stores.rules.encoding import registration_of
from treadle.stores.shared.port import Port

_RULE_COLUMNS = ("rate", "burst", "tokens", "tokens_at", "backlog_limit", "limit_key")


class Settings(Port):
    """What both stores have in common of the `OperatorStore`."""

    async def list_lists(self) -> list[TaskList]:
        return await self._database.fetch_as(TaskList, "list_lists")

    async def list_lane_rules(self) -> list[LaneRule]:
        return [lane_rule(*row) for row in await self._database.fetch("list_lane_rules")]

    async def set_backlog_limit(self, lane_id: int, backlog_limit: int | None) -> None:
        await self._database.execute("set_backlog_limit", lane_id=lane_id, backlog_limit=backlog_limit)

    async def list_limits(self, namespace: str) -> list[Limit]:
        return await self._database.fetch_as(Limit, "list_limits", namespace=namespace)

    async def list_admitted(self, namespace: str, key: str, limit: int) -> list[str]:
        return await self._list_ids("list_admitted", namespace=namespace, key=key, limit=max(limit, 0))

    async def list_handler_keys(self, namespace: str) -> dict[str, str]:
        return dict(await self._database.fetch("list_handler_keys", namespace=namespace))

    async def list_handlers(self, namespace: str) -> list[HandlerRegistration]:
        return [registration_of(row) for row in await self._database.fetch("list_handlers", namespace=namespace)]

    async def save_handler(self, namespace: str, registration: HandlerRegistration) -> None:
        await self._database.execute(
            "save_handler",
            namespace=namespace,
            facet_name=registration.facet_name,
            module_uri=registration.module_uri,
            entrypoint=registration.entrypoint,
            version=registration.version,
            checksum=registration.checksum,
            timeout_for=registration.timeout_ms,
            requirements=msgspec.json.encode(registration.requirements).decode(),
            metadata=msgspec.json.encode(registration.metadata).decode(),
        )

    async def delete_handler(self, namespace: str, facet_name: str) -> bool:
        return await self._database.execute("delete_handler", namespace=namespace, facet_name=facet_name) > 0


def lane_rule(
    lane_id: int, namespace: str, kind: str, task_list: str, name: str, paused: Any, accepting: Any, *rest: Any
) -> LaneRule:
    """Return a row of the lanes as a rule; SQLite has numbers for truth values."""
    values = dict(zip(_RULE_COLUMNS, rest, strict=True))
    lane = Lane(namespace, kind, task_list, name)
    return LaneRule(lane_id=lane_id, lane=lane, paused=bool(paused), accepting=bool(accepting), **values)


class Budgets(Port):
    """What both stores have in common of the `UsageStore`: all but reservations and settlements."""

    async def set_budget(self, run_id: str, limit_micros: int | None) -> None:
        await self._database.execute("set_budget", run_id=run_id, limit_micros=limit_micros)

    async def forget_budget(self, run_id: str) -> None:
        await self._database.execute("forget_budget", run_id=run_id)

    async def find_budget(self, run_id: str) -> Budget | None:
        rows = await self._database.fetch("find_budget", run_id=run_id)
        return Budget(*rows[0]) if rows else None

    async def list_requests(self, run_id: str) -> list[Usage]:
        return await self._database.fetch_as(Usage, "list_usage", run_id=run_id)
