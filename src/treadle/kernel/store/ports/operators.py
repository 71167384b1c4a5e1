"""The port for operators: settings of task lists and lanes, limits, and handler registrations."""

from __future__ import annotations

from typing import Protocol

from treadle.kernel.store.ports.clock import StoreClock
from treadle.model.handlers import HandlerRegistration
from treadle.model.lists import LaneRule, Limit, TaskList


class OperatorStore(StoreClock, Protocol):
    """Settings that operators change at run time."""

    async def list_lists(self) -> list[TaskList]:
        """Return the lists that have settings; all other lists have the defaults."""

    async def set_list(
        self,
        namespace: str,
        task_list: str,
        *,
        paused: bool | None = None,
        accepting: bool | None = None,
        no_handler: str | None = None,
    ) -> tuple[int, ...]:
        """Change the settings that are not None, for all lanes of the list, including lanes created later.

        Returns the lanes that may have work now.
        """

    async def list_lane_rules(self) -> list[LaneRule]:
        """Return all lanes with their settings."""

    async def set_rate(self, lane_id: int, rate: float | None, burst: int | None) -> None:
        """Limit claims to `rate` tasks per second with bursts of up to `burst`; None removes the rate."""

    async def set_backlog_limit(self, lane_id: int, backlog_limit: int | None) -> None:
        """Refuse new tasks when the lane has `backlog_limit` ready tasks; None removes the cap."""

    async def list_limits(self, namespace: str) -> list[Limit]:
        """Return all limits of the namespace, each with its number of admitted and waiting tasks."""

    async def list_admitted(self, namespace: str, key: str, limit: int) -> list[str]:
        """Return the ids of up to `limit` admitted tasks of the key."""

    async def set_limit(self, namespace: str, key: str, max_running: int | None) -> tuple[int, ...]:
        """Set an operator's limit of the key; None removes it. Returns the lanes in which tasks became ready.

        For the key of a handler (`handler:NAME`), all tasks of that name without a key get it, including existing ones.
        Tasks that run when a limit is set or lowered continue; no other task of the key starts until there is room.
        """

    async def set_key_rate(self, namespace: str, key: str, rate: float | None, burst: int | None) -> tuple[int, ...]:
        """Let tasks of the key start at `rate` per second with bursts of up to `burst`; None removes the rate.

        Of any span of t seconds, no more than `burst + rate * t` claims of the key's tasks fall into it, across all workers. A
        change applies to waiting tasks immediately; tokens that are left stay, up to the new burst. Returns the lanes in which
        tasks became ready.
        """

    async def set_handler_key(self, namespace: str, name: str, key: str | None) -> tuple[int, ...]:
        """Set the limit key of the handler's tasks that have none of their own, including existing ones; None removes it.

        Returns the lanes in which tasks became ready.
        """

    async def list_handler_keys(self, namespace: str) -> dict[str, str]:
        """Return the limit keys of handlers by name."""

    async def list_handlers(self, namespace: str) -> list[HandlerRegistration]:
        """Return the handler registrations of the namespace, by name."""

    async def save_handler(self, namespace: str, registration: HandlerRegistration) -> None:
        """Insert or replace the registration of that facet; `created` keeps its first value, `updated` becomes now."""

    async def delete_handler(self, namespace: str, facet_name: str) -> bool:
        """Remove the registration; return False if there was none."""
