"""What acts by time, made together from an engine's parts: schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.kernel.firing import Firer
from treadle.kernel.schedules import Schedules
from treadle.kernel.starting import Starters

if TYPE_CHECKING:
    from treadle.wiring.engine import Engine


class TimeKernel:
    """The schedules of one engine, and what fires them."""

    def __init__(self, engine: Engine) -> None:
        namespace = engine.settings.namespace
        store, committer = engine.store, engine.committer
        self.starters = Starters(store, engine.queue, lambda: engine.runs)
        self.schedules = Schedules(store, committer, engine.ids, self.starters, namespace=namespace)
        self.firer = Firer(store, committer, self.schedules, self.starters)
