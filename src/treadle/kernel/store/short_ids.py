"""Short ids: the unique beginning of an id (four digits or more), or `last` for the newest record of its kind.

Every call that names a record by its id resolves the id here. A complete id costs no query.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence

from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import RunFilter, TaskFilter
from treadle.kernel.store.records import RecordFilter
from treadle.model.errors import (
    AmbiguousId,
    ApprovalNotFound,
    ExternalJobNotFound,
    NotFound,
    RunNotFound,
    StepNotFound,
    TaskNotFound,
)
from treadle.model.ids import Ref, parse_id
from treadle.model.names import HANDLER
from treadle.model.states import APPROVAL, EXTERNAL, OBJECTIVE, RUN, SCHEDULE, STEP, TASK, TOKEN, WATCHER

LAST = "last"
CANDIDATES = 10
"""Limit on the ids that an error lists."""
_VISIBLE = 500
"""Limit on the records that are checked for one that a caller may see."""
_PREFIX = re.compile(r"[0-9A-Fa-f]{4,8}|[0-9A-Fa-f]{8}-?[0-9A-Fa-f-]{0,27}")
_NAMES = {EXTERNAL.entity: "job", TASK.entity: "task", RUN.entity: "run"}
_NOT_FOUND: dict[str, Callable[[str], NotFound]] = {
    RUN.entity: RunNotFound,
    TASK.entity: TaskNotFound,
    STEP.entity: StepNotFound,
    APPROVAL.entity: ApprovalNotFound,
    EXTERNAL.entity: ExternalJobNotFound,
}
RECORDS = (APPROVAL.entity, EXTERNAL.entity, OBJECTIVE.entity, SCHEDULE.entity, WATCHER.entity, TOKEN.entity)


def is_short(named: object) -> bool:
    """Whether the text may be a short id."""
    return isinstance(named, str) and (named == LAST or (_PREFIX.fullmatch(named) is not None and len(_digits(named)) < 32))


def _digits(prefix: str) -> str:
    return prefix.replace("-", "").lower()


async def find_id(store: Store, namespace: str, entity: str, named: Ref, *, lists: Sequence[str] = (), tell: bool = True) -> str:
    """Return the id that is meant, among records of these task lists (none: all); raise `AmbiguousId` or `NotFound`.

    A complete id is returned even if there is no such record. Without `tell`, the error names no candidates.
    """
    if not isinstance(named, str) or not is_short(named):
        return parse_id(named, f"{_NAMES.get(entity, entity)} id")
    found = await find_short(store, namespace, (entity,), named, lists)
    if not found:
        missing = _NOT_FOUND.get(entity)
        raise missing(named) if missing else NotFound(f"There is no {entity} {named}.")
    if len(found) > 1:
        listed = found[:CANDIDATES] if tell else []
        raise AmbiguousId(_NAMES.get(entity, entity), named, listed, more=len(found) > len(listed))
    return found[0]


async def find_short(store: Store, namespace: str, entities: Sequence[str], named: str, lists: Sequence[str] = ()) -> list[str]:
    """Return the ids of these entities that a short id may mean, the greatest first."""
    if named == LAST:
        newest = [each for entity in entities for each in await _newest(store, namespace, entity, lists)]
        return [max(newest)[1]] if newest else []
    digits = _digits(named)
    first, last = (str(uuid.UUID(digits.ljust(32, fill))) for fill in "0f")
    found: list[str] = []
    for entity in entities:
        ids = await store.search.list_ids(entity, namespace, first, last, _VISIBLE if lists else CANDIDATES + 1)
        found += await _visible(store, entity, ids, lists) if lists else ids
    return sorted(dict.fromkeys(found), reverse=True)


async def _newest(store: Store, namespace: str, entity: str, lists: Sequence[str]) -> list[tuple[int, str]]:
    """The newest records of the entity: one, or one of each task list."""
    found: list[tuple[int, str]] = []
    for task_list in lists or (None,):
        if entity == RUN.entity:
            found += [
                (run.created_at, run.id)
                for run in await store.runs.list_matching(RunFilter(namespace=namespace, task_list=task_list), 1)
            ]
        elif entity == TASK.entity:
            which = TaskFilter(namespace=namespace, kind=HANDLER, task_list=task_list)
            found += [(task.created_at, task.id) for task in await store.tasks.list_matching(which, 1)]
        elif entity in RECORDS and task_list is None:
            records = await store.records.list_matching(RecordFilter(entity, namespace), 1)
            found += [(record.created_at, record.id) for record in records]
    return found


async def _visible(store: Store, entity: str, ids: Sequence[str], lists: Sequence[str]) -> list[str]:
    if entity == RUN.entity:
        return [run.id for run in await store.runs.find_many(ids) if run.task_list in lists]
    if entity == TASK.entity:
        return [task.id for task in await store.tasks.find_many(ids) if task.task_list in lists]
    return []
