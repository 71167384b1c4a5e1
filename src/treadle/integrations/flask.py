"""Treadle in a Flask application: an extension, blocking calls, and commands.

treadle = Treadle(Engine("postgresql://localhost/shop"))

@treadle.handler("charge", retry=5)
def charge(payload): ...                          # runs in the application context

app = Flask(__name__)
treadle.init_app(app)                             # flask treadle migrate, flask treadle worker
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from treadle.integrations import missing

try:
    from flask import Flask
except ImportError as error:
    raise missing("flask", error) from error

import click
from flask.cli import AppGroup

from treadle.engine import Engine
from treadle.engine.engine import use_store
from treadle.integrations.processes import open_engine, run_worker
from treadle.model.errors import NotOpen, TreadleError
from treadle.workers.signatures import is_async

if TYPE_CHECKING:
    from treadle.engine.sync import BlockingEngine
    from treadle.engine.within import BlockingWithin

H = TypeVar("H", bound=Callable[..., Any])


class Treadle:
    """The extension. Its engine is never opened in the application; `waiting` opens one per process where it is needed.

    The configuration of the application may have `TREADLE_STORE`, the URL of the store, and `TREADLE_NOTIFY`, whether commits wake
    waiting workers.
    """

    def __init__(self, engine: Engine | None = None, app: Flask | None = None) -> None:
        self.engine = engine or Engine()
        self._app: Flask | None = None
        self._notify = False
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Register the extension and its commands with the application."""
        self._app = app
        self._notify = bool(app.config.get("TREADLE_NOTIFY", False))
        if store := app.config.get("TREADLE_STORE"):
            use_store(self.engine, store, self.engine.kernel.settings)
        self.engine.kernel.registry.dependencies.wrap_in_thread = self._in_context
        app.extensions["treadle"] = self
        app.cli.add_command(_commands(self.engine))

    def handler(self, name: str, **options: Any) -> Callable[[H], H]:
        """Register a handler, as `Engine.handler` does; a sync one runs in the application context."""

        def add(call: H) -> H:
            self.engine.handler(name, **options)(call if is_async(call) else self._in_context(call))
            return call

        return add

    def _in_context(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def inside(*arguments: Any, **given: Any) -> Any:
            if self._app is None:
                raise NotOpen("Call `treadle.init_app(app)` before the worker starts.")
            with self._app.app_context():
                return call(*arguments, **given)

        return inside

    def within(self, connection: Any, *, notify: bool | None = None) -> BlockingWithin:
        """Start work in the transaction of your connection or session; see `Engine.within`."""
        return self.engine.blocking().within(connection, notify=self._notify if notify is None else notify)

    @property
    def waiting(self) -> BlockingEngine:
        """The open engine of this process, to enqueue without a transaction, to wait for results and to read."""
        return open_engine(self.engine)


def _commands(engine: Engine) -> AppGroup:
    group = AppGroup("treadle", help="The worker and the store of Treadle.")

    @group.command("worker", with_appcontext=False)
    @click.option("--concurrency", type=int, help="Maximum number of tasks in progress; default: adapted to the handlers.")
    @click.option("--threads", default=16, show_default=True, help="Maximum number of these in sync handlers.")
    @click.option("--list", "lists", multiple=True, help="A task list to serve; may be repeated.")
    @click.option("--grace", default=30.0, show_default=True, help="Seconds that running work has to finish at the end.")
    def worker(concurrency: int | None, threads: int, lists: tuple[str, ...], grace: float) -> None:
        """Run the handlers of the application until SIGTERM or Ctrl-C."""
        try:
            run_worker(engine, concurrency=concurrency, threads=threads, grace=grace, **({"task_lists": lists} if lists else {}))
        except TreadleError as error:
            raise click.ClickException(str(error)) from error

    @group.command("migrate", with_appcontext=False)
    def migrate() -> None:
        """Create or upgrade the tables of the store; safe to repeat."""
        try:
            with engine.blocking():
                click.echo("The store has the newest schema.")
        except TreadleError as error:
            raise click.ClickException(str(error)) from error

    return group
