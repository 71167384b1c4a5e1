"""`python -m tests.fuzz`: tries all that takes text from outside, one target after another, and keeps what it finds.

Each target gets a third of its time for inputs that Hypothesis draws by its grammar, and the rest for Atheris, which looks at
what the code reaches (where it is installed: the extra `fuzz`). A find is made small and written into `tests/fuzz/corpus`,
where `make test` plays it from then on.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

from tests.fuzz.api_requests import STORES, campaign
from tests.fuzz.coverage_guided import bound_memory
from tests.fuzz.harness import corpus_of, keep, play, smallest
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
GROWN = ROOT / ".fuzz"
"""Inputs that reached new code, kept from one run to the next; not part of the project."""


def main() -> int:
    """0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--target", action="append", choices=[*TARGETS, "http"], help="only this one; may be repeated")
    parser.add_argument("--play", type=Path, metavar="FILE", help="play this input on the target, and show what goes wrong")
    parser.add_argument("--keep", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    chosen = options.target or [*TARGETS, "http"]
    if options.play or options.keep:
        if len(chosen) != 1 or chosen[0] not in TARGETS:
            parser.error("say which target the file is for: --target NAME")
        return show(chosen[0], options.play) if options.play else shrink(chosen[0], options.keep)
    guided = importlib.util.find_spec("atheris") is not None
    if not guided:
        print("Atheris is not installed (pip install -e '.[fuzz]'): inputs are drawn, and nobody looks at what they reach.")
    found = [
        name for name in chosen if not (tried(name, options.seconds, guided) if name in TARGETS else over_http(options.seconds))
    ]
    print(f"Found something in: {', '.join(found)}." if found else "Nothing found.")
    return int(bool(found))


def tried(name: str, seconds: int, guided: bool) -> bool:
    """Whether nothing was found in the time."""
    folder = GROWN / name
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("finds/*"), *folder.glob("died-*")):
        old.unlink()
    share = seconds if not guided else max(1, seconds // 3)
    print(f"  {name}: {told(run('random_inputs', name, folder, share))}", flush=True)
    if guided:
        print(f"  {name}: {told(run('coverage_guided', name, folder, seconds - share))}", flush=True)
    found = [*sorted(folder.glob("finds/*")), *folder.glob("died-*")]
    for each in found:
        subprocess.run([sys.executable, "-m", "tests.fuzz", "--target", name, "--keep", str(each)], cwd=ROOT, check=False)
    return not found


def run(way: str, name: str, folder: Path, seconds: int) -> str:
    """The output of a process that fuzzed the target for that long."""
    command = [sys.executable, "-m", f"tests.fuzz.{way}", name, str(folder), str(seconds)]
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=seconds * 2 + 900)
    except subprocess.TimeoutExpired:
        return f"the process that tried it ({way}) did not end"
    return ended.stdout + ended.stderr + ("" if ended.returncode == 0 else f"\nthe process ended with {ended.returncode}")


def told(text: str) -> str:
    """One line of it: how many, how fast, how far it reached; or its last lines if it went wrong."""
    if drawn := re.search(r"^drawn: (\d+)$", text, re.MULTILINE):
        return f"{drawn[1]} inputs drawn"
    reached = re.findall(r"^#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)", text, re.MULTILINE)
    rate = re.search(r"stat::average_exec_per_sec:\s+(\d+)", text)
    if not reached or rate is None:
        return "went wrong:\n" + "\n".join(text.splitlines()[-15:])
    first, last = reached[0], reached[-1]
    return f"{last[0]} inputs by coverage, {rate[1]}/s; places reached {first[1]} -> {last[1]}, {last[3]} inputs worth keeping"


def shrink(name: str, path: Path) -> int:
    """Make a find small, write it into the corpus, and say how to see it again."""
    for seed in corpus_of(name)[:3]:
        play(name, TARGETS[name], seed.read_bytes())
    bound_memory()
    find = play(name, TARGETS[name], path.read_bytes())
    if find is None:
        print(f"  {name}: {path.name} does not come again by itself; it may need what was played before it")
        return 1
    kept = keep(smallest(find, TARGETS[name]))
    print(
        f"  {name}: FOUND {find.sign}; see it again with\n    python -m tests.fuzz --target {name} --play {kept.relative_to(ROOT)}"
    )
    return 0


def show(name: str, path: Path) -> int:
    """0 if the input does no harm."""
    find = play(name, TARGETS[name], path.read_bytes())
    print("Nothing wrong." if find is None else find.text())
    return int(find is not None)


def over_http(seconds: int) -> bool:
    well = [campaign(kind, seconds / len(STORES)) for kind in STORES]
    return all(well)


if __name__ == "__main__":
    sys.exit(main())
