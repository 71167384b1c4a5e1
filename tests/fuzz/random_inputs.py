"""Inputs for one target as Hypothesis draws them, at random, in a process of its own. Run by `python -m tests.fuzz`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.fuzz.coverage_guided import bound_memory
from tests.fuzz.harness import Finds, corpus_of
from tests.fuzz.strategies import inputs_for
from tests.fuzz.targets import TARGETS

AT_ONCE = 200


def find_char_tables() -> None:
    """Let Hypothesis make what it makes once, before time counts."""
    given(st.text())(settings(max_examples=1, database=None)(lambda text: None))()


def main(name: str, folder: Path, seconds: float) -> None:
    """Draw until the time is over, and say how many there were."""
    finds = Finds(name, TARGETS[name], folder / "finds")
    for seed in corpus_of(name):
        finds.play(seed.read_bytes())
    bound_memory()
    strategy = inputs_for(name)
    find_char_tables()
    ends = time.monotonic() + seconds  # noqa: TID251
    count = 0

    @settings(
        max_examples=AT_ONCE,
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(data: bytes) -> None:
        nonlocal count
        if time.monotonic() < ends:  # noqa: TID251
            count += 1
            finds.play(data)

    while time.monotonic() < ends:  # noqa: TID251
        draw()
    print(f"drawn: {count}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
