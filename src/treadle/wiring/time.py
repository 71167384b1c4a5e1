"""What acts by itself, made together from an engine's parts: schedules and watchers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.kernel.schedules.fire import Firer
from treadle.kernel.schedules.service import Schedules
from treadle.kernel.triggers.target import FunctionStarter, Starters
from treadle.kernel.watchers.scan import Looker, Looks
from treadle.kernel.watchers.service import Watchers
from treadle.model.schedules import FUNCTION

if TYPE_CHECKING:
    from treadle.wiring.engine import Engine


class TimeKernel:
    """The schedules and watchers of one engine, what fires the ones, and what looks for the others."""

    def __init__(self, engine: Engine) -> None:
        namespace = engine.settings.namespace
        store, committer, ids = engine.store, engine.committer, engine.ids
        self._engine = engine
        self.starters = Starters(store, engine.queue, lambda: engine.runs)
        self.starters.add(FUNCTION, FunctionStarter(lambda: engine.functions))
        self.schedules = Schedules(store, committer, ids, self.starters, namespace=namespace)
        self.watchers = Watchers(store, committer, ids, self.starters, namespace=namespace)
        self.firer = Firer(store, committer, self.schedules, self.starters)

    def looker(self, looks: Looks) -> Looker:
        """What looks for watchers, by those means."""
        engine = self._engine
        return Looker(engine.store, engine.committer, self.watchers, self.starters, engine.ids, engine.emit, looks)
