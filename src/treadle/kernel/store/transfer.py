"""A namespace as a file: `store export` writes all its rows, and `store import` reads them into a store of any kind.

The first line is the header: the format, the namespace, and for each table the number of its rows and their digest. Each other line
is a row, `["tasks",{...}]`, with values that every store has: tasks name their queue by its parts. Numbers of transitions are
shifted to ones that are free in the target. The import is one transaction. It is committed only if the file has exactly the rows
that its header promises, and if the store returns the rows as they are in the file.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from treadle.kernel.store.ports import Store
from treadle.model.errors import InvalidInput, Refused

FORMAT = 1
BATCH = 500
"""Rows of a table that are inserted together."""

StoredRow = dict[str, Any]
"""A row as JSON values by column, the same in every kind of store."""

Progress = Callable[[str], None]
"""Receives a line about the progress."""


class NamespaceTable(NamedTuple):
    """A table, its key, and the name of the condition by which its rows belong to a namespace."""

    name: str
    key: tuple[str, ...]
    belongs: str = "own"
    shared: bool = False
    """Whether other namespaces use the rows, too: those that exist in the target stay as they are."""
    assigned: tuple[str, ...] = ()
    """Columns whose values the database assigns."""


TABLES = (
    NamespaceTable("lists", ("namespace", "task_list"), shared=True),
    NamespaceTable("limits", ("namespace", "key")),
    NamespaceTable("limit_slots", ("namespace", "key", "task_id")),
    NamespaceTable("handler_keys", ("namespace", "name")),
    NamespaceTable("queues", ("id",), shared=True, assigned=("id", "slowed", "guarded")),
    NamespaceTable("handler_registrations", ("namespace", "facet_name")),
    NamespaceTable("flows", ("id",), "used_flow", shared=True),
    NamespaceTable("flow_versions", ("namespace", "name", "version")),
    NamespaceTable("runs", ("id",)),
    NamespaceTable("steps", ("id",), "of_run"),
    NamespaceTable("tasks", ("id",)),
    NamespaceTable("finished", ("id",)),
    NamespaceTable("records", ("id",)),
    NamespaceTable("record_items", ("record_id", "key"), "of_record"),
    NamespaceTable("blobs", ("digest",), "used_blob", shared=True),
    NamespaceTable("blob_uses", ("root_id", "digest"), "of_root"),
    NamespaceTable("log", ("seq",), "of_entity"),
    NamespaceTable("lines", ("id",), "of_task", assigned=("id",)),
    NamespaceTable("mail", ("seq",), "of_run", assigned=("seq",)),
    NamespaceTable("idempotency_outcomes", ("idempotency_key",), "of_root"),
    NamespaceTable("llm_budgets", ("run_id",), "of_run"),
    NamespaceTable("llm_usage", ("id",), "of_run"),
    NamespaceTable("tags", ("owner_id", "key")),
    NamespaceTable("streams", ("owner_id", "name")),
    NamespaceTable("stream_chunks", ("owner_id", "name", "first_offset"), "of_stream"),
    NamespaceTable("dedupe", ("namespace", "key")),
)
"""The tables with rows of a namespace, in an order in which they can be written. Not among them: servers, which register again, and
tables that a store derives from others."""

_SHARED = {table.name for table in TABLES if table.shared}


class TableDigest(msgspec.Struct):
    """The number of rows of a table, and a sum of their hashes, which does not depend on their order."""

    rows: int = 0
    digest: str = f"{0:032x}"

    def add(self, line: bytes) -> None:
        """Count a row."""
        self.rows += 1
        total = int(self.digest, 16) + int.from_bytes(hashlib.sha256(line).digest()[:16])
        self.digest = f"{total % 2**128:032x}"


Digests = dict[str, TableDigest]


class Header(msgspec.Struct, frozen=True):
    """The first line of a file."""

    treadle_namespace: str
    format: int
    schema_version: int
    first_seq: int
    """The least number of a transition, and the greatest; 0 without transitions."""
    last_seq: int
    tables: Digests


def _line(table: str, row: StoredRow) -> bytes:
    return msgspec.json.encode([table, row], order="sorted") + b"\n"


def _differences(stored: Digests, expected: Digests) -> list[str]:
    """Return the tables that differ, with the numbers of rows in both."""
    none = TableDigest()
    pairs = {name: (stored.get(name, none), expected.get(name, none)) for name in sorted({*stored, *expected})}
    return [f"{name}: {left.rows} and {right.rows} rows" for name, (left, right) in pairs.items() if left != right]


async def export_namespace(store: Store, namespace: str, path: Path, progress: Progress = lambda _: None) -> Header:
    """Write all rows of the namespace to a new file, compressed if its name ends with `.gz`; return its header.

    Raises `Refused` and leaves no file if a worker holds a task of the namespace.
    """
    tables: Digests = {}
    first_seq = last_seq = 0
    try:
        with tempfile.TemporaryFile(dir=path.parent) as rows, _new_file(path) as target:

            def receive(table: str, row: StoredRow) -> None:
                nonlocal first_seq, last_seq
                if table == "tasks" and row["owner_id"] is not None:
                    raise Refused(
                        f"A worker holds the task {row['id']} of the namespace {namespace}: stop its workers, and export it again "
                        "when no task is running."
                    )
                line = _line(table, row)
                rows.write(line)
                digest = tables.setdefault(table, TableDigest())
                digest.add(line)
                if seq := row.get("seq"):
                    first_seq, last_seq = min(seq, first_seq or seq), max(seq, last_seq)
                if digest.rows % BATCH == 0:
                    progress(f"{table}: {digest.rows} rows")

            await store.namespaces.export_rows(namespace, receive)
            header = Header(namespace, FORMAT, await _schema_version(store), first_seq, last_seq, tables)
            rows.seek(0)
            target.write(msgspec.json.encode(header) + b"\n")
            shutil.copyfileobj(rows, target)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror or error}.") from error
    return header


async def _schema_version(store: Store) -> int:
    version = (await store.health.describe())["schema_version"]
    assert isinstance(version, int)
    return version


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that becomes the one at `path`, durably, unless the block raises."""
    if path.exists():
        raise Refused(f"{path} exists: choose the name of a new file.")
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            if path.suffix == ".gz":
                with gzip.open(file, "wb") as packed:
                    yield packed  # type: ignore[misc]
            else:
                yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).rename(path)
    finally:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()


class NamespaceImport:
    """A file that is being imported: its rows for the store to insert, and the check of those that the store has then."""

    def __init__(self, path: Path, file: IO[bytes], progress: Progress) -> None:
        self._path = path
        self._file = file
        self._progress = progress
        try:
            self.header = msgspec.json.decode(file.readline(), type=Header)
        except msgspec.DecodeError:
            raise InvalidInput(f"{path} is not the export of a namespace: it has no header.") from None
        if self.header.format != FORMAT:
            raise InvalidInput(f"{path} has the format {self.header.format}; this version of Treadle reads {FORMAT}.")
        self.namespace = self.header.treadle_namespace
        self._stored: Digests = {}

    def batches(self) -> Iterator[tuple[str, list[StoredRow]]]:
        """Yield up to `BATCH` rows of a table at a time; at the end, raise `Refused` unless the header promised these rows."""
        read: Digests = {}
        table, batch = "", list[StoredRow]()
        for line in self._file:
            name, row = self._decode(line)
            read.setdefault(name, TableDigest()).add(line)
            if batch and (name != table or len(batch) == BATCH):
                self._progress(f"{table}: {read[table].rows} of {self._expected(table)} rows")
                yield table, batch
                batch = []
            table = name
            batch.append(row)
        if batch:
            yield table, batch
        if differ := _differences(read, self.header.tables):
            raise Refused(f"{self._path} was changed or is damaged ({'; '.join(differ)}); nothing was imported.")

    def _decode(self, line: bytes) -> tuple[str, StoredRow]:
        try:
            return msgspec.json.decode(line, type=tuple[str, StoredRow])
        except msgspec.DecodeError:
            raise Refused(f"{self._path} was changed or is damaged; nothing was imported.") from None

    def _expected(self, table: str) -> int:
        return self.header.tables.get(table, TableDigest()).rows

    def refuse_row(self, table: str, row: StoredRow) -> None:
        """Raise `Refused` for a row that the target has before the import, except for settings of lists and shared rows."""
        if table not in _SHARED:
            raise Refused(f"The store already has {table} of the namespace {self.namespace}: import it into an empty one.")

    def check_row(self, table: str, row: StoredRow) -> None:
        """Add a row that the store has after the import."""
        if table not in _SHARED:
            self._stored.setdefault(table, TableDigest()).add(_line(table, row))

    def finish(self) -> None:
        """Raise `Refused` if the rows that the store has differ from those of the file."""
        expected = {name: digest for name, digest in self.header.tables.items() if name not in _SHARED}
        if differ := _differences(self._stored, expected):
            raise Refused(f"The store does not return the rows of {self._path} ({'; '.join(differ)}); nothing was imported.")


async def import_namespace(store: Store, namespace: str, path: Path, progress: Progress = lambda _: None) -> Header:
    """Import the file in one transaction; return its header. Raises `Refused`, and changes nothing, if it is not what it was."""
    try:
        with path.open("rb") as plain:
            is_packed = plain.read(2) == b"\x1f\x8b"
            plain.seek(0)
            with gzip.open(plain) if is_packed else plain as file:
                incoming = NamespaceImport(path, file, progress)  # type: ignore[arg-type]
                _check_target(incoming, namespace, await _schema_version(store))
                await store.namespaces.import_rows(incoming)
                return incoming.header
    except (EOFError, gzip.BadGzipFile) as error:
        raise Refused(f"{path} was changed or is damaged ({error}); nothing was imported.") from error
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}.") from error


def _check_target(incoming: NamespaceImport, namespace: str, schema_version: int) -> None:
    if incoming.namespace != namespace:
        wanted = incoming.namespace
        raise InvalidInput(f"The file has the namespace {wanted}, not {namespace}: add --namespace {wanted}.")
    if incoming.header.schema_version != schema_version:
        raise Refused(
            f"The file was written with schema version {incoming.header.schema_version}, and the store has {schema_version}: run "
            "`treadle store migrate` on the older of both stores, and export again if that was the source."
        )
