"""Questions to people."""

from __future__ import annotations

import random

from tests.simulation.wishes.wish import Wish, enqueued


def ask(dice: random.Random, key: str) -> Wish:
    """Asks one person, and not forever."""
    wish = enqueued(key, "ask", {"key": key, "expires": dice.choice((3, 60))}, {"by": "ada"})
    wish.may = ("completed", "failed")
    return wish


def vote(dice: random.Random, key: str) -> Wish:
    """Asks a group, two of whom must agree; asks again when nobody has, and more people after a while."""
    wish = enqueued(key, "vote", {"key": key, "expires": dice.choice((4, 30)), "escalates": dice.random() < 0.5}, None)
    wish.may = ("completed", "failed")
    return wish
