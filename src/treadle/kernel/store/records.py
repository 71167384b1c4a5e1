"""What a store promises about records, the mail of function runs, and the outcomes of effects.

The rows here go into units like all others (`store.units`): with the claim or the sight that they follow from, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from treadle.model.records import EffectOutcome, Message, Record


@dataclass(frozen=True, slots=True)
class PutRecord:
    """A new record, at version 0 and with 0 moves.

    One whose id is there already is left alone, and the unit's other rows with it (it was sent before). Where a live record
    of the entity has its name, nothing of the unit is done, and `existing` names that one.
    """

    record: Record


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """The record, if it is still at `version`, has this body from now on, and the next version; else the unit is `deferred`.

    With a `move` it makes that move, with a row in the log. `ended` says that `to_state` is final. `task_id` replaces the task
    that it is about, if given.
    """

    record_id: str
    version: int
    body: str
    move: str | None = None
    from_state: str | None = None
    to_state: str | None = None
    ended: bool = False
    actor: str | None = None
    data: str | None = None
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class PutItems:
    """Values that a record keeps apart from its body, by key; None removes one. Gone with the record."""

    record_id: str
    items: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class PutMessage:
    """Tell an unfinished run something: to a run that is finished or gone it is dropped, and mail of the same id is told once.

    That raises the run's version and lowers its `awaiting`; when nothing is awaited any more, the run's own task (the one
    without a step) is ready at once, if it sleeps without an owner. The lanes are answered, as for all that becomes ready.
    """

    mail: Message


@dataclass(frozen=True, slots=True)
class TakeMessages:
    """These have been taken in by this unit, and are gone."""

    run_id: str
    mail_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Await:
    """The run's own task need not be woken before so much more mail has come (0: at the first). `added` steps are new."""

    run_id: str
    count: int
    added: int = 0


@dataclass(frozen=True, slots=True)
class PutOutcome:
    """What is known of an effect; one that is resolved is never made `unknown` again, nor is it changed."""

    outcome: EffectOutcome


EntityRow = PutRecord | ChangeRecord | PutItems | PutMessage | TakeMessages | Await | PutOutcome


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which records to list; None means any."""

    entity: str
    namespace: str | None = None
    states: tuple[str, ...] = ()
    live: bool | None = None
    task_id: str | None = None
    run_id: str | None = None
    before_id: str | None = None
    """Only records with a smaller id: the cursor of the next page, as they are listed newest first."""


class EntityStore(Protocol):
    """The part of a store that is about these."""

    async def find_record(self, record_id: str) -> Record | None:
        """The record, live or ended."""

    async def find_record_named(self, namespace: str, entity: str, name: str) -> Record | None:
        """The live record of that name."""

    async def list_records(self, which: RecordFilter, limit: int) -> list[Record]:
        """Up to `limit` records, newest first (by id)."""

    async def count_records(self, namespace: str, entity: str) -> dict[str, int]:
        """Records of the entity by state."""

    async def list_items(self, record_id: str, after_key: str | None, limit: int) -> list[tuple[str, str]]:
        """A page of the record's items in the order of their keys (by code point)."""

    async def find_items(self, record_id: str, keys: Sequence[str]) -> dict[str, str]:
        """Those of the items that there are."""

    async def list_messages(self, run_id: str, limit: int, after_seq: int = 0) -> list[Message]:
        """Up to `limit` pieces of mail that the run has not taken in, in the order of their arrival.

        What is seen at a version of the run is all that there is at that version.
        """

    async def list_children(self, run_id: str) -> list[str]:
        """The ids of the unfinished runs that steps of this run have started (those with a `parent_step_id`).

        Also those that were started by such a run which has finished meanwhile, at any depth.
        """

    async def find_outcomes(self, keys: Sequence[str]) -> list[EffectOutcome]:
        """What is known of the effects with these keys."""

    async def count_unknown(self, root_ids: Sequence[str]) -> int:
        """How many effects of those trees are `unknown`: begun, and nobody knows how they ended."""

    async def expire_leases_of(self, owner_ids: Sequence[str]) -> int:
        """Make the leases of those owners run out now, so that the next `wake` takes them over; how many there were.

        For owners that are known to be dead.
        """

    async def list_unpolled(self, lane_ids: Sequence[int], limit: int) -> list[str]:
        """The ids of up to `limit` tasks of those lanes that await an outside job and are ready to be polled."""
