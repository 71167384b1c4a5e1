"""What a watcher's task does: it looks, and what has changed and what was started for it are committed together, under its claim.

A big directory is taken in page by page, each a unit of its own: after a crash, what was committed has been seen, and the rest
is found again by the next look. A look that cannot be made changes nothing that was seen: it is said once, and tried again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from treadle.kernel.store.committer import Committer
from treadle.kernel.store.crashpoints import reach
from treadle.kernel.store.ports import Store
from treadle.kernel.store.records import ChangeRecord, PutItems
from treadle.kernel.store.units import Answer, Finish, Park, Row, Unit, Verdict
from treadle.kernel.telemetry.events import Emit, WatcherBack, WatcherTrouble
from treadle.kernel.triggers.service import ACTIVE, forget, unit_of
from treadle.kernel.triggers.target import Occasion, Prepared, Starters
from treadle.kernel.watchers.decide import (
    Content,
    Fetched,
    Found,
    Judged,
    Scan,
    concluded,
    digest_of,
    is_under,
    judge,
    judge_answer,
    key_of,
)
from treadle.kernel.watchers.service import RECENT, Watchers
from treadle.model.clock import as_text
from treadle.model.errors import LookFailed, StoreError, TreadleError
from treadle.model.ids import Ids
from treadle.model.records import Record
from treadle.model.states import TaskState
from treadle.model.tasks import NewTask, Task
from treadle.model.values import Json, decode, encode
from treadle.model.watchers import DIRECTORY, HTTP, SEEN, Item, Noticed, Source, WatcherBody

PAGE = 1000
"""Names that are taken in at a time."""
STARTS = 200
"""Changes that one commit tells of at most."""
ROTATE = 200
"""Idle looks after which the task is replaced, so that its history stays short."""

_FIRST_RETRY_FOR, _LONGEST_RETRY_FOR = 1000, 300_000
_item = msgspec.json.Decoder(Item)


class Looks(Protocol):
    """How the outside is looked at; all of these raise `LookFailed` where that cannot be done."""

    async def scan(self, source: Source) -> Scan:
        """The files of a directory that match, or the one file."""

    async def read(self, source: Source, names: Sequence[str]) -> dict[str, Content]:
        """What is in those files."""

    async def fetch(self, source: Source, item: Item | None) -> Fetched:
        """What the address answers to who has seen that."""


class _Lost(Exception):
    """The claim, or the record, is no longer as it was: whoever has it now will look."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer


@dataclass(slots=True)
class _Look:
    """One look, as it goes on."""

    record: Record
    body: WatcherBody
    """As it is stored now."""
    version: int
    task: Task
    now: int
    delay: int
    fired: int = 0
    waits: bool = False
    """Whether there is something that the next look must see, even if nothing changes."""
    problem: dict[str, Json] | None = None
    digest: str | None = None
    items: int = 0

    @property
    def baseline(self) -> bool:
        """Whether what is new counts as seen: it is the first look, and was there before."""
        return not self.body.begun and self.body.existing == SEEN


@dataclass(slots=True)
class _Chunk:
    """What goes into one commit."""

    puts: list[tuple[str, str | None]] = field(default_factory=list)
    noticed: list[Noticed] = field(default_factory=list)
    prepared: list[Prepared] = field(default_factory=list)


class Looker:
    """Looks for watchers. One of them is enough for all, and any number does no harm."""

    def __init__(
        self, store: Store, committer: Committer, watchers: Watchers, starters: Starters, ids: Ids, emit: Emit, looks: Looks
    ) -> None:
        self._store = store
        self._committer = committer
        self._watchers = watchers
        self._starters = starters
        self._ids = ids
        self._emit = emit
        self._looks = looks

    async def look(self, task: Task) -> Answer:
        """Look for the watcher of a claimed task, start what is to be started, and settle the task."""
        answer = await self._look(task)
        while answer.verdict is Verdict.DEFERRED:  # the record changed meanwhile: look again
            answer = await self._look(task)
        return answer

    async def _look(self, task: Task) -> Answer:
        record = await self._store.find_record(decode(task.payload)["watcher_id"])
        if record is None or record.state != ACTIVE or record.task_id != task.id:
            return await self._commit(Unit(task.claim, _finish({"note": "this is not the watcher's task any more"})))
        body = self._watchers.load(record)
        look = _Look(record, body, record.version, task, task.claimed_at or 0, body.every_for)
        try:
            await (self._look_at_address(look) if body.source.kind == HTTP else self._look_at_files(look))
            return await self._settle(look)
        except _Lost as lost:
            return lost.answer
        except LookFailed as error:
            return await self._put_off(look, error.reason, str(error))
        except StoreError:
            raise
        except TreadleError as error:  # what is to be started cannot be
            return await self._put_off(look, error.code, str(error))

    # looking

    async def _look_at_files(self, look: _Look) -> None:
        source = look.body.source
        scan = await self._looks.scan(source)
        look.items = len(scan.found)
        if scan.problem is not None:
            look.problem = {"code": "path_unreadable" if scan.unreadable else "path_not_found", "message": scan.problem}
        look.digest = None if scan.unreadable else digest_of(scan.found)
        if look.body.begun and look.digest is not None and look.digest == look.body.digest:
            return
        keys = [found.key for found in scan.found]
        after: str | None = None
        begin = 0
        while True:
            stored = await self._store.list_items(look.record.id, after, PAGE)
            bound = stored[-1][0] if len(stored) == PAGE else None
            end = len(keys) if bound is None else bisect_right(keys, bound)
            if end - begin > PAGE:
                end = begin + PAGE
                bound = keys[end - 1]
            items = {key: _item.decode(value) for key, value in stored if bound is None or key <= bound}
            await self._take_in(look, items, {found.key: found for found in scan.found[begin:end]}, scan)
            begin, after = end, bound
            if bound is None:
                return

    async def _take_in(self, look: _Look, items: dict[str, Item], found: dict[str, Found], scan: Scan) -> None:
        """Judge a page of names, and commit what follows."""
        body = look.body
        judged = [
            judge(
                key,
                items.get(key),
                found.get(key),
                now=look.now,
                settle_for=body.settle_for,
                baseline=look.baseline,
                hidden=is_under(key, scan.unreadable),
            )
            for key in sorted({*items, *found})
        ]
        reading = [each.read.name for each in judged if each.read is not None]
        contents = await self._looks.read(body.source, reading) if reading else {}
        chunk = _Chunk()
        for each in judged:
            last = each
            if each.read is not None:
                content = contents[each.read.name]
                if content.problem is not None:
                    look.problem, look.waits = {"code": "path_unreadable", "message": content.problem}, True
                    continue
                last = concluded(each, items.get(each.key), content, look.now, body.settle_for)
            await self._note(look, chunk, last, items.get(each.key), found.get(each.key))
            if len(chunk.prepared) >= STARTS or len(chunk.puts) >= PAGE:
                await self._write(look, chunk)
                chunk = _Chunk()
        await self._write(look, chunk)

    async def _look_at_address(self, look: _Look) -> None:
        source = look.body.source
        key = key_of(source.place)
        stored = await self._store.find_items(look.record.id, [key])
        item = _item.decode(stored[key]) if key in stored else None
        fetched = await self._looks.fetch(source, item)
        look.items = 0 if fetched.gone else 1
        if fetched.gone and item is None:
            look.problem = {"code": "http_not_found", "message": f"There is nothing at {source.place} yet."}
        chunk = _Chunk()
        await self._note(look, chunk, judge_answer(key, item, fetched, baseline=look.baseline), item, None)
        await self._write(look, chunk)

    async def _note(self, look: _Look, chunk: _Chunk, judged: Judged, old: Item | None, found: Found | None) -> None:
        """Put what was judged into the chunk, with what it starts."""
        if judged.delay is not None:
            look.waits = True
            look.delay = min(look.delay, max(judged.delay, 1))
        if judged.same:
            return
        chunk.puts.append((judged.key, None if judged.item is None else msgspec.json.encode(judged.item).decode()))
        if judged.change is None or judged.change not in look.body.changes:
            return
        name = found.name if found is not None else judged.key
        occasion = Occasion(
            self._ids.new_id(),
            f"watcher:{look.record.name}",
            told(look.record.name or "", look.body.source, judged.change, name, judged.item or old),
        )
        started, prepared = await self._starters.prepare(look.body.target, occasion)
        chunk.prepared.append(prepared)
        chunk.noticed.append(Noticed(at=look.now, change=judged.change, name=name, kind=started.kind, id=started.id))

    # writing

    async def _write(self, look: _Look, chunk: _Chunk) -> None:
        """Commit what was seen together with what was started for it; the task stays as it is."""
        if not chunk.puts:
            return
        body = look.body
        change: tuple[ChangeRecord, ...] = ()
        if chunk.noticed:
            body = msgspec.structs.replace(
                body, fired=body.fired + len(chunk.noticed), recent=(*body.recent, *chunk.noticed)[-RECENT:]
            )
            change = (ChangeRecord(look.record.id, look.version, self._watchers.save(body)),)
        rows: tuple[Row, ...] = (PutItems(look.record.id, tuple(chunk.puts)), *change)
        answer = await self._commit(unit_of(chunk.prepared, rows, guard=look.task.claim))
        if answer.verdict is not Verdict.DONE:
            raise _Lost(answer)
        look.body = body
        look.version += len(change)
        look.fired += len(chunk.noticed)
        for prepared in chunk.prepared:
            prepared.committed()

    async def _settle(self, look: _Look) -> Answer:
        body, task = look.body, look.task
        new = msgspec.structs.replace(
            body,
            begun=True,
            digest=None if look.waits or look.problem is not None else look.digest,
            items=look.items,
            error=look.problem,
            error_at=None if look.problem is None else body.error_at if body.error == look.problem else look.now,
        )
        replaced = bool(look.fired) or (task.version >= ROTATE and look.problem is None)
        tasks: tuple[NewTask, ...] = ()
        settlement: Finish | Park
        if replaced:
            made = self._watchers.next_task(look.record.id, body, look.now)
            tasks = (msgspec.structs.replace(made, delay=look.delay),)
            settlement = _finish({"watcher": look.record.name, "changes": look.fired, "items": look.items})
        else:
            failures = 0 if look.problem is None else task.failures + 1
            settlement = _parked(task, failures, look.delay, look.problem)
        change = ChangeRecord(look.record.id, look.version, self._watchers.save(new), task_id=tasks[0].id if tasks else None)
        rows = (change,) if new != body or tasks else ()
        answer = await self._commit(Unit(task.claim, settlement, tasks, rows=rows))
        if answer.verdict is Verdict.DONE:
            self._tell(look, new)
            if replaced and not look.fired:
                await forget(self._store, task)
        return answer

    async def _put_off(self, look: _Look, code: str, message: str) -> Answer:
        """It cannot be looked, or not be started: nothing has been seen, the record says why, and it is tried again."""
        problem: dict[str, Json] = {"code": code, "message": message}
        body = look.body
        new = body
        if body.error != problem:
            new = msgspec.structs.replace(body, error=problem, error_at=look.now, digest=None)
        longest = max(_LONGEST_RETRY_FOR, body.every_for)
        delay = min(max(_FIRST_RETRY_FOR * 2 ** min(look.task.failures, 20), min(body.every_for, longest)), longest)
        change = ChangeRecord(look.record.id, look.version, self._watchers.save(new))
        park = _parked(look.task, look.task.failures + 1, delay, problem)
        answer = await self._commit(Unit(look.task.claim, park, rows=(change,) if new is not body else ()))
        if answer.verdict is Verdict.DONE:
            self._tell(look, new)
        return answer

    def _tell(self, look: _Look, new: WatcherBody) -> None:
        """Say once that there is trouble, and that it is over."""
        old, name = look.body.error, look.record.name or look.record.id
        if new.error is not None and new.error != old:
            self._emit(WatcherTrouble(name, str(new.error["message"])))
        elif new.error is None and old is not None:
            self._emit(WatcherBack(name))

    async def _commit(self, unit: Unit) -> Answer:
        reach("look.before_commit")
        answer = await self._committer.submit(unit)
        reach("look.after_commit")
        return answer


def told(watcher: str, source: Source, change: str, name: str, item: Item | None) -> dict[str, Json]:
    """What the work for a change is told."""
    about: dict[str, Json] = {"watcher": watcher, "change": change}
    if source.kind == HTTP:
        about |= {"url": source.place, "etag": item.etag if item else None, "hash": item.hash if item else None}
        return about | {"size": item.size if item else None}
    path = f"{source.place.rstrip('/')}/{name}" if source.kind == DIRECTORY else source.place
    about |= {"path": path, "name": name, "size": item.size if item else None}
    mtime = None if item is None or item.mtime is None else as_text(item.mtime // 1_000_000)
    return about | {"modified_at": mtime, "hash": item.hash if item else None}


def _finish(result: dict[str, Json]) -> Finish:
    return Finish("succeed", TaskState.COMPLETED, result=encode(result, "result"))


def _parked(task: Task, failures: int, delay: int, problem: dict[str, Json] | None) -> Park:
    said = None if problem is None else encode(problem)
    move = "wait" if problem is None else "retry"
    return Park(move, TaskState.PENDING, task.attempt, failures, 0, delay=delay, error=said, data=said)
