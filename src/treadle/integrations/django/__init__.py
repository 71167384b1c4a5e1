"""Treadle in a Django project: settings, tasks of installed apps, work in Django's transactions, and management commands.

    INSTALLED_APPS = [..., "treadle.integrations.django"]
    TREADLE = {"STORE": "postgresql://localhost/shop", "NOTIFY": True}

    # tasks.py of any installed app
    from treadle.integrations.django import engine

    @engine.handler("charge", retry=5)
    def charge(payload): ...

    # views.py
    with transaction.atomic():
        order = Order.objects.create(...)
        enqueue("charge", {"order": order.pk})

All functions are for threads without an event loop, such as those of views; from async views call them with `sync_to_async`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.integrations import missing

if TYPE_CHECKING:
    from treadle.integrations.django.backend import TreadleBackend

try:
    from treadle.integrations.django.engine import Engines, dashboard_url, enqueue, enqueue_on_commit, get_engine, waiting, within
except ImportError as error:
    raise missing("django", error) from error


engine = Engines()
"""The project's engine, made from the settings when it is first used; it has the methods of `treadle.Engine`."""

__all__ = ["TreadleBackend", "dashboard_url", "engine", "enqueue", "enqueue_on_commit", "get_engine", "waiting", "within"]


def __getattr__(name: str) -> Any:
    """Import the backend of Django's task framework when it is used: only Django 6 has the framework."""
    if name != "TreadleBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from treadle.integrations.django import backend

    return backend.TreadleBackend
