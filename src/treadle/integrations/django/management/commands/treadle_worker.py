"""`manage.py treadle_worker`: run the handlers of the project."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from treadle.integrations.django.engine import get_engine
from treadle.integrations.processes import run_worker
from treadle.model.errors import TreadleError


class Command(BaseCommand):  # type: ignore[misc]
    """The worker of the project."""

    help = "Run the handlers that the installed apps register in tasks.py, until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options of a worker."""
        parser.add_argument("--concurrency", type=int, help="maximum number of tasks in progress; default: adapted to the handlers")
        parser.add_argument("--threads", type=int, default=16, help="maximum number of these in sync handlers")
        parser.add_argument("--list", action="append", dest="lists", help="a task list to serve; may be repeated")
        parser.add_argument("--grace", type=float, default=30.0, help="seconds that running work has to finish at the end")

    def handle(self, *_: Any, concurrency: int | None, threads: int, lists: list[str] | None, grace: float, **__: Any) -> None:
        """Run until a signal arrives."""
        engine = get_engine()
        self.stdout.write(f"Handlers: {', '.join([*engine.kernel.registry.names(), *engine.kernel.function_registry.names()])}")
        try:
            run_worker(engine, concurrency=concurrency, threads=threads, grace=grace, **({"task_lists": lists} if lists else {}))
        except TreadleError as error:
            raise CommandError(str(error)) from error
