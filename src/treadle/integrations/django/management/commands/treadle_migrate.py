"""`manage.py treadle_migrate`: create or upgrade the tables of the store."""

from __future__ import annotations

import asyncio
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from treadle.integrations.django.engine import get_engine
from treadle.model.errors import TreadleError


class Command(BaseCommand):  # type: ignore[misc]
    """The migrations of the store."""

    help = "Create or upgrade the tables of the Treadle store; safe to repeat."

    def handle(self, *_: Any, **__: Any) -> None:
        """Open the engine once, which migrates."""
        try:
            asyncio.run(_migrate())
        except TreadleError as error:
            raise CommandError(str(error)) from error
        self.stdout.write("The store has the newest schema.")


async def _migrate() -> None:
    async with get_engine():
        pass
