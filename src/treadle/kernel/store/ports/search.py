"""The port for search: tags, the words of errors, and the beginnings of ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from treadle.kernel.store.ports.clock import StoreClock
from treadle.kernel.store.queries import NEWEST, Place
from treadle.model.runs import Run


class Span(NamedTuple):
    """A part of the runs or tasks (`entity`) of a namespace: those after the position `before`, created at `after` or later."""

    entity: str
    namespace: str
    before: Place = NEWEST
    after: int = 0


class SearchStore(StoreClock, Protocol):
    """Finds runs and tasks. Units write tags (`PutTags`); the store keeps the words of errors itself."""

    async def list_tags(self, owner_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the tags of runs and tasks in stored form (`model.tags`), by id; those without tags are left out."""

    async def list_tagged(self, span: Span, key: str, value: str, limit: int) -> list[Place]:
        """Return up to `limit` runs or tasks of the span with that tag, newest first."""

    async def list_with_words(self, span: Span, words: Sequence[str], limit: int) -> list[Place]:
        """Return at least `limit` runs, or ended tasks, of the span whose error has all these words, newest first.

        Fewer means that there are no others. A word may end in `*`. Sealed errors are not found.
        """

    async def list_failing_tasks(self, span: Span, limit: int) -> list[Place]:
        """Return up to `limit` live tasks of the span with an error, newest first."""

    async def list_run_names(self, prefix: str, limit: int) -> list[str]:
        """Return up to `limit` names of workflows and functions with runs, of any namespace, that begin with the prefix."""

    async def list_ids(self, entity: str, namespace: str, first: str, last: str, limit: int) -> list[str]:
        """Return up to `limit` ids of runs, tasks, steps, or records of that entity, from `first` to `last`, the greatest first."""

    async def find_runs(self, run_ids: Sequence[str], states: Sequence[str] = ()) -> list[Run]:
        """Return those of the runs that exist, in one of the states unless there are none, in no order."""
