"""Base of the services over one entity of records: tokens, sessions, requests, schedules, watchers and alert rules."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

from treadle.kernel.core import Service
from treadle.kernel.store.lookups import find_by_name_or_id
from treadle.kernel.store.process import failpoint
from treadle.kernel.store.records import read_document
from treadle.kernel.store.units import Unit, UnitAnswer
from treadle.model.errors import not_found
from treadle.model.records import Record
from treadle.model.states import StateMachine
from treadle.model.stored import Stored, plain
from treadle.model.values import encode

B = TypeVar("B", bound=Stored)


class RecordService(Service, Generic[B]):
    """The records of one entity in one namespace; `B` is the type of their documents."""

    machine: ClassVar[StateMachine]
    document: ClassVar[Any]
    """The type of the documents, as `B`."""

    def load(self, record: Record) -> B:
        """Decode the document of a record; raises `UnreadableValue`."""
        document: B = read_document(self.document, record)
        return document

    def save(self, document: B) -> str:
        """Encode the document of a record."""
        return encode(plain(document), self.machine.entity.replace("_", " "))

    async def get_record(self, name: str, *, exact: bool = False) -> Record:
        """Return the live record of that name, or the record of that id; see `find_by_name_or_id`."""
        record = await find_by_name_or_id(self._store, self._namespace, self.machine.entity, name, exact=exact)
        if record is None:
            raise not_found(self.machine.entity, name)
        return record

    async def operate(self, unit: Unit) -> UnitAnswer:
        """Commit an operator's change."""
        failpoint("operate.before_commit")
        answer = await self._committer.submit(unit, self._patience)
        failpoint("operate.after_commit")
        return answer
