"""Every benchmark has the one shape, and the smallest of runs goes through."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from bench.benchmark import BENCHMARKS, BOTH, load, resize
from tests.limits import BOUND

from bench import results


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_has_the_shape(name: str):
    benchmark = load(name)
    assert (benchmark.NAME, name in results.ORDER) == (name, True)
    assert benchmark.TITLE
    assert benchmark.__doc__.strip()
    assert set(benchmark.STORES) <= set(BOTH)
    assert dataclasses.is_dataclass(benchmark.SIZES)
    assert type(benchmark.QUICK) is type(benchmark.SIZES)
    assert benchmark.QUICK != benchmark.SIZES
    assert callable(benchmark.measure)
    assert callable(benchmark.show)


def test_an_unknown_benchmark_is_rejected_with_the_available_names():
    with pytest.raises(SystemExit, match=r"no benchmark 'speed'.*queue"):
        load("speed")


def test_sizes_are_changed_by_name_and_those_of_other_benchmarks_are_left_alone():
    sizes = load("queue").SIZES
    changed = resize(sizes, ["tasks=7", "idle_seconds=0.5", "sleepers=3"])
    assert (changed.tasks, changed.idle_seconds, changed.rounds) == (7, 0.5, sizes.rounds)
    assert resize(load("cli").SIZES, ["against=../other/src"]).against == "../other/src"


def test_the_smallest_run_of_the_queue_is_measured_shown_and_not_written():
    before = results.RESULTS.read_text()
    sizes = ["tasks=128", "rounds=1", "samples=2", "idle_seconds=0.1"]
    command = [sys.executable, "-m", "bench", "queue", "--quick", "--store", "sqlite", *(f"--set={each}" for each in sizes)]
    ended = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=BOUND, check=False)
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)["queue"]["sqlite"]
    assert len(figures["drain_1"]) == len(figures["drain_2"]) == 1
    assert min(figures[key][0] for key in ("drain_1", "drain_2", "limit", "limit_with_history", "enqueue_32_callers")) > 0
    shown = load("queue").show({"sqlite": figures})
    assert "| drain, two worker processes |" in shown
    assert results.RESULTS.read_text() == before
