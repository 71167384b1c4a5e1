"""`python -m bench.peers`: Treadle and its peers at the same work, in one session, on the same database settings.

The peers are installed from PyPI into `.bench-peers`, once. Celery and Dramatiq take part where a `redis-server` is on PATH.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from bench import results
from bench.peers.catalog import chosen
from bench.peers.measures import Bench
from bench.peers.processes import interruptible
from bench.peers.report import body
from bench.peers.session import QUICK, Session, Sizes
from bench.peers.stores import has_redis, open_stores
from bench.peers.targets import targets
from bench.peers.venv import peers_python, versions


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--tasks", type=int, help="tasks in a drain (default: 10,000)")
    parser.add_argument("--rounds", type=int, help="how often everything is measured (default: 3)")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: to try it, not to compare")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="engines (pgqueuer), stores (sqlite) or both (dbos-sqlite)"
    )
    parser.add_argument("--fresh", action="store_true", help="install the peers anew")
    parser.add_argument("--no-write", action="store_true", help="leave RESULTS.md as it is; implied by --quick and --only")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON, and how it goes on to stderr")
    options = parser.parse_args()
    try:
        subjects = [each for each in chosen(options.only) if each.store != "redis" or has_redis()]
    except ValueError as error:
        parser.error(str(error))
    given = {name: value for name in ("tasks", "rounds") if (value := getattr(options, name)) is not None}
    sizes = dataclasses.replace(QUICK if options.quick else Sizes(), **given)

    def tell(line: str) -> None:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    with interruptible():
        peers, ours = peers_python(options.fresh), Path(sys.executable)
        with open_stores({each.store for each in subjects}) as stores:
            figures = Session(Bench(stores, peers, ours), stores, subjects, sizes, tell).run()
            servers = stores.versions()
    packages = {each.package for each in subjects}
    found = versions(peers, sorted(packages - {"treadle"})) | versions(ours, sorted(packages & {"treadle"}))
    text = body(figures, subjects, sizes, found, servers)
    if options.json:
        verdicts = [
            dataclasses.asdict(each) | {"ratio": each.ratio, "verdict": each.verdict} for each in targets(figures, subjects)
        ]
        print(
            json.dumps({"sizes": dataclasses.asdict(sizes), "versions": found, **figures.as_json(), "targets": verdicts}, indent=2)
        )
    else:
        print(f"\n{results.machine()}\n\n{text}")
    if not (options.no_write or options.quick or options.only):
        results.write("peers", "Comparison with peers", text, "python -m bench.peers")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("Stopped; nothing was written, and nothing is left running.") from None
