"""Reads of effects of unknown outcome."""

from __future__ import annotations

from treadle.api.effects import EffectPage, UnknownEffect
from treadle.api.wire import Instant
from treadle.kernel.core import Service
from treadle.kernel.store.lookups import check_limit
from treadle.kernel.store.records import EffectFilter
from treadle.model.errors import InvalidInput
from treadle.model.ids import parse_id
from treadle.model.records import EffectOutcome
from treadle.model.tasks import Task
from treadle.model.values import decode_shown


class EffectReads(Service):
    """The effects of one namespace."""

    async def list(
        self, *, task_id: str | None = None, run_id: str | None = None, limit: int = 50, before: str | None = None
    ) -> EffectPage:
        """Return a page of attempts at effects whose outcome became unknown, newest first."""
        which = EffectFilter(
            self._namespace,
            None if task_id is None else parse_id(task_id, "task id"),
            None if run_id is None else parse_id(run_id, "run id"),
            None if before is None else _read_cursor(before),
        )
        rows = await self._store.records.list_unknown(which, check_limit(limit))
        tasks = {row_task_id: await self._store.tasks.find(row_task_id) for row_task_id in {row.task_id or "" for row in rows}}
        effects = [_shown(row, task) for row in rows if (task := tasks[row.task_id or ""]) is not None]
        return EffectPage(effects, next_before=f"{rows[-1].unknown_at}.{rows[-1].idempotency_key}" if len(rows) == limit else None)


def _shown(row: EffectOutcome, task: Task) -> UnknownEffect:
    details = decode_shown(row.details) or {}
    attempt = details.get("attempt")
    return UnknownEffect(
        tool_call_id=row.tool_call_id,
        action=str(details.get("action", "")),
        attempt=attempt if type(attempt) is int else 0,
        idempotency_key=row.idempotency_key,
        dedupe_key=str(details.get("dedupe_key", "")),
        task_id=task.id,
        name=task.name,
        task_list=task.task_list,
        task_state=task.shown_state,
        run_id=task.run_id,
        begun_at=Instant.of(row.created_at),
        unknown_at=Instant.of(row.unknown_at or 0),
    )


def _read_cursor(text: str) -> tuple[int, str]:
    at, _, key = text.partition(".")
    if not (at.isascii() and at.isdecimal() and len(at) < 16 and key.isascii() and key.isalnum()):
        raise InvalidInput(f"before must be the cursor of a page, not {text[:100]!r}.")
    return int(at), key
