"""`python -m tests.chaos`: kill, stop and disconnect real processes on a real store, then check every promise."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys

from tests.chaos import failover
from tests.chaos.patroni import missing
from tests.chaos.play import play
from tests.chaos.report import as_json, as_markdown, as_text
from tests.chaos.stage import Plan

STORES = ("sqlite", "postgres")


def main() -> int:
    """Return 0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--store", choices=STORES, action="append", help="run on this store only (default: all, one after another)")
    parser.add_argument(
        "--tasks", type=int, help="amount of work on each store: tasks, runs, external jobs, approvals and objectives (50,000)"
    )
    parser.add_argument(
        "--failover",
        action="store_true",
        help="fail over a PostgreSQL cluster of three servers, with synchronous and with asynchronous replication (20,000 items)",
    )
    parser.add_argument(
        "--patroni", action="store_true", help="with --failover: let Patroni with etcd promote, with synchronous replication"
    )
    parser.add_argument("--replication", choices=("synchronous", "asynchronous"), help="with --failover: only this one")
    parser.add_argument("--seconds", type=float, default=200, help="maximum duration of the faults on each store")
    parser.add_argument("--seed", type=int, default=1, help="determines the work and the faults")
    parser.add_argument("--lease", type=float, default=3.0, help="length of a lease in seconds")
    parser.add_argument("--workers", type=int, default=4, help="worker processes")
    parser.add_argument("--pause", type=float, default=1.2, help="average seconds between two faults")
    parser.add_argument("--keep", action="store_true", help="keep the logs even if every promise was kept")
    parser.add_argument("--json", action="store_true", help="print the report as JSON; progress goes to stderr")
    parser.add_argument("--record", action="store_true", help="write the section of bench/RESULTS.md")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        return _fail_over(options) if options.failover else _run(options)
    except KeyboardInterrupt:
        print("interrupted; all processes were ended", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    played = []
    for store in options.store or STORES:
        plan = Plan(
            store,
            options.tasks or 50_000,
            options.seed,
            options.seconds,
            options.lease,
            options.workers,
            options.pause,
            keep=options.keep,
        )
        _say(f"{store}: starting")
        played.append(asyncio.run(play(plan, _say)))
        if not options.json:
            print(as_text(played[-1]), flush=True)
    if options.json:
        print(json.dumps([as_json(each) for each in played], indent=2))
    if options.record:
        from bench import results

        server = f"PostgreSQL {results.postgres_version()} (private server, fsync off)"
        results.write("chaos", "Chaos with real processes", as_markdown(played), _command(), server=server)
    return int(any(each.verdict.problems for each in played))


def _fail_over(options: argparse.Namespace) -> int:
    if options.patroni:
        return _fail_over_by_patroni(options)
    runs = []
    for kind in [options.replication] if options.replication else ("synchronous", "asynchronous"):
        tasks = options.tasks or 20_000
        plan = Plan(f"{kind}-failover", tasks, options.seed, 0, options.lease, options.workers, keep=options.keep)
        _say(f"{plan.store}: starting")
        ways = (failover.KILLED, failover.ISOLATED)
        runs.append(asyncio.run(failover.fail_over(plan, _say, synchronous=kind == "synchronous", ways=ways)))
        if not options.json:
            print(failover.as_text(runs[-1]), flush=True)
    if options.json:
        print(json.dumps([failover.as_json(each) for each in runs], indent=2))
    if options.record:
        from bench import results

        for each in runs:
            kind = "synchronous" if each.synchronous else "asynchronous"
            title = f"Failover with {kind} replication"
            results.write(f"failover-{kind}", title, failover.as_markdown([each]), _command(), server=failover.server(each))
    return int(any(each.broken for each in runs))


def _fail_over_by_patroni(options: argparse.Namespace) -> int:
    if (reason := missing()) is not None:
        _say(reason)
        return 2
    plan = Plan("patroni", options.tasks or 20_000, options.seed, 0, options.lease, options.workers, keep=options.keep)
    _say(f"{plan.store}: starting")
    done = asyncio.run(failover.fail_over_by_patroni(plan, _say, failover.BY_PATRONI))
    print(json.dumps([failover.as_json(done)], indent=2) if options.json else failover.as_text(done), flush=True)
    if options.record:
        from bench import results

        text = failover.as_markdown([done])
        results.write("failover-patroni", "Failover by Patroni", text, _command(), server=failover.server(done))
    return int(bool(done.broken))


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
