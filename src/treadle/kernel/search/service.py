"""Search of runs and tasks: candidates from an index, newest first, checked one by one against the query.

A call looks at up to `ROWS_LIMIT` candidates, or `VALUES_LIMIT` if it has to read their inputs or outputs, and says how many it
looked at; a page that ends there may have fewer records than asked for, and has a cursor to continue with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from treadle.kernel.core import Core, Service
from treadle.kernel.search.plan import KEYS_LIMIT, SearchPlan, Subject, error_text, matches, plan, roots
from treadle.kernel.search.query import Condition, Field, Instant, Query, QueryGroup, parse, parts_of
from treadle.kernel.store.database import ScanRange, SearchStore
from treadle.kernel.store.lookups import check_limit
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import NEWEST, Place, RunFilter, TaskFilter
from treadle.model.errors import TreadleError
from treadle.model.ids import Ref, id_time, parse_id, uuid7
from treadle.model.runs import Run
from treadle.model.tasks import Task
from treadle.model.values import Json, decode_error

ROWS_LIMIT = 5_000
VALUES_LIMIT = 1_000
RUNS_LIMIT = 10_000
TAG_KEYS_LIMIT = 50
"""With more keys of tags, a tag with any key is not found by the index, but among the newest records."""
_BATCH = 1000
_FIRST_BATCH = 100
_SHARE = 20
"""The candidates that each of several streams reads at least."""
_EXTRA = 3
"""Several streams together read up to this many times the candidates: some have none, and another round takes longer."""
_VALUES = frozenset({"input", "output"})
_LOADED = _VALUES | {"activity", "tag"}
"""Fields that are not in the row of a candidate."""

T = TypeVar("T", Run, Task)

ListByActivity = Callable[[Sequence[Run]], Awaitable[dict[str, str]]]
"""Returns the activities of the unfinished runs, by id."""


@dataclass(frozen=True, slots=True)
class SearchPage(Generic[T]):
    """Matching records, newest first; `cursor` is the id to continue after (None: there are no more), `searched` the number of
    candidates that the call looked at."""

    records: list[T]
    cursor: str | None
    searched: int | None
    complete: bool = True
    """False: the call looked at as many candidates as it may, and found fewer records than asked for."""


class Search(Service):
    """Searches of one namespace; changes nothing. `encoded`: a codec encodes errors, so no index has their words."""

    def __init__(self, core: Core, list_by_activity: ListByActivity, *, encoded: bool) -> None:
        super().__init__(core)
        self._list_by_activity = list_by_activity
        self._encoded = encoded

    async def list_runs(
        self, where: str, *, more: Sequence[Query] = (), before_id: Ref | None = None, limit: int = 50
    ) -> SearchPage[Run]:
        """A page of the runs that match the query and the conditions `more`."""
        return await self._search(_runs(self._store, self._namespace), _joined(parse(where), more), before_id, limit)

    async def list_tasks(
        self, where: str, *, more: Sequence[Query] = (), before_id: Ref | None = None, limit: int = 50
    ) -> SearchPage[Task]:
        """A page of the tasks that match the query and the conditions `more`."""
        return await self._search(_tasks(self._store, self._namespace), _joined(parse(where, tasks=True), more), before_id, limit)

    async def find_runs(self, where: str, more: Sequence[Query] = ()) -> tuple[list[Run], bool]:
        """The newest runs that match, up to `RUNS_LIMIT`, and whether they are all."""
        page = await self.list_runs(where, more=more, limit=_BATCH)
        runs = page.records
        while page.cursor is not None and len(runs) < RUNS_LIMIT:
            page = await self.list_runs(where, more=more, before_id=page.cursor, limit=_BATCH)
            runs += page.records
        return runs, page.cursor is None

    async def list_tags(self, owner_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """The tags of runs and tasks in stored form, by id."""
        return await self._store.search.list_tags(owner_ids) if owner_ids else {}

    async def _search(self, source: _Source[T], query: Query, before_id: Ref | None, limit: int) -> SearchPage[T]:
        check_limit(limit)
        now = await self._store.now()
        chosen = plan(query, now, words_indexed=not self._encoded)
        after = chosen.after or 0
        at = NEWEST if before_id is None else await source.position(parse_id(before_id, "cursor"))
        if chosen.before is not None:
            at = min(at, Place(chosen.before, uuid7(max(chosen.before, 0), bytes(10))))
        streams = await source.streams(chosen)
        fields = frozenset(roots(query))
        most = VALUES_LIMIT if fields & _VALUES else ROWS_LIMIT
        results: list[T] = []
        searched, size = 0, limit + 1 if chosen.exact else max(limit, _FIRST_BATCH)
        while searched < most:
            size = min(size, _BATCH, most - searched)
            share = max(min(_EXTRA * size // max(len(streams), 1), size), _SHARE)
            keep = size if chosen.exact else min(_EXTRA * size, most - searched)
            batch = _merged(await asyncio.gather(*(stream(at, after, share) for stream in streams)), keep, after)
            for record in await self._matching(query, fields, batch.records, now):
                results.append(record)
                if len(results) == limit:
                    seen = sum(place >= _place(record) for place in batch.places)
                    last = batch.done and seen == len(batch.places)
                    return SearchPage(results, None if last else record.id, searched + seen)
            searched += len(batch.places)
            if batch.done or not batch.places:
                return SearchPage(results, None, searched)
            at = batch.places[-1]
            size = (
                min(size * 4, max(_FIRST_BATCH, searched * (limit - len(results)) * 5 // (len(results) * 4)))
                if results
                else size * 4
            )
        return SearchPage(results, at.id, searched, complete=False)

    async def _matching(self, query: Query, fields: frozenset[str], batch: Sequence[T], now: int) -> list[T]:
        """The records that match; loads values outside their rows only for those that the row does not exclude."""
        plain = _plain_part(query)
        wants_error = "error" in fields
        candidates = [record for record in batch if plain is None or matches(plain, _subject(record, wants_error), now)]
        loaded = fields & _LOADED
        if not loaded:
            return candidates
        tags = await self._store.search.list_tags([record.id for record in candidates]) if "tag" in loaded and candidates else {}
        records: Sequence[Run | Task] = candidates
        runs = [record for record in records if isinstance(record, Run)]
        activity = await self._list_by_activity(runs) if "activity" in loaded else {}
        matching = []
        for record in candidates:
            more: dict[str, Any] = {"tags": tags.get(record.id, {}), "activity": activity.get(record.id)}
            values = (
                {"input": record.inputs, "output": record.outputs}
                if isinstance(record, Run)
                else {"input": record.payload, "output": record.result}
            )
            for name in loaded & _VALUES:
                if (text := values[name]) is not None:
                    more |= await self._unpack(name, text)
            if matches(query, _subject(record, wants_error, **more), now):
                matching.append(record)
        return matching

    async def _unpack(self, name: str, text: str) -> dict[str, Json]:
        """The value; nothing if it cannot be read."""
        try:
            return {name: await self._value_store.unpack(text)}
        except TreadleError:
            return {}


class _Batch(NamedTuple, Generic[T]):
    """The positions of candidates, newest first; the records at these positions, except those whose state the query excludes; and
    whether there are no other candidates."""

    places: list[Place]
    records: list[T]
    done: bool


Stream = Callable[[Place, int, int], Awaitable[_Batch[T]]]
"""Returns candidates after a position, created at an instant or later, up to a number."""


@dataclass(frozen=True, slots=True)
class _Source(Generic[T]):
    """The candidates of one entity; `find_many` may leave out those in other states than the given ones."""

    entity: str
    namespace: str
    search: SearchStore
    find: Callable[[str], Awaitable[T | None]]
    find_many: Callable[[Sequence[str], Sequence[str]], Awaitable[list[T]]]
    list_after: Callable[[Place, int, int, dict[str, Any]], Awaitable[list[T]]]
    """Lists records after a position, of those created at an instant or later, up to a number, with more conditions."""

    async def position(self, record_id: str) -> Place:
        """The position of a record in lists."""
        record = await self.find(record_id)
        return Place(id_time(record_id) if record is None else record.created_at, record_id)

    async def streams(self, chosen: SearchPlan) -> list[Stream[T]]:
        """The streams whose candidates together are those of the plan."""
        runs = self.entity == "run"
        match chosen.by:
            case "tag":
                limit = TAG_KEYS_LIMIT + 1
                keys = [chosen.tag] if chosen.tag else await self.search.list_tag_keys(self.entity, self.namespace, limit)
                pairs = [(key, value) for key in keys for value in chosen.keys]
                if len(keys) == limit:
                    return [self._listed()]
                return [self._indexed(self.search.list_tagged, *pair, states=chosen.states) for pair in pairs]
            case "words":
                with_words = self._indexed(self.search.list_with_words, chosen.keys[0].split(), states=chosen.states)
                return [with_words] if runs else [with_words, self._indexed(self.search.list_failing_tasks)]
            case "run":
                return [self._listed(run_id=key) for key in chosen.keys]
            case "state":
                return [self._listed(states=(key,)) for key in chosen.keys]
            case "name":
                return [self._listed(**{"workflow" if runs else "name": key}) for key in chosen.keys]
            case "prefix" if runs:
                names = await self.search.list_run_names(chosen.keys[0], KEYS_LIMIT + 1)
                return [self._listed()] if len(names) > KEYS_LIMIT else [self._listed(workflow=name) for name in names]
            case _:
                return [self._listed()]

    def _indexed(self, read: Callable[..., Awaitable[list[Place]]], *keys: Any, states: Sequence[str] = ()) -> Stream[T]:
        async def stream(at: Place, after: int, size: int) -> _Batch[T]:
            places = await read(ScanRange(self.entity, self.namespace, at, after), *keys, size)
            records = await self.find_many([place.id for place in places], states) if places else []
            return _Batch(places, records, len(places) < size)

        return stream

    def _listed(self, **which: Any) -> Stream[T]:
        async def stream(at: Place, after: int, size: int) -> _Batch[T]:
            records = await self.list_after(at, after, size, which)
            return _Batch([_place(record) for record in records], records, len(records) < size or records[-1].created_at < after)

        return stream


def _runs(store: Store, namespace: str) -> _Source[Run]:
    async def list_after(at: Place, after: int, size: int, which: dict[str, Any]) -> list[Run]:
        return await store.runs.list_matching(RunFilter(namespace=namespace, before=at, created_after=after, **which), size)

    return _Source("run", namespace, store.search, store.runs.find, store.runs.find_many, list_after)


def _tasks(store: Store, namespace: str) -> _Source[Task]:
    async def find_many(ids: Sequence[str], _: Sequence[str]) -> list[Task]:
        return await store.tasks.find_many(ids)

    async def list_after(at: Place, _: int, size: int, which: dict[str, Any]) -> list[Task]:
        return await store.tasks.list_matching(TaskFilter(namespace=namespace, before=at, **which), size)

    return _Source("task", namespace, store.search, store.tasks.find, find_many, list_after)


def _place(record: Run | Task) -> Place:
    return Place(record.created_at, record.id)


def _merged(batches: Sequence[_Batch[T]], size: int, after: int) -> _Batch[T]:
    """The candidates of several streams in one order, up to the first position that a stream has not reached yet."""
    reached = max((batch.places[-1] for batch in batches if not batch.done and batch.places), default=Place(0, ""))
    reached = max(reached, Place(after, ""))
    places = sorted({place for batch in batches for place in batch.places if place >= reached}, reverse=True)
    done = all(batch.done for batch in batches) and len(places) <= size
    records = {place: record for batch in batches for record in batch.records if (place := _place(record)) >= reached}
    return _Batch(places[:size], [records[place] for place in places[:size] if place in records], done)


def _subject(record: Run | Task, wants_error: bool, activity: str | None = None, **more: Any) -> Subject:
    if isinstance(record, Run):
        facts = {"state": str(record.state), "name": record.workflow, "activity": activity, "flow": record.flow_id}
    else:
        facts = {"state": str(record.shown_state), "name": record.name, "run": record.run_id, "activity": record.counted_as}
    facts |= {"kind": record.kind, "list": record.task_list, "id": record.id, "root": record.root_id}
    error = error_text(decode_error(record.error)) if wants_error and record.error else None
    return Subject(facts, record.created_at, record.finished_at, error, **more)


def _plain_part(query: Query) -> Query | None:
    """The conditions of the query that the row of a record decides."""
    plain = tuple(part for part in parts_of(query) if not _LOADED.intersection(roots(part)))
    return QueryGroup("and", plain) if plain else None


def _joined(query: Query, more: Sequence[Query]) -> Query:
    return QueryGroup("and", (*parts_of(query), *more)) if more else query


def one_of(root: str, values: Sequence[str | None]) -> list[Query]:
    """The condition that a field has one of the values, as a list; empty for no values. `root` may also be `flow` or `root`."""
    texts = tuple(value for value in values if value is not None)
    return [Condition(Field(root), "=" if len(texts) == 1 else "in", texts)] if texts else []


def created_within(after: int | None, before: int | None) -> list[Query]:
    """The conditions that a record was created at an instant or later, and before another."""
    bounds = ((">=", after), ("<", before))
    return [Condition(Field("created"), op, (Instant(at),)) for op, at in bounds if at is not None]
