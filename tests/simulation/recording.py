"""The store calls of a history with their times and answers, to replay them on another store."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.faults import FaultySimulation
from tests.simulation.history import HISTORY_TIMEOUT, History, Report, report_of

from treadle.stores.sqlite import SqliteStore
from treadle.testing.simulation import Process

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One call; `at` is the time on the caller's clock."""

    at: int
    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    answer: Any


@dataclass(slots=True)
class Recording:
    """A history as its store saw it, and the rows that it left there."""

    calls: list[Call] = field(default_factory=list)
    tables: dict[str, list[Row]] = field(default_factory=dict)

    async def keep_tables(self, store: SqliteStore, tables: Sequence[str]) -> None:
        """Read the rows of the tables."""

        def read(connection: Any) -> None:
            for table in tables:
                rows = connection.execute(f"select * from {table}").fetchall()
                self.tables[table] = [dict(zip(_names(connection, table), row, strict=True)) for row in rows]

        await store._database.writer.call(read)

    def hear(self, process: Process, name: str, arguments: tuple[Any, ...], options: dict[str, Any], answer: Any) -> None:
        """Record a call. Workers and `open_values` change the tasks they receive, so these are copied."""
        kept = copy.deepcopy(answer)
        self.calls.append(Call(process.clock.now(), name, arguments, options, kept))


def record(seed: int, tables: tuple[str, ...]) -> tuple[Recording, Report]:
    """Play the history of that seed, and record the calls of its store."""
    recording = Recording()
    simulation = FaultySimulation(seed)
    simulation.on_done.append(recording.hear)
    history = History(simulation, HISTORY_TIMEOUT)
    history.sweeps = False  # the remaining rows are compared at the end

    async def play(simulation: FaultySimulation) -> None:
        await history.play(simulation)
        await simulation.end()
        await recording.keep_tables(simulation.store, tables)

    simulation.run(play)
    return recording, report_of(simulation, history)


def _names(connection: Any, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"pragma table_xinfo({table})")]
