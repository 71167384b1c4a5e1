"""The workload of a history: submissions of users, by kind."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

from tests.simulation.submissions import dispatch, goals, people, remote_workers, requests, runs, services, tasks, time
from tests.simulation.submissions.submission import Submission

KINDS: tuple[Callable[[random.Random, str], Submission], ...] = (
    tasks.work,
    tasks.late,
    tasks.sync,
    tasks.nap,
    tasks.charge,
    tasks.charge,
    tasks.limited,
    tasks.doomed,
    people.ask,
    people.vote,
    runs.order,
    runs.collect,
    runs.flow,
    runs.broken_flow,
    runs.script_flow,
    services.print_it,
    services.call_back,
    time.schedule,
    time.watch,
    goals.objective,
    remote_workers.far,
    remote_workers.far_flow,
    dispatch.issue,
    requests.request,
)


def draw_submissions(rng: random.Random, count: int, named: Collection[str] = ()) -> list[Submission]:
    """So many submissions, of a few kinds, or of those named: those that meet one another say more than a bit of everything."""
    kinds = [kind for kind in KINDS if kind.__name__ in named] or rng.sample(KINDS, rng.choice((1, 2, 4, 8)))
    return [rng.choice(kinds)(rng, f"w{number}") for number in range(count)]
