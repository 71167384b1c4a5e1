"""The parameters of handlers and functions: JSON Schemas that workers register, for forms and checks elsewhere.

One record per name has, by version, the newest schema and the one before it: while workers of two releases run, either may be
right. A handler without annotations takes any object.
"""

from __future__ import annotations

from collections.abc import Mapping

from treadle.api.tasks import Parameters
from treadle.kernel.record_service import RecordService
from treadle.kernel.store.committer import Stale
from treadle.kernel.store.records import ChangeRecord, PutRecord, RecordFilter
from treadle.kernel.store.units import Row, Unit
from treadle.model.errors import UnreadableValue, not_found
from treadle.model.json_schema import ANY_OBJECT, Schema
from treadle.model.records import Record
from treadle.model.states import PARAMETERS
from treadle.model.stored import Stored
from treadle.model.values import encode

Registered = Mapping[str, Mapping[int, Schema]]
"""Schemas by name and version; handlers have the version 0."""
_FORMER = 1
"""Schemas that are kept beside the newest one."""
_SCHEMA_LIMIT = 65_536
_NAMES = 10_000


class ParametersDocument(Stored, frozen=True, kw_only=True):
    """The document of a record: schemas by version, the newest first."""

    versions: dict[str, list[Schema]]


class ParametersService(RecordService[ParametersDocument]):
    """The registered parameters of one namespace."""

    machine = PARAMETERS
    document = ParametersDocument

    async def register(self, registered: Registered, actor: str) -> None:
        """Store what has changed since the last registration."""

        async def attempt() -> None:
            which = RecordFilter(PARAMETERS.entity, self._namespace)
            records = {record.name: record for record in await self._store.records.list_matching(which, _NAMES)}
            rows = [row for name, own in registered.items() for row in self._rows(name, own, records.get(name), actor)]
            if rows and (await self._committer.commit(Unit(rows=tuple(rows)), self._patience)).existing:
                raise Stale

        if registered:
            await self._committer.transact(attempt, "register parameters")

    def _rows(self, name: str, own: Mapping[int, Schema], record: Record | None, actor: str) -> list[Row]:
        stored = {} if record is None else self._versions(record)
        versions = dict(stored)
        for version, registered in own.items():
            schema = registered if len(encode(registered)) <= _SCHEMA_LIMIT else ANY_OBJECT
            former = [other for other in stored.get(str(version), []) if other != schema]
            if former or (schema != ANY_OBJECT and str(version) not in stored):
                versions[str(version)] = [schema, *former[:_FORMER]]
        if versions == stored:
            return []
        document = self.save(ParametersDocument(versions=versions))
        if record is None:
            new = Record(
                id=self._ids.new_id(),
                namespace=self._namespace,
                entity=PARAMETERS.entity,
                name=name,
                state=PARAMETERS.initial,
                document=document,
            )
            return [PutRecord(new)]
        state, data = PARAMETERS.initial, encode({"name": name})
        return [ChangeRecord(record.id, record.version, document, "change", state, state, actor=actor, data=data)]

    def _versions(self, record: Record) -> dict[str, list[Schema]]:
        try:
            return self.load(record).versions
        except UnreadableValue:
            return {}

    async def get(self, name: str, version: int | None = None) -> Parameters:
        """Return the parameters of a handler, or of a version of a function (default: the newest)."""
        record = await self._store.records.find_named(self._namespace, PARAMETERS.entity, name)
        versions = {} if record is None else self._versions(record)
        newest = max(map(int, versions), default=0) if version is None else version
        schemas = versions.get(str(newest))
        if schemas is None:
            raise not_found("parameters", name)
        return Parameters(name, newest, schemas[0], schemas[1:])
