"""Jobs in external services."""

from __future__ import annotations

import random

from tests.simulation.submissions.submission import Submission, enqueued


def print_it(rng: random.Random, key: str) -> Submission:
    """An external job that is polled."""
    submission = enqueued(key, "sim.Print", {"key": key, "takes": rng.choice((0, 2, 8))}, {"printed": key})
    submission.jobs = (key,)
    return submission


def call_back(rng: random.Random, key: str) -> Submission:
    """An external job that is polled so rarely that its callback decides."""
    submission = enqueued(key, "sim.Call", {"key": key, "takes": rng.choice((0, 1, 5))}, {"printed": key})
    submission.jobs = (key,)
    submission.needs = "service"
    return submission
