"""The one shape of a benchmark: a module with these names, and a docstring that explains what it measures.

The docstring opens its section of RESULTS.md. Each measurement runs in a process of its own (`bench.one`), so that none finds the
memory or the collector as another left it.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import time
from collections.abc import Iterable
from typing import Any, Protocol, cast

Figures = dict[str, Any]
"""Figures of one store: names mapped to numbers, or to lists with one number per repetition. JSON-serialisable."""

Found = dict[str, Figures]
"""The figures by store: `sqlite`, `postgresql`."""

BENCHMARKS = (
    "queue",
    "conversion",
    "commits",
    "transactional",
    "turns",
    "batches",
    "growth",
    "big_tables",
    "churn",
    "search",
    "takeover",
    "memory",
    "space",
    "functions",
    "sync_functions",
    "agents",
    "streams",
    "workflows",
    "nested",
    "external",
    "http",
    "load",
    "web",
    "cli",
    "language",
)
"""The modules of this package that have the shape, as they are run."""

BOTH = ("sqlite", "postgresql")

_BEGUN = time.monotonic()


class Benchmark(Protocol):
    """The interface of a benchmark module, as `python -m bench` uses it."""

    __doc__: str
    NAME: str
    """Its section of RESULTS.md, and of the command line."""
    TITLE: str
    STORES: tuple[str, ...]
    """The stores that it is measured on."""
    SIZES: Any
    """How much and how often: a frozen dataclass; `--set field=value` changes it."""
    QUICK: Any
    """The same, to see in seconds that it runs."""

    async def measure(self, url: str, sizes: Any) -> Figures:
        """All figures for one store: a new, empty one, or the one of `--store URL`."""

    def show(self, found: Found) -> str:
        """The body of its section: tables, and each target with its result."""


def load(name: str) -> Benchmark:
    """The benchmark of that name; loaded when it is run, as each needs other libraries."""
    if name not in BENCHMARKS:
        raise SystemExit(f"There is no benchmark {name!r}. There are: {', '.join(BENCHMARKS)}.")
    return cast(Benchmark, importlib.import_module(f"bench.{name}"))


def resize(sizes: Any, settings: Iterable[str]) -> Any:
    """Sizes with `field=value` for those fields that they have, as the type that the field has now."""
    changed = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        if not hasattr(sizes, name):
            continue
        now = getattr(sizes, name)
        kind = str if now is None else type(now)
        changed[name] = kind(text)
    return dataclasses.replace(sizes, **changed)


def say(text: str) -> None:
    """Print progress on stderr; stdout may be redirected."""
    print(f"[{time.monotonic() - _BEGUN:6.1f} s] {text}", file=sys.stderr, flush=True)
