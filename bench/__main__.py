"""`python -m bench [NAME ...]`: measure on a temporary SQLite and a temporary PostgreSQL, and write the sections of RESULTS.md.

Without names, all benchmarks one after the other: about 15 minutes on two quiet cores. A section is written once its
benchmark has been measured on all of its stores; with --quick, --no-write or --store it is only printed.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from bench import results
from bench.benchmark import BENCHMARKS, Benchmark, Figures, Found, load, say
from bench.processes import stop_at_sigterm
from bench.servers import kept_store, temporary_store
from treadle.settings import child_environment


def main() -> int:
    """0 if all were measured; aims that were missed are figures, not failures."""
    stop_at_sigterm()
    options = parse(sys.argv[1:])
    everything: dict[str, Found] = {}
    failed = []
    times: dict[str, float] = {}
    for name in options.names or BENCHMARKS:
        benchmark = load(name)
        load_before, began = os.getloadavg()[0], time.monotonic()
        try:
            found = measured(benchmark, options)
        except subprocess.CalledProcessError:
            say(f"{name}: FAILED; its section stays as it was")
            failed.append(name)
            continue
        if not found:
            continue
        everything[name] = found
        times[name] = time.monotonic() - began
        body = section(benchmark, found, times[name], load_before)
        if not options.json:
            print(f"## {benchmark.TITLE}\n\n{body}\n", flush=True)
        if tuple(found) == benchmark.STORES and not (options.quick or options.no_write or options.store):
            command = " ".join(["python -m bench", name, *(f"--set {setting}" for setting in options.set)])
            results.write(name, benchmark.TITLE, body, command)
    if options.json:
        print(json.dumps(everything, indent=2))
    say(f"took {sum(times.values()):.0f} s: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in times.items()))
    if failed:
        say(f"failed: {', '.join(failed)}")
    return len(failed)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs; writes nothing")
    parser.add_argument(
        "--store", metavar="KIND|URL", help="only sqlite or postgresql, or the store of that URL, which is written to"
    )
    parser.add_argument("--folder", type=Path, metavar="FOLDER", help="use the stores in that folder, and keep them")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="another size, such as tasks=200000")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--no-write", action="store_true", help="leave RESULTS.md as it is")
    return parser.parse_args(arguments)


def measured(benchmark: Benchmark, options: argparse.Namespace) -> Found:
    """The figures of each store, each from a process of its own; empty if the benchmark is not for the store that is asked for."""
    wanted = options.store.partition(":")[0] if options.store else None
    found: Found = {}
    for kind in benchmark.STORES:
        if wanted not in (None, kind):
            continue
        say(f"{benchmark.NAME} on {kind}")
        with store_of(kind, options) as url:
            found[kind] = figures_of(benchmark.NAME, url, [*options.set, *(["--quick"] if options.quick else [])])
    if not found:
        say(f"{benchmark.NAME} is not measured on {options.store}: left out")
    return found


def store_of(kind: str, options: argparse.Namespace) -> AbstractContextManager[str]:
    """The URL of the store to measure on."""
    if "://" in (options.store or ""):
        return contextlib.nullcontext(options.store)
    return kept_store(kind, options.folder) if options.folder else temporary_store(kind)


def figures_of(name: str, url: str, settings: Sequence[str]) -> Figures:
    """Run `bench.one` in its own process and return the figures that it prints."""
    command = [sys.executable, "-m", "bench.one", name, *settings]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment(TREADLE_STORE=url)) as process:
        try:
            output, _ = process.communicate()
        except BaseException:
            process.terminate()  # it ends what it has started
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    figures: Figures = json.loads(output.strip().splitlines()[-1])
    return figures


def section(benchmark: Benchmark, found: Found, took: float, load_before: float) -> str:
    """The section of RESULTS.md: the description of the benchmark and its figures."""
    about = inspect.cleandoc(benchmark.__doc__)
    return f"{about}\n\n{benchmark.show(found)}\n\nMeasured in {took:.0f} s; load at the start: {load_before:.1f}."


if __name__ == "__main__":
    sys.exit(main())
