"""Questions to people."""

from __future__ import annotations

import random

from tests.simulation.submissions.submission import Submission, enqueued


def ask(rng: random.Random, key: str) -> Submission:
    """Asks one person, and not forever."""
    submission = enqueued(key, "ask", {"key": key, "expires": rng.choice((3, 60))}, {"by": "ada"})
    submission.may = ("completed", "failed")
    return submission


def vote(rng: random.Random, key: str) -> Submission:
    """Asks a group, two of whom must agree; asks again when nobody has, and more people after a while."""
    submission = enqueued(key, "vote", {"key": key, "expires": rng.choice((4, 30)), "escalates": rng.random() < 0.5}, None)
    submission.may = ("completed", "failed")
    return submission
