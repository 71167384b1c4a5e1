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

from treadle.integrations import missing

try:
    from treadle.integrations.django.engine import Engines, enqueue, enqueue_on_commit, get_engine, waiting, within
except ImportError as error:
    raise missing("django", error) from error


engine = Engines()
"""The project's engine, made from the settings when it is first used; it has the methods of `treadle.Engine`."""

__all__ = ["engine", "enqueue", "enqueue_on_commit", "get_engine", "waiting", "within"]
