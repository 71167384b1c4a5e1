"""Retention: find expired trees by reading alone, and remove them in short transactions that check them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from treadle.kernel.store.queries import Pruned, PrunePage, Rules
from treadle.model.errors import Unsupported
from treadle.stores.rules.encoding import RUNS, first_id
from treadle.stores.sqlite.connection.connect import read_row, read_value, reading, to_json
from treadle.stores.sqlite.database import Part, reads, uses_writer, writes
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "retention.sql")
_decode = msgspec.json.Decoder().decode

SLACK = 1000
"""The minimum number of free pages that a file keeps, because it will need them again."""


class Retention(Part):
    """The `RetentionStore` of SQLite."""

    async def prepare(self, rules: Rules) -> None:
        """Do nothing: all rows are in one table."""

    async def drop_expired(self, rules: Rules, limit: int) -> Pruned:
        """Do nothing: rows are removed one by one."""
        return Pruned()

    @reads
    def find_prunable(
        self,
        connection: apsw.Connection,
        rules: Rules,
        cursor: str | None,
        limit: int,
        *,
        count: bool = False,
        patient: bool = False,
    ) -> PrunePage:
        values = self._values(rules)
        with reading(connection):
            newest_at = values["now"] - read_value(connection, _SQL["find_shortest_keep"], values)
            if cursor is not None and cursor.startswith(RUNS):
                span = {"after_id": cursor.removeprefix(RUNS), "until_id": first_id(newest_at + 1), "limit": limit}
                last_id, met, roots = read_row(connection, _SQL["find_runs_window"], values | span)
                prunable = _prunable(connection, values, _decode(roots))
                return PrunePage(prunable, f"{RUNS}{last_id}" if met == limit else None, 0, len(prunable) if count else 0)
            after_seq = int(cursor or 0)
            window = values | {"after_seq": after_seq, "limit": limit}
            last_seq, met, ended_at, roots = read_row(connection, _SQL["find_window"], window)
            prunable = _prunable(connection, values, _decode(roots))
            following = str(last_seq) if met == limit and ended_at <= newest_at else RUNS
            if not count or not prunable:
                return PrunePage(prunable, following)
            span = {"roots": to_json(prunable), "after_seq": after_seq, "until_seq": last_seq}
            trees, tasks = read_row(connection, _SQL["count_members"], span)
            return PrunePage(prunable, following, tasks, trees)

    def _values(self, rules: Rules) -> dict[str, Any]:
        return {name: getattr(rules, name) for name in rules.__struct_fields__} | {"now": self._database.now()}

    @writes
    def prune_trees(self, connection: apsw.Connection, rules: Rules, roots: Sequence[str], limit: int) -> Pruned:
        sure = _prunable(connection, self._values(rules), roots)
        trees = to_json(sure)
        members = _decode(read_value(connection, _SQL["list_members"], {"roots": trees, "limit": limit}))
        runs = _decode(read_value(connection, _SQL["list_runs"], {"roots": trees}))
        steps = _decode(read_value(connection, _SQL["list_steps"], {"runs": to_json(runs), "limit": limit}))
        lines = _change(connection, "delete_lines", ids=to_json([*members, *steps]), limit=limit)
        room = limit - lines
        steps = steps[:room]
        room -= len(steps)
        members = members[:room]
        room -= len(members)
        _change(connection, "delete_steps", ids=to_json(steps))
        moves = _change(connection, "delete_log", ids=to_json(members))
        _change(connection, "delete_finished", ids=to_json(members))
        _change(connection, "delete_tags", ids=to_json(members))
        outcomes = _change(connection, "delete_outcomes", roots=trees, limit=max(room, 0))
        room -= outcomes
        chunks = _change(connection, "delete_chunks", roots=trees, limit=max(room, 0))
        room -= chunks
        records = _decode(read_value(connection, _SQL["list_records"], {"roots": trees, "limit": max(room, 0)}))
        room -= len(records)
        moves += _delete_records(connection, records)
        if room <= 0:
            _change(connection, "bump_runs", ids=to_json(runs))
            return Pruned(0, len(members), moves, lines, 0, len(steps), 0, len(records), outcomes, chunks, more=True)
        moves += _change(connection, "delete_log", ids=to_json(runs))
        _change(connection, "delete_runs", ids=to_json(runs))
        _change(connection, "delete_streams", roots=trees)
        blobs = drop_uses(connection, sure)
        return Pruned(len(sure), len(members), moves, lines, len(runs), len(steps), blobs, len(records), outcomes, chunks)

    @writes
    def set_keep(
        self, connection: apsw.Connection, namespace: str, task_list: str, completed_for: int | None, failed_for: int | None
    ) -> None:
        values = {"namespace": namespace, "task_list": task_list, "completed_for": completed_for, "failed_for": failed_for}
        connection.execute(_SQL["set_keep"], values)

    @writes
    def prune_rest(
        self, connection: apsw.Connection, limit: int, keep_servers_for: int, keep_records_for: int
    ) -> tuple[int, int, int]:
        now = self._database.now()
        keys = _change(connection, "delete_keys", now=now, limit=limit)
        servers = _change(connection, "delete_servers", now=now, keep_servers_for=keep_servers_for)
        old = {"now": now, "keep_records_for": keep_records_for, "limit": limit}
        records = _decode(read_value(connection, _SQL["list_old_records"], old))
        _delete_records(connection, records)
        return keys, servers, len(records)

    @uses_writer
    def compact(self, connection: apsw.Connection, *, whole: bool = False, tight: bool = False) -> int:
        pages, free, mode = read_row(connection, _SQL["count_free"])
        if whole:  # a file that was created without incremental vacuum gets it when it is rewritten
            connection.pragma("auto_vacuum", "incremental")
            connection.execute(_SQL["vacuum"])
        elif tight and not mode:
            raise Unsupported(
                "The file was created by an early version and cannot be compacted in steps: "
                "stop the workers and run `treadle store prune --compact` once, which rewrites it."
            )
        elif mode and free > (0 if tight else max(SLACK, pages // 10)):
            connection.execute(_SQL["vacuum_some"]).fetchall()
        else:
            return 0
        return int((pages - read_row(connection, _SQL["count_free"])[0]) * connection.pragma("page_size"))


def _prunable(connection: apsw.Connection, values: dict[str, Any], roots: Sequence[str]) -> tuple[str, ...]:
    if not roots:
        return ()
    return tuple(_decode(read_value(connection, _SQL["list_prunable"], values | {"roots": to_json(roots)})))


def _delete_records(connection: apsw.Connection, records: Sequence[str]) -> int:
    """Delete the records with their moves; return the number of moves."""
    moves = _change(connection, "delete_log", ids=to_json(records))
    _change(connection, "delete_records", ids=to_json(records))
    return moves


def drop_uses(connection: apsw.Connection, roots: Sequence[str]) -> int:
    """Release the large values that the trees use; return the number of deleted values."""
    values = {"roots": to_json(roots)}
    digests = read_value(connection, _SQL["list_digests"], values)
    _change(connection, "delete_uses", **values)
    return _change(connection, "delete_blobs", digests=digests)


def _change(connection: apsw.Connection, name: str, **values: Any) -> int:
    connection.execute(_SQL[name], values)
    return int(connection.changes())
