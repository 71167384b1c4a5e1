"""The Django app: registers the handlers of all installed apps."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class TreadleConfig(AppConfig):  # type: ignore[misc]
    """Imports `tasks.py` of every installed app when Django is ready."""

    name = "treadle.integrations.django"
    label = "treadle"
    verbose_name = "Treadle"

    def ready(self) -> None:
        """Register the handlers."""
        autodiscover_modules("tasks")
