"""Limits declared with a handler or a function: their keys are computed from the payloads of its tasks or runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from treadle.kernel.queue.service import MAX_LIMIT_KEYS
from treadle.model.errors import InvalidInput, InvalidPolicy
from treadle.model.lists import check_count, check_rate, parse_rate
from treadle.model.names import check_key
from treadle.model.tasks import TaskLimit
from treadle.model.values import shown


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit under which tasks count: at most `max` of them run concurrently, and at most `rate` of them start per second.

    With a function, its live runs count: at most `max` of them have begun and not ended.

    With `by`, the name of a field of the payload, each of its values (a text or a whole number) has a limit of its own, whose key
    is `NAME:VALUE`; tasks without a value do not count. Without, `name` is the key; handlers may share it. A rate is a number, or
    a text such as `100/min`; its burst is one second's worth.
    """

    name: str
    _: KW_ONLY
    by: str | None = None
    max: int | None = None
    rate: float | str | None = None

    def __post_init__(self) -> None:
        check_key(self.name, "limit key")
        if self.by is not None and (not isinstance(self.by, str) or not self.by):
            raise InvalidInput(f"by must be the name of a field of the payload, not {shown(self.by)}.")
        if self.max is not None:
            check_count(self.max, "A limit")
        if self.rate is not None:
            check_rate(parse_rate(self.rate), None)

    @property
    def of_task(self) -> TaskLimit:
        """The limit that a task sets for its key; that of a key without a field is declared."""
        if self.by is None:
            return TaskLimit()
        rate = None if self.rate is None else parse_rate(self.rate)
        return TaskLimit(self.max, rate, check_rate(rate, None))

    def key(self, payload: Mapping[str, Any]) -> str | None:
        """Return the limit key of a task with that payload; None if it does not count."""
        if self.by is None:
            return self.name
        value = payload.get(self.by)
        if value is None:
            return None
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise InvalidInput(
                f"The limit {self.name} counts by {self.by}, which must be a text or a whole number, not {shown(value)}."
            )
        return check_key(f"{self.name}:{value}", "limit key")


def keys_of(limits: Iterable[Limit], payload: Mapping[str, Any]) -> dict[str, TaskLimit]:
    """Return the limit keys of a task, each with the limit that the task sets."""
    return {key: limit.of_task for limit in limits if (key := limit.key(payload)) is not None}


def check_limits(handler: str, limits: Iterable[Limit], limit_key: str | None) -> tuple[Limit, ...]:
    """Return the limits of a handler, or raise `InvalidPolicy`."""
    checked = tuple(limits)
    if not all(isinstance(limit, Limit) for limit in checked) or len(checked) > MAX_LIMIT_KEYS:
        raise InvalidPolicy(f"limits of the handler {handler} must be up to {MAX_LIMIT_KEYS} objects of treadle.Limit.")
    if checked and limit_key is not None:
        raise InvalidPolicy(f"The handler {handler} has limit_key= and limits=; add Limit({limit_key!r}) to its limits instead.")
    return checked
