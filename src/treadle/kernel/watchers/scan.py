"""The attempts of a watcher's task: a scan, and one commit under its claim for the changes and the work they started.

A large directory is processed page by page, each in a unit of its own: after a crash, committed pages count as seen, and the
next scan finds the rest. A failed scan changes none of the seen items: it is reported once, and retried.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from treadle.kernel.core import Core
from treadle.kernel.store.records import ChangeRecord, PutItems
from treadle.kernel.store.units import Finish, Requeue, Row, Unit, UnitAnswer, Verdict
from treadle.kernel.telemetry.events import WatcherBack, WatcherTrouble
from treadle.kernel.triggers import Prepared, TriggerTasks, succeeded, unit_of
from treadle.kernel.watchers.decide import (
    Content,
    Fetched,
    Judged,
    Scan,
    ScannedFile,
    concluded,
    digest_of,
    is_under,
    judge,
    judge_answer,
    key_of,
)
from treadle.kernel.watchers.service import RECENT, Watchers, read_item
from treadle.model.clock import as_text
from treadle.model.errors import ScanFailed, StoreError, TreadleError
from treadle.model.records import Record
from treadle.model.retry import Backoff
from treadle.model.states import TaskState
from treadle.model.stored import write
from treadle.model.tasks import NewTask, Task
from treadle.model.values import Json, encode
from treadle.model.watchers import DIRECTORY, HTTP, SEEN, Item, Noticed, WatcherDocument, WatchSource

PAGE = 1000
"""Names processed per page."""
STARTS = 200
"""Maximum number of changes per commit."""
ROTATE = 200
"""Idle scans after which the task is replaced, to keep its history short."""

ARRIVED_FOR = 2000
"""If the files were not listed when the watcher was created, those that changed up to this many milliseconds earlier count as
new: the clocks of file systems are coarse and not the store's."""

_RETRY_BACKOFF = Backoff(1000, 300_000)


class SourceReader(Protocol):
    """Access to watched sources; every method raises `ScanFailed` if the source cannot be read."""

    async def scan(self, source: WatchSource) -> Scan:
        """Return the matching files of a directory, or the single file."""

    async def read(self, source: WatchSource, names: Sequence[str]) -> dict[str, Content]:
        """Return the contents of those files."""

    async def fetch(self, source: WatchSource, item: Item | None) -> Fetched:
        """Return the response of the address to a request with the item's validators."""


class _Lost(Exception):
    """The claim or the record has changed: its current holder will scan."""

    def __init__(self, answer: UnitAnswer) -> None:
        self.answer = answer


@dataclass(slots=True)
class _ScanAttempt:
    """One attempt in progress."""

    record: Record
    document: WatcherDocument
    """The currently stored document."""
    version: int
    task: Task
    now: int
    delay: int
    fired: int = 0
    waits: bool = False
    """Whether the next scan has to look for settled files, even if nothing changes."""
    problem: dict[str, Json] | None = None
    digest: str | None = None
    items: int = 0

    @property
    def baseline(self) -> bool:
        """Whether items that existed before the watcher count as seen: on the first scan, unless they are to be reported."""
        return not self.document.begun and not self.document.listed and self.document.existing == SEEN


@dataclass(slots=True)
class _Chunk:
    """The content of one commit."""

    puts: list[tuple[str, str | None]] = field(default_factory=list)
    noticed: list[Noticed] = field(default_factory=list)
    prepared: list[Prepared] = field(default_factory=list)


class WatcherScanner(TriggerTasks[Watchers]):
    """Scans for watchers."""

    point = "look"

    def __init__(self, core: Core, watchers: Watchers, sources: SourceReader) -> None:
        super().__init__(core, watchers)
        self._sources = sources

    async def act(self, record: Record, task: Task) -> UnitAnswer:
        """Scan for a watcher, start the work for changes, and settle the task."""
        document = self.triggers.load(record)
        attempt = _ScanAttempt(record, document, record.version, task, task.claimed_at or 0, document.every_for)
        try:
            await (self._scan_address(attempt) if document.source.kind == HTTP else self._scan_files(attempt))
            return await self._settle(attempt)
        except _Lost as lost:
            return lost.answer
        except ScanFailed as error:
            return await self._put_off(attempt, error.reason, str(error))
        except StoreError:
            raise
        except TreadleError as error:  # the target cannot be started
            return await self._put_off(attempt, error.code, str(error))

    # scans

    async def _scan_files(self, attempt: _ScanAttempt) -> None:
        source = attempt.document.source
        scan = await self._sources.scan(source)
        attempt.items = len(scan.found)
        if scan.problem is not None:
            attempt.problem = {"code": "path_unreadable" if scan.unreadable else "path_not_found", "message": scan.problem}
        attempt.digest = None if scan.unreadable else digest_of(scan.found)
        if attempt.document.begun and attempt.digest is not None and attempt.digest == attempt.document.digest:
            return
        keys = [file.key for file in scan.found]
        after: str | None = None
        begin = 0
        while True:
            stored = await self._store.records.list_items(attempt.record.id, after, PAGE)
            bound = stored[-1][0] if len(stored) == PAGE else None
            end = len(keys) if bound is None else bisect_right(keys, bound)
            if end - begin > PAGE:
                end = begin + PAGE
                bound = keys[end - 1]
            items = {key: read_item(value) for key, value in stored if bound is None or key <= bound}
            await self._take_in(attempt, items, {file.key: file for file in scan.found[begin:end]}, scan)
            begin, after = end, bound
            if bound is None:
                return

    async def _take_in(self, attempt: _ScanAttempt, items: dict[str, Item], files: dict[str, ScannedFile], scan: Scan) -> None:
        """Compare a page of names, and commit the result."""
        document = attempt.document
        judged = [
            judge(
                key,
                items.get(key),
                files.get(key),
                now=attempt.now,
                settle_for=document.settle_for,
                baseline=attempt.baseline and key in files and files[key].arrived_at < attempt.record.created_at - ARRIVED_FOR,
                hidden=is_under(key, scan.unreadable),
            )
            for key in sorted({*items, *files})
        ]
        reading = [verdict.read.name for verdict in judged if verdict.read is not None]
        contents = await self._sources.read(document.source, reading) if reading else {}
        chunk = _Chunk()
        for verdict in judged:
            last = verdict
            if verdict.read is not None:
                content = contents[verdict.read.name]
                if content.problem is not None:
                    attempt.problem, attempt.waits = {"code": "path_unreadable", "message": content.problem}, True
                    continue
                last = concluded(verdict, items.get(verdict.key), content, attempt.now, document.settle_for)
            await self._note(attempt, chunk, last, items.get(verdict.key), files.get(verdict.key))
            if len(chunk.prepared) >= STARTS or len(chunk.puts) >= PAGE:
                await self._write(attempt, chunk)
                chunk = _Chunk()
        await self._write(attempt, chunk)

    async def _scan_address(self, attempt: _ScanAttempt) -> None:
        source = attempt.document.source
        key = key_of(source.place)
        stored = dict(await self._store.records.list_items(attempt.record.id, keys=[key]))
        item = read_item(stored[key]) if key in stored else None
        fetched = await self._sources.fetch(source, item)
        attempt.items = 0 if fetched.gone else 1
        if fetched.gone and item is None:
            attempt.problem = {"code": "http_not_found", "message": f"There is nothing at {source.place} yet."}
        chunk = _Chunk()
        await self._note(attempt, chunk, judge_answer(key, item, fetched, baseline=attempt.baseline), item, None)
        await self._write(attempt, chunk)

    async def _note(self, attempt: _ScanAttempt, chunk: _Chunk, judged: Judged, old: Item | None, file: ScannedFile | None) -> None:
        """Add a verdict to the chunk, with the work that it starts."""
        if judged.delay is not None:
            attempt.waits = True
            attempt.delay = min(attempt.delay, max(judged.delay, 1))
        if judged.same:
            return
        chunk.puts.append((judged.key, None if judged.item is None else write(judged.item)))
        if judged.change is None or judged.change not in attempt.document.changes:
            return
        name = file.name if file is not None else judged.key
        watcher = f"watcher:{attempt.record.name}"
        value = change_value(attempt.record.name or "", attempt.document.source, judged.change, name, judged.item or old)
        started, prepared = await self.triggers.starters.prepare(
            attempt.document.target, self._ids.new_id(), watcher, value, actor=watcher
        )
        chunk.prepared.append(prepared)
        chunk.noticed.append(Noticed(at=attempt.now, change=judged.change, name=name, kind=started.kind, id=started.id))

    # commits

    async def _write(self, attempt: _ScanAttempt, chunk: _Chunk) -> None:
        """Commit the seen items with the work started for them; the task stays claimed."""
        if not chunk.puts:
            return
        document = attempt.document
        change: tuple[ChangeRecord, ...] = ()
        if chunk.noticed:
            document = msgspec.structs.replace(
                document, fired=document.fired + len(chunk.noticed), recent=(*document.recent, *chunk.noticed)[-RECENT:]
            )
            change = (ChangeRecord(attempt.record.id, attempt.version, self.triggers.save(document)),)
        rows: tuple[Row, ...] = (PutItems(attempt.record.id, tuple(chunk.puts)), *change)
        answer = await self.commit(unit_of(chunk.prepared, rows, guard=attempt.task.claim))
        if answer.verdict is not Verdict.DONE:
            raise _Lost(answer)
        attempt.document = document
        attempt.version += len(change)
        attempt.fired += len(chunk.noticed)
        for prepared in chunk.prepared:
            prepared.committed()

    async def _settle(self, attempt: _ScanAttempt) -> UnitAnswer:
        document, task = attempt.document, attempt.task
        new = msgspec.structs.replace(
            document,
            begun=True,
            digest=None if attempt.waits or attempt.problem is not None else attempt.digest,
            items=attempt.items,
            error=attempt.problem,
            error_at=None if attempt.problem is None else document.error_at if document.error == attempt.problem else attempt.now,
        )
        replaced = bool(attempt.fired) or (task.version >= ROTATE and attempt.problem is None)
        tasks: tuple[NewTask, ...] = ()
        settlement: Finish | Requeue
        if replaced:
            next_task = self.triggers.next_task(attempt.record.id, document, attempt.now)
            tasks = (msgspec.structs.replace(next_task, delay=attempt.delay),)
            settlement = succeeded({"watcher": attempt.record.name, "changes": attempt.fired, "items": attempt.items})
        else:
            failures = 0 if attempt.problem is None else task.failures + 1
            settlement = _requeued(task, failures, attempt.delay, attempt.problem)
        change = ChangeRecord(attempt.record.id, attempt.version, self.triggers.save(new), task_id=tasks[0].id if tasks else None)
        rows = (change,) if new != document or tasks else ()
        answer = await self.commit(Unit(task.claim, settlement, tasks, rows=rows))
        if answer.verdict is Verdict.DONE:
            self._report(attempt, new)
            if replaced and not attempt.fired:
                await self.forget(task)
        return answer

    async def _put_off(self, attempt: _ScanAttempt, code: str, message: str) -> UnitAnswer:
        """Retry later, because the scan or the start failed: nothing counts as seen, and the record shows the error."""
        problem: dict[str, Json] = {"code": code, "message": message}
        document = attempt.document
        new = document
        if document.error != problem:
            new = msgspec.structs.replace(document, error=problem, error_at=attempt.now, digest=None)
        delay = max(_RETRY_BACKOFF.delay_for(attempt.task.failures), document.every_for)
        change = ChangeRecord(attempt.record.id, attempt.version, self.triggers.save(new))
        requeue = _requeued(attempt.task, attempt.task.failures + 1, delay, problem)
        answer = await self.commit(Unit(attempt.task.claim, requeue, rows=(change,) if new is not document else ()))
        if answer.verdict is Verdict.DONE:
            self._report(attempt, new)
        return answer

    def _report(self, attempt: _ScanAttempt, new: WatcherDocument) -> None:
        """Emit an event once when trouble begins, and once when it ends."""
        old, name = attempt.document.error, attempt.record.name or attempt.record.id
        if new.error is not None and new.error != old:
            self._emit(WatcherTrouble(name, str(new.error["message"])))
        elif new.error is None and old is not None:
            self._emit(WatcherBack(name))


def change_value(watcher: str, source: WatchSource, change: str, name: str, item: Item | None) -> dict[str, Json]:
    """Return the value passed to the work for a change."""
    about: dict[str, Json] = {"watcher": watcher, "change": change}
    if source.kind == HTTP:
        about |= {"url": source.place, "etag": item.etag if item else None, "hash": item.hash if item else None}
        return about | {"size": item.size if item else None}
    path = f"{source.place.rstrip('/')}/{name}" if source.kind == DIRECTORY else source.place
    about |= {"path": path, "name": name, "size": item.size if item else None}
    mtime = None if item is None or item.mtime is None else as_text(item.mtime // 1_000_000)
    return about | {"modified_at": mtime, "hash": item.hash if item else None}


def _requeued(task: Task, failures: int, delay: int, problem: dict[str, Json] | None) -> Requeue:
    error = None if problem is None else encode(problem)
    transition = "wait" if problem is None else "retry"
    return Requeue(transition, TaskState.PENDING, task.attempt, failures, 0, delay=delay, error=error, data=error)
