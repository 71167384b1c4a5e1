"""The engine of a Django project, and work that is started from it.

The process that forks workers of a WSGI server only makes the engine; it is never open there. Work in Django's transactions needs
no open engine; waits for results open one per process, on first use, with an event loop in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections, transaction

from treadle.engine import Engine
from treadle.integrations.processes import open_engine, store_url
from treadle.settings import load_settings
from treadle.workers.signatures import is_async

if TYPE_CHECKING:
    from treadle.engine.handles import Handle
    from treadle.engine.sync import BlockingEngine
    from treadle.engine.within import BlockingWithin
    from treadle.model.ids import Ref
    from treadle.model.values import Json

H = TypeVar("H", bound=Callable[..., Any])

_KEYS = {"STORE", "DATABASE", "SCHEMA", "NOTIFY", "DASHBOARD"}


def _given() -> Mapping[str, Any]:
    options: Mapping[str, Any] = getattr(settings, "TREADLE", {})
    if unknown := sorted(set(options) - _KEYS):
        raise ImproperlyConfigured(f"TREADLE has the unknown key {unknown[0]}; there are {', '.join(sorted(_KEYS))}.")
    return options


def _alias() -> str:
    return str(_given().get("DATABASE", DEFAULT_DB_ALIAS))


@cache
def get_engine() -> Engine:
    """Return the project's engine: on `TREADLE["STORE"]`, or on the PostgreSQL database `TREADLE["DATABASE"]` of the project.

    Stale connections of a thread are closed around sync steps.
    """
    engine = _new_engine()
    engine.kernel.registry.dependencies.wrap_in_thread = _with_fresh_connections
    return engine


def _new_engine() -> Engine:
    options = _given()
    if "STORE" in options:
        return Engine(str(options["STORE"]))
    database = connections[_alias()]
    if database.vendor != "postgresql":
        if load_settings().store != "sqlite:///treadle.db":
            return Engine()
        raise ImproperlyConfigured("Set TREADLE = {'STORE': 'postgresql://...'}: the project's database is not PostgreSQL.")
    return Engine(store_url(database.get_connection_params(), str(options.get("SCHEMA", "treadle"))))


class Engines:
    """Stands for the project's engine, so that `tasks.py` can be imported before the settings are complete."""

    def __getattr__(self, name: str) -> Any:
        return getattr(get_engine(), name)

    def handler(self, name: str, **options: Any) -> Callable[[H], H]:
        """Register a handler, as `Engine.handler` does; around a sync one, stale connections of its thread are closed."""

        def add(call: H) -> H:
            get_engine().handler(name, **options)(call if is_async(call) else _with_fresh_connections(call))
            return call

        return add


def _with_fresh_connections(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def fresh(*arguments: Any, **given: Any) -> Any:
        close_old_connections()
        try:
            return call(*arguments, **given)
        finally:
            close_old_connections()

    return fresh


def within(using: str | None = None, *, notify: bool | None = None) -> BlockingWithin:
    """Return the methods that start work in the current transaction of the database; see `Engine.within`."""
    with_notify = bool(_given().get("NOTIFY", False)) if notify is None else notify
    return get_engine().blocking().within(connections[using or _alias()], notify=with_notify)


def enqueue(name: str, payload: Mapping[str, Json] | None = None, *, using: str | None = None, **options: Any) -> Handle[Any]:
    """Enqueue a task in the current transaction: it exists exactly if that commits. Options as for `Engine.enqueue`."""
    return within(using).enqueue(name, payload, **options)


def enqueue_on_commit(name: str, payload: Mapping[str, Json] | None = None, *, using: str | None = None, **options: Any) -> None:
    """Enqueue a task after the current transaction has committed, for a store in another database.

    A crash between the commit and this call loses the task: prefer `enqueue` where the store is in the same database.
    """
    transaction.on_commit(lambda: waiting().enqueue(name, payload, **options), using=using or _alias())


def dashboard_url(work: Ref) -> str:
    """Return the page of a task, a run or a `TaskResult` in the dashboard at `TREADLE["DASHBOARD"]`, for links in the admin."""
    if "DASHBOARD" not in _given():
        raise ImproperlyConfigured("Set TREADLE = {'DASHBOARD': 'https://...'}, the address of the dashboard.")
    return f"{_given()['DASHBOARD'].rstrip('/')}/go/{work if isinstance(work, str) else work.id}"


def waiting() -> BlockingEngine:
    """Return the open engine of this process, to wait for results and to read; it is opened on first use and closed at exit."""
    return open_engine(get_engine())
