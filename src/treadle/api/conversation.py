"""Records of the conversation with running functions: published values, and updates with their answers."""

from __future__ import annotations

from treadle.api.contract import ApiRecord
from treadle.api.wire import Instant
from treadle.model.values import Json


class PublishedValue(ApiRecord, frozen=True):
    """A value that a function has published."""

    run_id: str
    """The current run of the lineage."""
    name: str
    value: Json
    at: Instant


class UpdateResult(ApiRecord, frozen=True):
    """An update, and the function's answer to it."""

    run_id: str
    name: str
    idempotency_key: str
    """A call with this key waits for the same answer."""
    answered: bool
    """False: not within the waiting time; the update stays."""
    value: Json
    """The answer."""
