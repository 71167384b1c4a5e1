"""Search by words of errors; the rest of the search is shared."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.database import ScanRange, SearchStore, places, values_of
from treadle.kernel.store.queries import Place


class SqliteSearch(SearchStore):
    """The `SearchStore` of SQLite."""

    async def list_with_words(self, span: ScanRange, words: Sequence[str], limit: int) -> list[Place]:
        query = " AND ".join(f'"{word[:-1]}" *' if word.endswith("*") else f'"{word}"' for word in words)
        last = min(span.before.created_at + 1, 2**42) << 20
        values = values_of(span) | {"words": query, "first": span.after << 20, "last": last}
        wanted = limit
        while True:
            matches = places(await self._database.fetch("list_with_words", **values, limit=wanted))
            page = sorted((place for place in matches if place < span.before), reverse=True)
            if len(matches) < wanted:
                return page
            whole = [place for place in page if place.created_at > matches[-1].created_at]
            if len(whole) >= limit:  # of the last millisecond, the store may have listed only some
                return whole
            wanted *= 4
