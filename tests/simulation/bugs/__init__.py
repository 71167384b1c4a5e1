"""Bugs to plant: each breaks one promise in the engine itself, so that it can be seen whether histories find it."""

from tests.simulation.bugs import core, operators, remote
from tests.simulation.bugs.bug import Plant, Plants

PLANTS: Plants = core.PLANTS | remote.PLANTS | operators.PLANTS

__all__ = ["PLANTS", "Plant"]
