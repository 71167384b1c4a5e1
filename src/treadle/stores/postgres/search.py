"""Search by words of errors; the rest of the search is shared."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.database import ScanRange, SearchStore, places, values_of
from treadle.kernel.store.queries import Place

_SORT_LIMIT = 1_000
"""Errors with the same words that are read and sorted."""
_PROBE_ROWS = 100
"""The newest errors, which show whether words are common: a word that none of them has is rarely in more than one of 50 errors."""
_SCAN_ROWS = 20_000
"""The newest errors, among which those with common words are looked for."""


class PostgresSearch(SearchStore):
    """The `SearchStore` of PostgreSQL."""

    async def list_with_words(self, span: ScanRange, words: Sequence[str], limit: int) -> list[Place]:
        """Look for common words among the newest errors, and for others in the index of words, which has no order.

        The index takes time for each error with the words before it returns the first one.
        """
        query = " & ".join(f"'{word[:-1]}':*" if word.endswith("*") else f"'{word}'" for word in words)
        part = max((word.removesuffix("*") for word in words if word.isascii()), key=len, default="")
        kind = "runs" if span.entity == "run" else "tasks"
        values = values_of(span) | {"words": query, "part": part}

        async def find(statement: str, most: int, newest: int | None = None) -> list[Place]:
            return places(await self._database.fetch(statement, **values, limit=most, newest=newest))

        limit = max(limit, 0)
        if not await find(f"list_new_{kind}_with_words", 1, _PROBE_ROWS):
            some = await find(f"list_some_{kind}_with_words", _SORT_LIMIT)
            if len(some) < _SORT_LIMIT:
                return sorted(some, reverse=True)[:limit]
        new = await find(f"list_new_{kind}_with_words", limit, _SCAN_ROWS)
        return new if len(new) >= limit else await find(f"list_{kind}_with_words", limit)
