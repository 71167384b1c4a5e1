"""`engine.declare`: limits and schedules in code, next to the handlers they are for."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, Unpack

from treadle.api.options import ScheduleOptions
from treadle.kernel.declarations.records import Declared
from treadle.model.errors import InvalidInput
from treadle.workers.references import Function, Handler

R = TypeVar("R")


class Declare(Declared):
    """The limits and schedules of this program. They are synchronised with the store when a worker starts."""

    def default_program(self) -> str:
        """Return the name of the main module or file of this process."""
        main = sys.modules.get("__main__")
        spec = getattr(main, "__spec__", None)
        if spec is not None:
            return program_of(spec.name.removesuffix(".__main__"))
        return program_of(getattr(main, "__file__", None) or "python")

    def schedule(self, name: str, **options: Unpack[ScheduleOptions]) -> Callable[[R], R]:
        """Declare a schedule with the options of `schedules.create`; without a target, as the decorator of a handler or function.

            @engine.declare.schedule("nightly-report", cron="30 2 * * *", zone="Europe/Berlin", inputs={"kind": "full"})
            @engine.handler("report")
            async def report(payload): ...

        An interval (`every`) counts from 1970 unless `anchor` or `start` says otherwise.
        """
        given: dict[str, Any] = dict(options)
        complete = self.add_schedule(name, given)

        def decorate(reference: R) -> R:
            if complete or not isinstance(reference, Handler | Function):
                problem = "already has a target" if complete else "can only decorate a handler or function"
                raise InvalidInput(
                    f"The schedule {name} {problem}: put it above @engine.handler(...) or @engine.function(...), without task=, "
                    "workflow= and function=."
                )
            kind = "function" if isinstance(reference, Function) else "task"
            self.add_schedule(name, given | {kind: reference.name})
            return reference

        return decorate


def program_of(place: str) -> str:
    """Return the default name of the program in a module or file."""
    name = Path(place).stem if place.endswith(".py") or "/" in place else place
    return ".".join(part for each in name.split(".") if (part := re.sub(r"\W+", "_", each, flags=re.ASCII))) or "python"
