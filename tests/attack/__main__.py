"""`python -m tests.attack`: play the adversarial table against real `treadle` processes, and count what it breaks."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace

from tests.attack.arena import SIZES, Arena, Size, arena
from tests.attack.bombs import bombs
from tests.attack.disk import attack_disk
from tests.attack.inputs import inputs
from tests.attack.kills import kills, restarts
from tests.attack.routes import routes
from tests.attack.tally import Tally, as_markdown

from treadle.kernel.store.process import SystemClock

CLOCK = SystemClock()
STORES = ("sqlite", "postgres")
SECTIONS: dict[str, Callable[[Arena], Awaitable[None]] | None] = {
    "kills": kills,
    "restarts": restarts,
    "disk": None,
    "routes": routes,
    "inputs": inputs,
    "bombs": bombs,
}
"""A full disk needs its arena on that disk."""


async def attack(section: str, store: str, size: Size, seed: int) -> Tally:
    """Run one section on one store."""
    tally, began = Tally(section, store), CLOCK.monotonic()
    run = SECTIONS[section]
    if run is None:
        await attack_disk(tally, size, seed)
    else:
        async with arena(tally, size, seed) as made:
            await run(made)
    tally.seconds = CLOCK.monotonic() - began
    return tally


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if nothing was lost, repeated, wrong or not refused."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="small", help="small: about five minutes; full: as long as it takes")
    parser.add_argument("--seconds", type=float, default=0, help="limit of each section on each store; default: that of the size")
    parser.add_argument("--seed", type=int, default=1, help="determines the work, the faults and the choice of inputs")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"sections, separated by commas: {', '.join(SECTIONS)}")
    parser.add_argument("--store", choices=STORES, action="append", help="run on this store only (default: both)")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON; progress goes to stderr")
    parser.add_argument("--record", action="store_true", help="write the section of bench/RESULTS.md")
    options = parser.parse_args(arguments)
    if unknown := {*options.only.split(",")} - {*SECTIONS}:
        parser.error(f"unknown section: {', '.join(sorted(unknown))}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    size = SIZES[options.size]
    if options.seconds:
        size = replace(size, patience=options.seconds)
    tallies = []
    for section in options.only.split(","):
        for store in options.store or STORES:
            tallies.append(asyncio.run(attack(section, store, size, options.seed)))
            _say(tallies[-1])
    print(json.dumps([asdict(each) for each in tallies], indent=2) if options.json else as_markdown(tallies), flush=True)
    if options.record:
        from bench import results

        given = [each for each in (arguments or sys.argv[1:]) if each != "--record"]
        results.write("attack", "Attacks on real processes", as_markdown(tallies), " ".join(["make attack", *given]))
    return int(any(each.problems for each in tallies))


def _say(tally: Tally) -> None:
    what = f"{len(tally.problems)} problems" if tally.problems else "nothing broken"
    print(f"{tally.section} on {tally.store}: {what}, {tally.seconds:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
