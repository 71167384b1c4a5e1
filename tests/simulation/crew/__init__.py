"""The work that every server of a history serves: handlers, functions, specialists, and the flow that submissions start."""

from __future__ import annotations

from tests.simulation.crew.flows import the_topology
from tests.simulation.crew.functions import add_functions
from tests.simulation.crew.handlers import add_handlers
from tests.simulation.crew.people import add_questions
from tests.simulation.crew.services import add_services
from tests.simulation.world import World

from treadle import Engine


def furnish(engine: Engine, world: World) -> None:
    """Give a server all it offers."""
    engine.goals.topology = the_topology()
    add_handlers(engine, world)
    add_questions(engine)
    add_functions(engine, world)
    add_services(engine, world)
