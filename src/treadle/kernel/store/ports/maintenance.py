"""The ports for maintenance: retention of finished work, and the health of the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from treadle.kernel.store.ports.clock import StoreClock
from treadle.kernel.store.queries import Health, Pruned, PrunePage, Rules


class RetentionStore(StoreClock, Protocol):
    """Find and remove finished work after its retention time."""

    async def prepare(self, rules: Rules) -> None:
        """Prepare the storage of new work for its removal by these rules; idempotent, and a no-op for most stores."""

    async def drop_expired(self, rules: Rules, limit: int) -> Pruned:
        """Remove trees that are stored together and have expired, at less cost than one by one; call again while there is `more`.

        Leaves alone whatever may not be pruned, as `prune_trees` does. A no-op for a store that has no such means.
        """

    async def find_prunable(
        self, rules: Rules, cursor: str | None, limit: int, *, count: bool = False, patient: bool = False
    ) -> PrunePage:
        """Scan the next `limit` ends of the namespace, in the order in which they occurred, for trees to prune.

        A tree may be pruned when it has no live task and no unfinished run, and the retention time of all its parts is
        over. With `count`, the page has `tasks` and `trees`. The scan ends where nothing can be old enough. If `patient`,
        it leaves out trees that `drop_expired` will be able to remove within a quarter of their retention time, or a week.
        """

    async def prune_trees(self, rules: Rules, roots: Sequence[str], limit: int) -> Pruned:
        """Remove the trees in one transaction, but no more than about `limit` rows: call again while there is `more`.

        Leaves a tree that may not be pruned (any more) untouched. Runs are removed last, so that the next scan finds
        the rest of a tree after a crash. A large value goes with the last tree that uses it; records, messages,
        effect outcomes and streams go with their tree.
        """

    async def set_keep(self, namespace: str, task_list: str, completed_for: int | None, failed_for: int | None) -> None:
        """Set the list's own retention times; None means the default."""

    async def prune_rest(self, limit: int, keep_servers_for: int, keep_records_for: int) -> tuple[int, int, int]:
        """Remove expired keys, silent servers, and old records that belong to no tree; return the number of each.

        Removes up to `limit` expired idempotency keys, servers without a heartbeat for `keep_servers_for`, and up to
        `limit` records, with their moves, that ended `keep_records_for` ago.
        """

    async def compact(self, *, whole: bool = False, tight: bool = False) -> int:
        """Return free space to the system in a short step; return the bytes, 0 when done.

        A reserve for new rows stays free, unless `tight`. With `whole`, rewrite the store in one long step that others wait for.
        A no-op for a store that does this by itself; there, `whole` raises `Unsupported`. A store that cannot do it in steps does
        nothing, and raises `Unsupported` if `tight`.
        """


class HealthStore(StoreClock, Protocol):
    """Facts about the database for operators."""

    async def describe(self) -> dict[str, object]:
        """Return the kind of store, the version of its library or server, the schema version, and sizes."""

    async def overdue_for(self) -> int:
        """Return for how many milliseconds the first due `wake_at` has been due, 0 for none; one index lookup."""

    async def health(self) -> Health:
        """Return the health of the database; may take seconds on a large store."""

    async def list_damage(self, *, pages: bool = True) -> list[str]:
        """Return one line for each sign of damage below the rows: missing commits, and damaged pages and texts.

        Without `pages` it does not read the whole database.
        """

    async def accept_damage(self) -> str | None:
        """Forget which commits the database should have, e.g. after a backup was restored; return a description of them.

        Call it before `open`. None if nothing was known.
        """

    async def backup(self, path: str) -> int:
        """Copy the database as of this instant into a new file while it is in use; return the file's size in bytes.

        Refuses an existing path. A store with its own backup tools raises `Unsupported`, which names them.
        """
