"""Histories of whole engines in which everything goes wrong that can, and nothing is lost.

`make simulate SECONDS=60` plays as many as it can; `make simulate SEED=7` plays one and shows what happened in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.simulation.faults import Fault
from tests.simulation.history import play
from tests.sizes import left_out

HISTORIES = 64
PARTS = 8
"""`make test` plays one part and the varied histories below, `make test-all` all parts, `make simulate` any number."""
VARIED = (41, 90, 14, 21, 40, 124, 10, 46, 44, 86, 85, 142)
"""Seeds of histories that have much in them; together they had all signs when they were chosen."""
SIGNS = (
    "= deferred",
    "= claim_lost",
    "LeaseLost",
    "ResultDropped",
    "LeasesExpired",
    "ClockJumped",
    "PutInbox",
    "tool_call.unknown",
    "release",
    "=== stops",
    "pauses",
    "cancels",
    "retries",
    "resumes",
    "approve",
    "deny",
    "may_not_decide",
    "tells w",
    ": False",
    "forks",
    "runs w",
    "limits:",
    "drains",
    "pauses the list",
    "discards letters",
    "retries letters",
    "prunes 1 ",
    "is the worker",
    "has lost",
    "is done: completed",
    "(noticed)",
    "(afl.script)",
    "Disconnected",
    " again",
)
"""Trace lines that prove that each kind of fault occurred."""
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("part", [0, *map(left_out, range(1, PARTS))])
def test_no_work_is_lost_under_random_faults(part: int) -> None:
    for seed in range(part, HISTORIES, PARTS):
        report = play(seed)
        assert not report.problems, report.text()


@pytest.mark.parametrize("seed", [*range(1000, 1004), *map(left_out, range(1004, 1040))])
def test_processes_wrongly_declared_dead_lose_no_work(seed: int) -> None:
    report = play(seed, often=(Fault.PRESUMED_DEAD,))
    assert not report.problems, report.text()


@pytest.mark.all_cases  # in this process: test_same_on_postgres.py
def test_a_seed_reproduces_its_history_in_any_process() -> None:
    seeds = (1, 17)
    here = [play(seed).digest for seed in seeds]
    assert [play(seed).digest for seed in seeds] == here
    environment = dict(os.environ) | {"PYTHONHASHSEED": "17"}  # noqa: TID251
    command = [sys.executable, "-m", "tests.simulation", "--digests", *map(str, seeds)]
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.split() == here


def test_every_fault_occurs_and_has_a_visible_effect() -> None:
    """Histories would say little if some of their faults never came about."""
    missing = {*Fault, *SIGNS}
    for seed in (*VARIED, *range(160)):
        report = play(seed)
        assert not report.problems, report.text()
        missing -= {*report.faults, *(sign for sign in SIGNS if report.trace.lines(None, sign))}
        if not missing:
            break
    assert not missing
