"""Bugs to plant: each breaks one promise in the engine itself, so that it can be seen whether histories find it."""

from tests.simulation.plants import core, operating, outside
from tests.simulation.plants.plant import Plant, Plants

PLANTS: Plants = core.PLANTS | outside.PLANTS | operating.PLANTS

__all__ = ["PLANTS", "Plant"]
