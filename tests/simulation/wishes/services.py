"""Jobs in external services."""

from __future__ import annotations

import random

from tests.simulation.wishes.wish import Wish, enqueued


def print_it(dice: random.Random, key: str) -> Wish:
    """An external job that is polled."""
    wish = enqueued(key, "sim.Print", {"key": key, "takes": dice.choice((0, 2, 8))}, {"printed": key})
    wish.jobs = (key,)
    return wish


def call_back(dice: random.Random, key: str) -> Wish:
    """An external job that is polled so rarely that its callback decides."""
    wish = enqueued(key, "sim.Call", {"key": key, "takes": dice.choice((0, 1, 5))}, {"printed": key})
    wish.jobs = (key,)
    wish.needs = "service"
    return wish
