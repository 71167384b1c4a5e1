"""`python -m tests.simulation`: plays histories one seed after another for a while, and shows those in which something is wrong."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.history import Report, play

from bench import results


def main() -> int:
    """0 if nothing was wrong in any history."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long to play")
    parser.add_argument("--first", type=int, default=0, help="the seed to begin with")
    parser.add_argument("--seed", type=int, help="play this one only, twice, and show what happened in it")
    parser.add_argument("--about", default="", help="with --seed: only lines that have this in them")
    parser.add_argument("--digests", type=int, nargs="+", metavar="SEED", help="only say the digests of these histories")
    parser.add_argument("--record", action="store_true", help="write what came of it into bench/RESULTS.md")
    options = parser.parse_args()
    if options.digests:
        print("\n".join(play(seed).digest for seed in options.digests))
        return 0
    if options.seed is not None:
        return show(options.seed, options.about)
    return campaign(options.seconds, options.first, record=options.record)


def show(seed: int, about: str) -> int:
    """One history, line by line."""
    report, again = play(seed), play(seed)
    print("\n".join(report.trace.lines(None, about)))
    print(report.text(lines=0))
    if report.digest != again.digest:
        print("Played again, it went otherwise: something in it does not follow from the seed.")
    return int(bool(report.problems) or report.digest != again.digest)


def campaign(seconds: float, first: int, *, record: bool = False) -> int:
    """As many histories as there is time for."""
    began = time.monotonic()  # noqa: TID251
    faults: Counter[str] = Counter()
    failed: list[Report] = []
    seed, lived, submissions, given_up = first, 0.0, 0, 0
    while (passed := time.monotonic() - began) < seconds:  # noqa: TID251
        report = play(seed)
        faults.update(report.faults)
        lived, submissions, given_up = lived + report.seconds, submissions + report.submissions, given_up + report.given_up
        if report.problems:
            failed.append(report)
            print(report.text())
        seed += 1
        if sys.stdout.isatty():
            print(f"\r{seed - first} histories, {len(failed)} failed ", end="", flush=True)
    count = seed - first
    told = f"{count:,} histories in {passed:.0f} s: {count / passed:.1f} per second, seeds {first} to {seed - 1}."
    lives = f"They cover {lived / 3600:,.1f} hours of virtual time and {submissions:,} items of work"
    lives += f" ({given_up:,} given up after too many lost workers)"
    wrong = f"Violations: {', '.join(f'seed {report.seed}' for report in failed) or 'none'}."
    print(f"\n{told}\n{lives}, and")
    print(", ".join(f"{number} x {fault}" for fault, number in sorted(faults.items())) + f".\n{wrong}")
    if record:
        body = f"{told} {lives}. {wrong}\n\n{results.table(('fault', 'times'), sorted(faults.items()))}"
        command = f"python -m tests.simulation --seconds {seconds:g} --first {first} --record"
        results.write("simulation", "Simulation", body, command)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
