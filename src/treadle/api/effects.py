"""Effects whose outcome is unknown: calls to external systems that may or may not have happened."""

from __future__ import annotations

from typing import Annotated, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc, Page
from treadle.api.view import Column, View
from treadle.api.wire import Instant


class UnknownEffect(ApiRecord, frozen=True):
    """An attempt at an effect whose outcome is unknown."""

    tool_call_id: str
    """The same for all attempts at the effect."""
    action: str
    attempt: int
    idempotency_key: str
    """The key of this attempt."""
    dedupe_key: str
    """The key of all attempts, with which to look the effect up at its service."""
    task_id: str
    name: str
    """The task's name."""
    task_list: str
    task_state: str
    run_id: str | None
    begun_at: Instant
    unknown_at: Instant


class EffectPage(Page, frozen=True):
    """Attempts at effects, newest first."""

    effects: list[UnknownEffect]


View(
    UnknownEffect,
    columns=(
        "action",
        "attempt",
        Column("task", "task_id", link="/tasks/{task_id}"),
        Column("run", "run_id", spare=True, link="/runs/{run_id}"),
        Column("state", "task_state", "state"),
        "name",
        "dedupe_key",
        Column("unknown since", "unknown_at"),
    ),
    brief=("action", "attempt", "task_id", "name", "unknown_at"),
    empty="No effects of unknown outcome.",
)


class EffectsApi(Protocol):
    """Effects of handlers and functions."""

    @contract.get("/effects")
    async def list(
        self,
        *,
        task_id: Annotated[str | None, Doc("Only this task")] = None,
        run_id: Annotated[str | None, Doc("Only this run")] = None,
        limit: Annotated[int, Doc("Page size, up to 1000", 50)] = 50,
        before: Annotated[str | None, Doc("`next_before` of the previous page")] = None,
    ) -> EffectPage:
        """Attempts at effects whose outcome is unknown, newest first: the effect may or may not have happened."""
