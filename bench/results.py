"""RESULTS.md: one section for each benchmark, written whole by the run that measured it; nothing in it is written by hand.

What the figures mean, and where the time goes, is in docs/explanation/performance.md.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

import apsw

from bench.servers import postgres_version

RESULTS = Path(__file__).parent / "RESULTS.md"

ORDER = ("queue", "peers", "growth", "memory", "functions", "workflows", "external", "http", "web", "cli", "simulation", "chaos")
"""The sections, as a reader wants them."""

HEAD = """# What was measured

Each section is written whole by the command that it names, with the machine and its load. Machines are shared and noisy: compare
ratios within one section, not figures of different sections. What they mean is in
[docs/explanation/performance.md](../docs/explanation/performance.md).
"""


def write(name: str, title: str, body: str, command: str) -> None:
    """Put this section in the place of the one that was there."""
    if name not in ORDER:
        raise ValueError(f"{name} has no place in RESULTS.md: add it to ORDER")
    sections = _read()
    sections[name] = f"## {title}: `{command}`\n\n{machine()}\n\n{body.strip()}\n"
    text = HEAD + "".join(f"\n<!-- begin {each} -->\n{sections[each]}<!-- end {each} -->\n" for each in ORDER if each in sections)
    RESULTS.write_text(text)


def machine() -> str:
    """A one-line description of the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{package} {metadata.version(package)}" for package in ("treadle", "apsw", "asyncpg"))
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release().partition('-')[0]}, "
        f"CPython {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}, PostgreSQL {postgres_version()} "
        f"(private server, default settings, fsync on), {versions}; load {load:.1f} when this was written."
    )


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown; numbers as people read them."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(shown(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def shown(cell: object) -> str:
    """A number as people read it; anything else as it is."""
    if not isinstance(cell, float):
        return f"{cell:,}" if isinstance(cell, int) else str(cell)
    if abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.2f}"


def _read() -> dict[str, str]:
    """The sections that are there."""
    text = RESULTS.read_text() if RESULTS.exists() else ""
    sections = {}
    for name in ORDER:
        _, begun, rest = text.partition(f"<!-- begin {name} -->\n")
        body, ended, _ = rest.partition(f"<!-- end {name} -->")
        if begun and ended:
            sections[name] = body
    return sections
