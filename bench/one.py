"""`python -m bench.one NAME [FIELD=VALUE ...] [--quick]`: one benchmark on the store of TREADLE_STORE; its figures as JSON.

What `python -m bench` starts for each measurement, so that each has a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys

from bench.benchmark import load, resize
from bench.processes import own_store, stop_at_sigterm


def main() -> None:
    stop_at_sigterm()
    name, *settings = sys.argv[1:]
    benchmark = load(name)
    sizes = resize(benchmark.QUICK if "--quick" in settings else benchmark.SIZES, settings)
    print(json.dumps(asyncio.run(benchmark.measure(own_store(), sizes))))


if __name__ == "__main__":
    main()
