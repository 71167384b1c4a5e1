"""Watchers: create, edit, pause, resume, remove, scan now. Every operator's change goes through here.

A watcher is a record with the items it has seen and, while it is active, one task of kind `watcher` that scans. `scan.py` does
the scans, and `decide.py` decides which differences are changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Unpack
from urllib.parse import urlsplit

import msgspec

from treadle.api.options import SourceOptions, WatcherChanges, WatcherOptions
from treadle.api.watchers import SeenItem, SeenPage, WatchedSource, Watcher, WatcherPage
from treadle.api.wire import record_of
from treadle.kernel.store.lookups import check_limit
from treadle.kernel.triggers import ACTIVE, TriggerRecovery, Triggers, check_options, edit_target, is_placeholder, is_web_url
from treadle.kernel.watchers.decide import Scan
from treadle.model.access import Access, Scope
from treadle.model.clock import milliseconds
from treadle.model.errors import (
    IllegalTransition,
    InvalidWatcher,
    ScanFailed,
    UnreadableValue,
    WatchForbidden,
)
from treadle.model.lists import check_count
from treadle.model.names import ENGINE_LIST, WATCHER, check_name
from treadle.model.records import Record
from treadle.model.schedules import GRACE_FOR, Target
from treadle.model.states import WATCHER as MACHINE
from treadle.model.stored import read, write
from treadle.model.tasks import NewTask
from treadle.model.values import encode
from treadle.model.watchers import (
    CHANGES,
    DEFINITION,
    DIRECTORY,
    EXISTING,
    FILE,
    HTTP,
    SEEN,
    Item,
    WatcherDocument,
    WatchSource,
    compile_pattern,
    is_allowed,
)

BASELINE_LIMIT = 1000
"""Maximum number of files that count as seen because they were listed when the watcher was created."""
RECENT = 20
"""Number of recent changes kept in the record."""


class Watchers(Triggers[WatcherDocument, Watcher]):
    """The watchers of one namespace."""

    machine = MACHINE
    document = WatcherDocument
    kind = WATCHER
    survey: Callable[[WatchSource], Awaitable[Scan]] | None = None
    """Lists the files of a source on this machine, or raises `ScanFailed`."""
    allowed: tuple[str, ...] = ()
    """The sources that callers without the scope `admin` may watch (`TREADLE_WATCH_ALLOW`)."""

    # changes by operators

    async def create(self, name: str, *, paused: bool = False, actor: str = "python", **options: Unpack[WatcherOptions]) -> Watcher:
        """Start a task, a workflow or a function for each change of files or of an address; see `WatcherOptions`.

        Files that exist now count as seen unless `existing="new"`; later ones are new, also before the first scan. Workers scan,
        possibly on another machine: until the path exists there, the watcher shows an error.
        """
        check_name(name, "watcher name")
        return await self.get(await self.begin(name, make_document(options), paused=paused, actor=actor))

    async def begin(self, name: str, document: WatcherDocument, *, paused: bool = False, actor: str) -> str:
        """Store a new watcher, with the files that exist now as seen items."""
        self.check(document)
        document, items = await self._baseline(document)
        return await self._put(name, document, paused=paused, actor=actor, items=items)

    def redefine(self, document: WatcherDocument, wanted: WatcherDocument, now: int) -> WatcherDocument | None:
        """Return the document with another definition; None for another source, whose items are not the same."""
        if any(
            getattr(document.source, name) != getattr(wanted.source, name) for name in ("kind", "place", "pattern", "recursive")
        ):
            return None
        return msgspec.structs.replace(document, **{name: getattr(wanted, name) for name in DEFINITION})

    async def authorize_create(self, access: Access, name: str, paused: bool, **options: Any) -> None:
        """Only administrators may watch places that the settings do not allow."""
        place = make_document({option: value for option, value in options.items() if value is not None}).source.place
        if not access.may(Scope.ADMIN) and not is_allowed(place, self.allowed):
            raise WatchForbidden(place)

    async def _baseline(self, document: WatcherDocument) -> tuple[WatcherDocument, tuple[tuple[str, str | None], ...]]:
        """Return the files that exist now as seen items, if this machine has the path and there are not too many.

        The first scan identifies the others by their times.
        """
        if self.survey is None or document.source.kind == HTTP or document.scan_on != ENGINE_LIST:
            return document, ()
        try:
            scan = await self.survey(document.source)
        except ScanFailed as error:
            problem = {"code": error.reason, "message": str(error)}
            return msgspec.structs.replace(document, error=problem, error_at=await self._store.now()), ()
        if document.existing != SEEN or len(scan.found) > BASELINE_LIMIT:
            return document, ()
        document = msgspec.structs.replace(document, listed=True)
        return document, tuple((file.key, write(Item(size=file.size, mtime=file.mtime))) for file in scan.found)

    def check(self, document: WatcherDocument) -> None:
        """Raise the error of an invalid watcher."""
        self.starters.check(document.target)
        encode(document.target.inputs, "inputs")

    async def edit(
        self, name: str, *, clear: Sequence[str] = (), actor: str = "python", **options: Unpack[WatcherChanges]
    ) -> Watcher:
        """Change the interval, the options or the target, or remove the options in `clear`; takes effect immediately.

        The source is fixed: create another watcher.
        """
        changes: dict[str, Any] = dict.fromkeys(clear) | {**options}
        check_options(changes, WatcherOptions, "A watcher", "every=60")
        if fixed := [option for option in SourceOptions.__annotations__ if option in changes]:
            raise InvalidWatcher(f"The source of a watcher cannot change ({fixed[0]}): remove it, and create another.")

        def edited(document: WatcherDocument, _: int) -> WatcherDocument:
            if is_placeholder(document):
                raise InvalidWatcher(f"The watcher {name} cannot be read: remove it, and create another.")
            new = edit_document(document, changes)
            self.check(new)
            return new

        return await self._operate(name, "edit", actor, edited)

    async def look(self, name: str, *, actor: str = "python") -> Watcher:
        """Scan as soon as a worker is free, instead of when it is due."""

        async def attempt() -> Watcher:
            record = await self.get_record(name)
            if record.state != ACTIVE:
                raise IllegalTransition(WATCHER, record.name or record.id, record.state, "look", MACHINE.possible(record.state))
            task = await self.find_task(record)
            if task is not None and task.owner_id is not None:
                return self.show(record)  # a worker is scanning now
            reason = f"The watcher {record.name} scans immediately, on request of {actor}."
            await self._committer.commit(await self._replace_task(record, self.load(record), task, actor, reason), self._patience)
            return await self.get(record.id)

        return await self._committer.transact(attempt, f"scan with the watcher {name}")

    # reads

    async def list(self, *, every: bool = False, limit: int = 100, before: str | None = None) -> WatcherPage:
        """Return a page of watchers, newest first: the live ones, with `every` also those that have ended."""
        page, cursor = await self._page(every, limit, before)
        return WatcherPage(page, next_before=cursor)

    async def seen(self, name: str, *, after: str | None = None, limit: int = 100) -> SeenPage:
        """Return a page of seen items, in order of name."""
        check_limit(limit)
        if after is not None:
            encode(after, "cursor")  # refuses text that the stores cannot compare
        record = await self.get_record(name)
        items = [(key, read_item(value)) for key, value in await self._store.records.list_items(record.id, after, limit)]
        seen = [record_of(SeenItem, item, name=key, settling=item.pending is not None) for key, item in items]
        return SeenPage(seen, seen[-1].name if len(seen) == limit else None)

    async def describe_recovery(self) -> Sequence[TriggerRecovery]:
        """Return the watchers with overdue scans, for start-up; their next scan reports all changes."""
        now = await self._store.now()
        recoveries = []
        for record in await self._list_active():
            task = await self.find_task(record)
            due_at = now if task is None or task.finished else task.wake_at or task.due_at
            if task is None or task.owner_id is not None or now - due_at <= GRACE_FOR:
                continue
            document = self.load(record)
            missed = (now - due_at) // document.every_for + 1
            seen = f"{document.items} item(s) seen then"
            text = f"{missed} scan(s) are due; one is made, and reports all changes since the last ({seen})"
            recoveries.append(TriggerRecovery(WATCHER, record.id, record.name or "", due_at, missed, (), text))
        return recoveries

    def show(self, record: Record) -> Watcher:
        """Return the watcher of the API."""
        state, document = self.load_shown(record)
        source = record_of(
            WatchedSource,
            document.source,
            pattern=document.source.pattern if document.source.kind == DIRECTORY else None,
            timeout_for=document.source.timeout_for if document.source.kind == HTTP else None,
        )
        return record_of(Watcher, record, document, name=record.name or "", state=state, source=source)

    # records and tasks

    def placeholder(self, problem: dict[str, Any]) -> WatcherDocument:
        """Return the document that is displayed in place of one that cannot be read."""
        return WatcherDocument(source=WatchSource(kind="", place=""), target=Target(kind="", name=""), error=problem)

    def next_task(self, record_id: str, document: WatcherDocument, now: int) -> NewTask:
        """Return a task that scans immediately."""
        return self.make_task(record_id, task_list=document.scan_on)


def read_item(text: str) -> Item:
    """Decode a seen item; one that cannot be read was never seen complete, so that the next scan replaces it."""
    try:
        return read(Item, text)
    except UnreadableValue:
        return Item()


MIN_EVERY_FOR = 1000

_PATH_LIMIT = 4096


def make_document(options: Mapping[str, Any]) -> WatcherDocument:
    """Return the document of a new watcher; checks each option."""
    check_options(options, WatcherOptions, "A watcher", "every=60")
    existing = options.get("existing", "seen")
    if existing not in EXISTING:
        raise InvalidWatcher(f"existing must be one of {', '.join(EXISTING)}, not {existing!r}.")
    document = WatcherDocument(source=_source(options), target=Target(kind="", name="", given_as="change"), existing=existing)
    return edit_document(document, options)


def _source(options: Mapping[str, Any]) -> WatchSource:
    places = [
        (kind, options[name]) for kind, name in ((DIRECTORY, "directory"), (FILE, "file"), (HTTP, "url")) if options.get(name)
    ]
    if len(places) != 1:
        wrong = f", not {' and '.join(kind for kind, _ in places)} together" if places else ""
        raise InvalidWatcher(f"Name one source to watch: a directory, a file or a url{wrong}.")
    ((kind, place),) = places
    place = str(place)
    if kind == HTTP:
        _check_address(place)
    elif not place.startswith("/") or len(place) > _PATH_LIMIT or "\0" in place or ".." in place.split("/"):
        raise InvalidWatcher(f"{place!r} is not an absolute path; any worker may scan it. Use one like /srv/incoming.")
    if kind != DIRECTORY and ("pattern" in options or options.get("recursive")):
        raise InvalidWatcher("Only a directory has a pattern.")
    pattern = options.get("pattern", "*")
    compile_pattern(pattern)
    return WatchSource(kind=kind, place=place, pattern=pattern, recursive=bool(options.get("recursive", False)))


def _check_address(url: str) -> None:
    if not is_web_url(url):
        raise InvalidWatcher(
            f"{url!r} is not an address: only http and https can be watched, e.g. https://example.org/prices.json."
        )
    if "@" in urlsplit(url).netloc:
        raise InvalidWatcher("An address with a user name or password would be visible to everybody who can see the watcher.")


def edit_document(document: WatcherDocument, options: Mapping[str, Any]) -> WatcherDocument:
    """Return the document with the changes; checks each option."""
    changes = tuple(options.get("changes", document.changes))
    if not changes or any(change not in CHANGES for change in changes):
        raise InvalidWatcher(f"changes must be some of {', '.join(CHANGES)}, not {', '.join(map(str, changes)) or 'none'}.")
    every_for = milliseconds(options["every"], "every", positive=True) if "every" in options else document.every_for
    if every_for < MIN_EVERY_FOR:
        raise InvalidWatcher(f"The shortest interval between two scans is one second, not {every_for} ms.")
    source = msgspec.structs.replace(
        document.source,
        hashing=bool(options.get("hashing", document.source.hashing)),
        hash_limit=check_count(options.get("hash_limit", document.source.hash_limit), "hash_limit"),
        timeout_for=milliseconds(options["fetch_timeout"], "fetch_timeout", positive=True)
        if "fetch_timeout" in options
        else document.source.timeout_for,
    )
    return msgspec.structs.replace(
        document,
        source=source,
        target=edit_target(
            options, document.target, "change_as", lambda old, _: msgspec.structs.replace(old, flow=None, version=None)
        ),
        changes=changes,
        every_for=every_for,
        settle_for=milliseconds(options["settle"], "settle") if "settle" in options else document.settle_for,
        scan_on=check_name(options.get("scan_on", document.scan_on), "task list"),
    )
