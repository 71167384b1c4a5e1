"""Calls about effects, on an engine."""

from __future__ import annotations

from treadle.api.effects import EffectPage, EffectsApi
from treadle.service.group import Group


class Effects(Group, EffectsApi):
    """See `EffectsApi`."""

    async def list(
        self, *, task_id: str | None = None, run_id: str | None = None, limit: int = 50, before: str | None = None
    ) -> EffectPage:
        return await self.engine.kernel.effects.list_unknown(task_id=task_id, run_id=run_id, limit=limit, before=before)
