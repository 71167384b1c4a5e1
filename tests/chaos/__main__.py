"""`python -m tests.chaos`: real processes on a real store, with everything that goes wrong with processes; then it is looked at."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys

from tests.chaos.play import play
from tests.chaos.report import as_json, as_markdown, as_text
from tests.chaos.stage import Plan

STORES = ("sqlite", "postgres")


def main() -> int:
    """0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--store", choices=STORES, action="append", help="on this store only (default: one after the other)")
    parser.add_argument("--tasks", type=int, default=50_000, help="wishes on each store: tasks, runs, external jobs, objectives")
    parser.add_argument("--seconds", type=float, default=200, help="how long things go wrong, at most, on each store")
    parser.add_argument("--seed", type=int, default=1, help="what is wished for and what goes wrong follow from it")
    parser.add_argument("--lease", type=float, default=3.0, help="seconds that a claim holds without being renewed")
    parser.add_argument("--workers", type=int, default=4, help="worker processes")
    parser.add_argument("--pause", type=float, default=1.2, help="seconds between two blows, on average")
    parser.add_argument("--keep", action="store_true", help="keep logs and diaries also when nothing is wrong")
    parser.add_argument("--json", action="store_true", help="the report as JSON on stdout; progress goes to stderr")
    parser.add_argument("--record", action="store_true", help="write the section of bench/RESULTS.md")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        return _run(options)
    except KeyboardInterrupt:
        print("interrupted; all processes were ended", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    played = []
    for store in options.store or STORES:
        plan = Plan(
            store, options.tasks, options.seed, options.seconds, options.lease, options.workers, options.pause, keep=options.keep
        )
        _say(f"{store}: starting")
        played.append(asyncio.run(play(plan, _say)))
        if not options.json:
            print(as_text(played[-1]), flush=True)
    if options.json:
        print(json.dumps([as_json(each) for each in played], indent=2))
    if options.record:
        from bench import results

        results.write("chaos", "Chaos with real processes", as_markdown(played), _command())
    return int(any(each.verdict.problems for each in played))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _interrupt(number: int, frame: object) -> None:
    """End everything, whatever runs at this moment; only this process hears an interrupt, and it ends the others."""
    raise KeyboardInterrupt


def _command() -> str:
    return " ".join(
        ["make chaos", *(["ARGUMENTS='" + " ".join(sys.argv[1:]) + "'"] if sys.argv[1:] not in ([], ["--record"]) else [])]
    )


if __name__ == "__main__":
    sys.exit(main())
