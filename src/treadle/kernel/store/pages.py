"""Common reads: the limit of a page, all pages of a filter, and the record of a name or id."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from msgspec.structs import replace

from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.records import RecordFilter
from treadle.kernel.store.short_ids import find_id
from treadle.model.errors import AmbiguousId, InvalidInput, NotFound
from treadle.model.ids import parse_id
from treadle.model.records import Record
from treadle.model.runs import Step
from treadle.model.tags import KeptTags, Tags, decode_tags
from treadle.model.tasks import Task

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
    found: list[Step] = []
    while page := await store.runs.list_steps(run_id, found[-1].id if found else None, PAGE_LIMIT):
        found += page
    return found


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
            found = parse_id(name_or_id) if exact else await find_id(store, namespace, entity, name_or_id)
            record = await store.records.find(found)
        except AmbiguousId:
            raise
        except (InvalidInput, NotFound):
            return None
    return None if record is None or (record.namespace, record.entity) != (namespace, entity) else record
