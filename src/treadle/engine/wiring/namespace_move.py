"""Move a namespace with its history to another store: pause, copy, verify, fence, compare, switch the directory, remove the source.

The journal, a file beside the directory, names the move and its phase. A move that was interrupted is continued by the same call:
before the switch it begins anew with an empty copy, after it only removes the source. No transaction spans both databases. From the
last comparison on, the source refuses changes to the namespace's work, so that nothing can be lost between that and the switch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from treadle.kernel.store.crashpoints import reach
from treadle.kernel.store.namespace_copy import Digest, NamespaceRows, Progress, copy_namespace
from treadle.kernel.store.namespace_tables import LATE, SETTINGS
from treadle.kernel.store.ports import Store
from treadle.model.clock import Clock
from treadle.model.errors import InvalidInput, Refused, StoreBusy
from treadle.model.names import check_name
from treadle.settings import Directory, changing, read_directory, sync_folder, write_atomically, write_directory
from treadle.stores import make_store

COPYING, SWITCHED = "copying", "switched"

_LOOK_EVERY = 0.2
"""Seconds between two looks at the tasks that workers hold."""
_FENCE_FOR = 60.0
"""Seconds after which a move gives up that finds no moment for the fence among the changes of others."""


class HeldList(msgspec.Struct, frozen=True):
    """A list as it was before the move paused it."""

    task_list: str
    paused: bool
    accepting: bool


class Journal(msgspec.Struct, frozen=True):
    """A move in progress."""

    namespace: str
    source: str
    target: str
    lists: list[HeldList]
    phase: str = COPYING


@dataclass
class Moved:
    """A finished move: the URLs of both stores, without passwords, and the number of copied rows by table."""

    namespace: str
    source: str
    target: str
    rows: dict[str, int] = field(default_factory=dict)
    kept: bool = False


Verify = Callable[[str, str], Awaitable[list[str]]]
"""Checks the namespace in the store at a URL, and returns the problems."""


class NamespaceMove:
    """The move of one namespace, by the directory at `path`; `default` is the store of namespaces that it does not list."""

    def __init__(
        self,
        path: str | Path,
        namespace: str,
        clock: Clock,
        *,
        default: str | None = None,
        verify: Verify,
        progress: Progress = lambda _: None,
    ) -> None:
        self._path = Path(path)
        self._namespace = check_name(namespace, "namespace")
        self._clock = clock
        self._default = default
        self._verify = verify
        self._progress = progress
        self._journal_path = self._path.with_name(f"{self._path.name}.moving")

    async def move(self, target: str, *, keep: bool = False, wait: float = 0.0) -> Moved:
        """Move the namespace to the store at `target`; with `keep`, its rows also stay in the source, paused.

        Raises `Refused`, and changes nothing, while a worker holds a task of the namespace (after waiting up to `wait` seconds), if
        the target already has rows of the namespace, or if the namespace changed while it was copied.
        """
        with changing(self._path):
            journal = self._find_journal(target)
            if journal is None:
                source = self._find_source(read_directory(self._path))
                if source == target:
                    raise Refused(f"The namespace {self._namespace} is already at that store.")
                journal = Journal(self._namespace, source, target, [])
            async with self._opened(journal.source) as source_store, self._opened(target) as target_store:
                return await self._move(journal, source_store, target_store, keep=keep, wait=wait)

    async def _move(self, journal: Journal, source: Store, target: Store, *, keep: bool, wait: float) -> Moved:
        moved = Moved(self._namespace, source.url, target.url, kept=keep)
        if journal.phase == COPYING and read_directory(self._path).namespaces.get(self._namespace) != journal.target:
            moved.rows = (await self._copy(journal, source, target, wait)).rows
        journal = msgspec.structs.replace(self._find_journal(journal.target) or journal, phase=SWITCHED)
        self._write(journal)
        reach("move.switched")
        await self._when_free(lambda: source.fence_namespace(self._namespace, target.url))
        await self._when_free(lambda: target.unfence_namespace(self._namespace))  # it may have been there before
        await self._set_lists(target, journal.lists)
        if not keep:
            self._progress("removing the source")
            await NamespaceRows(source, self._namespace).remove()
        self._forget()
        return moved

    async def _copy(self, journal: Journal, source: Store, target: Store, wait: float) -> Digest:
        """Pause, copy, compare and verify; then switch the directory."""
        begun = self._journal_path.exists()
        if not begun:
            await self._refuse_rows(target)
            await self._refuse_held(source, 0.0 if wait <= 0 else None)
            journal = msgspec.structs.replace(journal, lists=await self._list_lists(source))
            self._write(journal)
        await self._when_free(lambda: source.unfence_namespace(self._namespace))  # an interrupted move may have fenced it
        await self._set_lists(source, [HeldList(each.task_list, True, False) for each in journal.lists])
        reach("move.paused")
        try:
            await self._refuse_held(source, wait)
            digest = await copy_namespace(source, target, self._namespace, self._progress)
            reach("move.copied")
            self._progress("verifying the copy")
            if problems := await self._verify(journal.target, self._namespace):
                raise Refused(f"The copy has problems, so nothing was switched: {problems[0]} ({len(problems)} in all).")
            self._progress("comparing the source with the copy")
            await self._when_free(lambda: source.fence_namespace(self._namespace, target.url))
            reach("move.fenced")
            found = await NamespaceRows(source, self._namespace).digest()
            if found.differences(digest) and not found.differences(digest, without=LATE):
                # workers have written the log lines of their last tasks: with the fence, a second copy has them all
                digest = await copy_namespace(source, target, self._namespace, self._progress)
                found = await NamespaceRows(source, self._namespace).digest()
            if differ := found.differences(digest):
                raise Refused(
                    f"The namespace {self._namespace} changed while it was copied ({'; '.join(differ)}), so nothing was switched: "
                    "stop the programs that use it, and try again."
                )
        except Refused:
            await self._when_free(lambda: source.unfence_namespace(self._namespace))
            await self._set_lists(source, journal.lists)
            await NamespaceRows(target, self._namespace).remove()
            self._forget()
            raise
        write_directory(self._path, read_directory(self._path).placed(self._namespace, journal.target))
        return digest

    async def _when_free(self, change: Callable[[], Awaitable[None]]) -> None:
        """Change a fence; try again for a while if the store is busy, then raise `Refused`."""
        end = self._clock.monotonic() + _FENCE_FOR
        while True:
            try:
                return await change()
            except StoreBusy as error:
                if self._clock.monotonic() >= end:
                    raise Refused(f"The fence of the namespace {self._namespace} could not be changed: {error}") from error
                self._progress("waiting for changes by others")
            await self._clock.sleep(_LOOK_EVERY)

    # checks

    def _find_source(self, directory: Directory) -> str:
        found = directory.find(self._namespace) or self._default
        if found is None:
            raise InvalidInput(
                f"The directory {self._path} does not list the namespace {self._namespace}, nor a store for all others."
            )
        return found

    async def _refuse_rows(self, target: Store) -> None:
        async for table, _ in NamespaceRows(target, self._namespace).pages():
            if table.name not in SETTINGS:
                raise Refused(f"The target already has {table.name} of the namespace {self._namespace}: choose another store.")

    async def _refuse_held(self, source: Store, wait: float | None) -> None:
        """Raise `Refused` if workers hold tasks for longer than `wait` seconds; None does not check."""
        end = self._clock.monotonic() + (wait or 0.0)
        while wait is not None and (held := await source.count_held(self._namespace)):
            if self._clock.monotonic() >= end:
                raise Refused(
                    f"Workers hold {held} task(s) of the namespace {self._namespace}: stop them, or wait for them with --wait."
                )
            await self._clock.sleep(_LOOK_EVERY)

    # lists

    async def _list_lists(self, store: Store) -> list[HeldList]:
        stored = {each.task_list: each for each in await store.list_lists() if each.namespace == self._namespace}
        lanes = {lane.task_list for lane in (await store.list_lanes()).values() if lane.namespace == self._namespace}
        found = []
        for name in sorted({*stored, *lanes, "default"}):
            known = stored.get(name)
            found.append(HeldList(name, known is not None and known.paused, known is None or known.accepting))
        return found

    async def _set_lists(self, store: Store, lists: list[HeldList]) -> None:
        for each in lists:
            await store.set_list(self._namespace, each.task_list, paused=each.paused, accepting=each.accepting)

    # files and stores

    def _find_journal(self, target: str) -> Journal | None:
        """Return the journal of an interrupted move; raise `Refused` if it is of another one."""
        try:
            found = msgspec.json.decode(self._journal_path.read_bytes(), type=Journal)
        except FileNotFoundError:
            return None
        if (found.namespace, found.target) != (self._namespace, target):
            raise Refused(f"The move of the namespace {found.namespace} was interrupted: repeat it with the same target first.")
        return found

    def _write(self, journal: Journal) -> None:
        write_atomically(self._journal_path, msgspec.json.encode(journal).decode())

    def _forget(self) -> None:
        self._journal_path.unlink(missing_ok=True)
        sync_folder(self._journal_path)

    @asynccontextmanager
    async def _opened(self, url: str) -> AsyncIterator[Store]:
        store = make_store(url, self._clock)
        await store.open()
        try:
            yield store
        finally:
            await store.close()
