"""The short way of checkpoints: which claims are held is one look, and all their steps are one statement."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from treadle.kernel.store.units import CLAIM_LOST, Answer, PutSteps, Unit
from treadle.model.tasks import Claim
from treadle.stores.checkpoints import kept_answer
from treadle.stores.sqlite.connection import read_value
from treadle.stores.sqlite.rows import put_steps
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "commit.sql")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[tuple[int, int]]).decode


def list_staying(connection: apsw.Connection, units: Sequence[Unit]) -> dict[int, int]:
    """The hold of the tasks of units whose claim is held, by position."""
    claims = [(unit.guard.task_id, unit.guard.version, unit.guard.owner_id) for unit in units if isinstance(unit.guard, Claim)]
    return dict(_decode(read_value(connection, _SQL["list_staying"], {"rows": _encode(claims).decode()})))


def put_checkpoints(connection: apsw.Connection, units: Sequence[Unit], now: int) -> list[Answer]:
    """Do units that are nothing but checkpoints, inside a transaction of the caller's."""
    holds = list_staying(connection, units)
    puts = [row for position, unit in enumerate(units) if position in holds for row in unit.rows if isinstance(row, PutSteps)]
    put_steps(connection, [step for row in puts for step in row.steps], now)
    return [kept_answer(holds[position]) if position in holds else CLAIM_LOST for position in range(len(units))]
