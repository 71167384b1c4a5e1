"""`python -m bench.peers`: Treadle and its peers at the same work, in one session, on the same database settings."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from bench.limits import set_based_limit
from bench.peers.catalog import SUBJECTS
from bench.peers.measures import Bench
from bench.peers.processes import SubjectFailed, interruptible
from bench.peers.stores import open_stores
from bench.peers.venv import peers_python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fresh", action="store_true", help="install the peers anew")
    options = parser.parse_args()
    pythons = {"treadle": Path(sys.executable), "peers": peers_python(options.fresh)}
    with interruptible(), open_stores({"postgresql"}) as stores:
        bench = Bench(stores, pythons)
        for number in range(options.rounds):
            for workers in (1, 2):
                for subject in SUBJECTS:
                    try:
                        found = bench.drain(subject, options.tasks, workers, 10.0)
                    except SubjectFailed as error:
                        print(f"round {number + 1}: {subject.name}: {error}", flush=True)
                    else:
                        print(f"round {number + 1}: {subject.name}, {workers} workers: {found['per_s']:,.0f}/s", flush=True)
            with stores.fresh("postgresql") as url:
                print(f"round {number + 1}: limit {asyncio.run(set_based_limit(url, options.tasks)):,.0f}/s", flush=True)


if __name__ == "__main__":
    main()
