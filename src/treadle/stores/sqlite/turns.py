"""Turns: the due times by which tasks with fairness keys interleave, so that claims need no other order than that of all tasks."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from treadle.stores.sqlite.connection.connect import to_json
from treadle.stores.statements import load_statements

_TAKE_TURNS = load_statements(__package__, "tasks.sql")["take_turns"]


def take_turns(connection: apsw.Connection, task_ids: Sequence[str]) -> None:
    """Give those of the tasks that have a fairness key and wait their turns, inside the caller's transaction."""
    if task_ids:
        connection.execute(_TAKE_TURNS, {"ids": to_json(list(task_ids))})
