"""Lookups: ids from their beginnings, all pages of a list, the last run of a lineage, and the task or run of an idempotency key.

The id of any run of a lineage (`ctx.continue_as_new`) names the lineage: calls reach its current run. A writer that loses to a
continuation reads the lineage again, so nothing is sent to a run that has just been continued.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import RunFilter, TaskFilter
from treadle.kernel.store.records import RecordFilter
from treadle.kernel.store.value_store import ValueStore
from treadle.model.declarations import DeclarationsDocument, declarations_id
from treadle.model.errors import (
    AmbiguousId,
    IdempotencyKeyReused,
    InvalidInput,
    NotFound,
    RunNotFound,
    TaskNotFound,
    UnreadableValue,
    not_found,
)
from treadle.model.ids import Ref, derived_id, parse_id
from treadle.model.names import HANDLER
from treadle.model.records import Record
from treadle.model.runs import Run, Step
from treadle.model.states import APPROVAL, EXTERNAL, OBJECTIVE, RUN, SCHEDULE, STEP, TASK, TOKEN, WATCHER, RunState
from treadle.model.stored import read
from treadle.model.tags import KeptTags, Tags, decode_tags
from treadle.model.tasks import NewTask, Task

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
    STEP.entity: partial(not_found, "step"),
    APPROVAL.entity: partial(not_found, "approval"),
    EXTERNAL.entity: partial(not_found, "external_job"),
}
FindWork = Callable[[str], Awaitable[Task | Run | None]]
"""Reads the task or run of an id."""
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
    matches = await find_short(store, namespace, (entity,), named, lists)
    if not matches:
        missing = _NOT_FOUND.get(entity)
        raise missing(named) if missing else NotFound(f"There is no {entity} {named}.")
    if len(matches) > 1:
        listed = matches[:CANDIDATES] if tell else []
        raise AmbiguousId(_NAMES.get(entity, entity), named, listed, more=len(matches) > len(listed))
    return matches[0]


async def find_work(
    store: Store, namespace: str, work: Ref, entity: str | None = None, finds: Mapping[str, FindWork] | None = None
) -> Task | Run:
    """Return the task or run that `work` names: a record with its id, an id, the beginning of one, or `last`.

    With an `entity`, only one of that; `finds` replace the reads of the store. Raises `AmbiguousId`, `TaskNotFound` or
    `RunNotFound`.
    """
    finds = finds or {TASK.entity: store.tasks.find, RUN.entity: store.runs.find}
    entities = tuple(finds) if entity is None else (entity,)
    if isinstance(work, str) and is_short(work):
        matches = await find_short(store, namespace, entities, work)
        if len(matches) > 1:
            raise AmbiguousId(" or ".join(entities), work, matches)
        if not matches:
            raise _work_not_found(work, entities)
        work = matches[0]
    work_id = parse_id(work, f"{' or '.join(entities)} id")
    for name in entities:
        record = await finds[name](work_id)
        if record is not None and record.namespace == namespace:
            return record
    raise _work_not_found(work_id, entities)


def _work_not_found(work: str, entities: Sequence[str]) -> NotFound:
    return RunNotFound(work) if entities == (RUN.entity,) else TaskNotFound(work, " or ".join(entities))


async def find_short(store: Store, namespace: str, entities: Sequence[str], named: str, lists: Sequence[str] = ()) -> list[str]:
    """Return the ids of these entities that a short id may mean, the greatest first."""
    if named == LAST:
        newest = [record for entity in entities for record in await _newest(store, namespace, entity, lists)]
        return [max(newest)[1]] if newest else []
    digits = _digits(named)
    first, last = (str(uuid.UUID(digits.ljust(32, fill))) for fill in "0f")
    matches: list[str] = []
    for entity in entities:
        ids = await store.search.list_ids(entity, namespace, first, last, _VISIBLE if lists else CANDIDATES + 1)
        matches += await _visible(store, entity, ids, lists) if lists else ids
    return sorted(dict.fromkeys(matches), reverse=True)


async def _newest(store: Store, namespace: str, entity: str, lists: Sequence[str]) -> list[tuple[int, str]]:
    """The newest records of the entity: one, or one of each task list."""
    newest: list[tuple[int, str]] = []
    for task_list in lists or (None,):
        if entity == RUN.entity:
            newest += [
                (run.created_at, run.id)
                for run in await store.runs.list_matching(RunFilter(namespace=namespace, task_list=task_list), 1)
            ]
        elif entity == TASK.entity:
            which = TaskFilter(namespace=namespace, kind=HANDLER, task_list=task_list)
            newest += [(task.created_at, task.id) for task in await store.tasks.list_matching(which, 1)]
        elif entity in RECORDS and task_list is None:
            records = await store.records.list_matching(RecordFilter(entity, namespace), 1)
            newest += [(record.created_at, record.id) for record in records]
    return newest


async def _visible(store: Store, entity: str, ids: Sequence[str], lists: Sequence[str]) -> list[str]:
    if entity == RUN.entity:
        return [run.id for run in await store.runs.find_many(ids) if run.task_list in lists]
    if entity == TASK.entity:
        return [task.id for task in await store.tasks.find_many(ids) if task.task_list in lists]
    return []


PAGE_LIMIT = 1000
"""Limit on the entries of one page."""


def check_limit(limit: int, most: int = PAGE_LIMIT) -> int:
    """Return the limit of a page, or raise `InvalidInput`."""
    if not 0 < limit <= most:
        raise InvalidInput(f"limit must be from 1 to {most}, not {limit}.")
    return limit


async def every_task(store: Store, which: TaskFilter) -> AsyncIterator[Task]:
    """Yield all tasks that match, newest first, page by page."""
    while page := await store.tasks.list_matching(which, PAGE_LIMIT):
        for task in page:
            yield task
        which = replace(which, before_id=page[-1].id)


async def all_steps(store: Store, run_id: str) -> list[Step]:
    """All steps of a run, in storage order."""
    steps: list[Step] = []
    while page := await store.runs.list_steps(run_id, steps[-1].id if steps else None, PAGE_LIMIT):
        steps += page
    return steps


async def kept_tags(store: Store, run_id: str, more: Mapping[str, str] | None = None) -> Tags:
    """The tags of a run, for one that repeats or continues it; `more` is about to be stored, in stored form."""
    return KeptTags(decode_tags({**(await store.search.list_tags([run_id])).get(run_id, {}), **(more or {})}))


async def every_record(store: Store, which: RecordFilter, page_size: int = PAGE_LIMIT) -> AsyncIterator[Record]:
    """Yield all records that match, newest first, page by page."""
    while page := await store.records.list_matching(which, page_size):
        for record in page:
            yield record
        which = replace(which, before_id=page[-1].id)


async def find_by_name_or_id(store: Store, namespace: str, entity: str, name_or_id: str, *, exact: bool = False) -> Record | None:
    """Return the live record of that name, or the record of that id, if the namespace has one. With `exact`, the id is complete:
    a call that ends the record must not mean another one when it is repeated.
    """
    if not name_or_id.isprintable():  # the stores reject some of these
        return None
    record = await store.records.find_named(namespace, entity, name_or_id)
    if record is None:
        try:
            record_id = parse_id(name_or_id) if exact else await find_id(store, namespace, entity, name_or_id)
            record = await store.records.find(record_id)
        except AmbiguousId:
            raise
        except (InvalidInput, NotFound):
            return None
    return None if record is None or (record.namespace, record.entity) != (namespace, entity) else record


def continued_id(run_id: str) -> str:
    """The id of the run that continues this one (`ctx.continue_as_new`)."""
    return derived_id(run_id, "continued")


async def current_run(store: Store, run: Run) -> Run:
    """Return the last run of the lineage; the run itself if nothing continued it.

    One indexed read for a lineage of any length. Continuations by older versions have no lineage id: they are followed singly.
    """
    while run.state == RunState.COMPLETED and run.kind == "function" and not _returned(run):
        link = await store.runs.find_last_link(run.lineage_id or run.id) or await store.runs.find(continued_id(run.id))
        if link is None or link.id == run.id:
            break
        run = link
    return run


def _returned(run: Run) -> bool:
    """Whether the stored outputs show that the function returned a value, so nothing can continue it.

    The outputs of a continued run are `continued_as` only. Outputs that are stored elsewhere or erased do not show it.
    """
    return run.outputs is not None and run.outputs.startswith('{"result":')


def is_same_request(value_store: ValueStore, one: Task | NewTask, other: NewTask) -> bool:
    """Whether two requests are for the same task; tasks with one unique key represent each other.

    Requests are equal if kind, name, task list and payload are. Options such as priority or delay are not compared, because they
    change after the request or depend on its time. A request whose task or run was pruned counts as repeated.
    """
    same_key = other.unique_key is not None and one.unique_key == other.unique_key
    return same_key or (one.queue == other.queue and value_store.same(one.payload, other.payload))


async def check_task_repeat(store: Store, value_store: ValueStore, task: NewTask, owner_id: str) -> None:
    """Raise `IdempotencyKeyReused` if the task with the key came from a different request.

    A live task with the same unique key represents both requests. The payload of a redriven task may have been edited since.
    """
    stored = await store.tasks.find(owner_id)
    if stored is None or is_same_request(value_store, stored, task):
        return
    if stored.queue == task.queue and any(
        transition.transition == "requeue" for transition in await store.log.list_transitions(owner_id)
    ):
        return
    raise IdempotencyKeyReused(task.idempotency_key or "", "task", owner_id)


async def check_run_repeat(store: Store, value_store: ValueStore, run: Run, owner_id: str) -> None:
    """Raise `IdempotencyKeyReused` if the run with the key came from a different request; versions are not compared."""
    stored = await store.runs.find(owner_id)
    if stored is None:
        return
    same = (stored.kind, stored.workflow, stored.task_list) == (run.kind, run.workflow, run.task_list)
    if not same or not value_store.same(stored.inputs, run.inputs):
        raise IdempotencyKeyReused(run.idempotency_key or "", "run", owner_id)


async def find_owners(store: Store, namespace: str) -> dict[str, str]:
    """Return the program of each declared item; none if this process cannot read the record."""
    record = await store.records.find(declarations_id(namespace))
    try:
        document = DeclarationsDocument() if record is None else read(DeclarationsDocument, record.document)
    except UnreadableValue:
        return {}
    return {item: name for name, program in document.programs.items() for item in program.items}
