"""The ports that a store implements for operators: servers, settings, retention, health, and whole namespaces.

`Store` of `kernel.store.ports` combines them with the ports for work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from treadle.kernel.store.queries import (
    Membership,
    Pruned,
    PrunePage,
    Renewal,
    Rules,
    Sighting,
    Touch,
)
from treadle.kernel.store.units import Row
from treadle.model.lists import Limit, QueueRule, TaskList
from treadle.model.records import HandlerRegistration
from treadle.model.runs import FlowVersion
from treadle.model.tasks import Claim, Server

if TYPE_CHECKING:
    from treadle.api.store import StoreHealth
    from treadle.kernel.store.transfer import NamespaceImport, StoredRow


class LeaseConnection(Protocol):
    """A connection to the store that belongs to one thread, so that a blocked event loop loses no leases.

    Its methods block; only the lease renewer's thread calls them.
    """

    def renew(self, renewals: Sequence[Renewal], lease_for: int) -> set[str]:
        """Extend the held claims to `lease_for` from now, never past the task's deadline or progress deadline.

        One statement for all. Returns the ids of the extended tasks. A missing id is not necessarily lost (its own
        settle may hold the row): call `held` before giving it up (D6). `heartbeat_at` becomes now; for renewals with
        `progressed`, `progress_at` becomes now too and `progress` is stored.
        """

    def held(self, claims: Sequence[Claim]) -> set[str]:
        """Return the ids of the tasks with an unchanged claim (same version, same owner)."""

    def beat(self, server: Server) -> Membership:
        """Insert or update the server's row; `heartbeat_at` becomes now, `started_at` keeps its first value.

        `session` keeps its value, and `evidence` is cleared: a server that beats is alive. Returns the former evidence, and the
        number of other servers that have not ended, missed fewer than `LOST_AFTER` heartbeats, and have a `process` or a
        `session`.
        """

    def now(self) -> int:
        """Return the store's clock, in milliseconds."""

    def close(self) -> None:
        """Release the connection; idempotent."""


class ServerStore(Protocol):
    """Processes that host workers."""

    def lease_connection(self) -> LeaseConnection:
        """Create a lease connection for one thread. May be called from any thread."""

    async def list_all(self, namespace: str | None = None) -> list[Server]:
        """Return the servers that sent a heartbeat and were not pruned, newest first: those of the namespace, or all.

        A server without a namespace, registered by an older version, counts for every namespace: it may serve any of them.
        """

    async def save(self, server: Server) -> None:
        """Insert or update the server's row, as `LeaseConnection.beat` does."""

    async def touch(self, touches: Sequence[Touch]) -> list[Server]:
        """Record heartbeats in one statement; return the updated rows of servers that exist and had not stopped.

        A call names each server at most once.
        """

    async def acquire_liveness_lock(self, server_id: str) -> None:
        """Tie the registered server to this process's session with the database, which ends with the process.

        The store sets `session` of the row once the session stands, and again whenever it had to be opened anew. A store without
        sessions, or one that cannot have one, does nothing. Idempotent.
        """

    async def release_liveness_lock(self, server_id: str) -> None:
        """Untie the server, which has reported its end; idempotent."""

    async def list_sightings(self) -> list[Sighting]:
        """Return the servers that have not ended, except remote workers, which have no process (pid 0).

        `has_session` is None unless the session was opened in the present instance of the database, and this process has had one
        for some seconds itself: after a failure of the database, or of the network, nobody seems to be gone.
        """

    async def end(self, evidence: Mapping[str, str | None]) -> list[str]:
        """Record the end of servers that have not ended: state `stopped`, nothing running, no `session`, with this evidence.

        Their last heartbeat stays. Returns the ids of the changed servers: of several callers, one gets each.
        """


class OperatorStore(Protocol):
    """Settings that operators change at run time. The rows of an `entry` of the log are written in the same transaction."""

    async def list_lists(self) -> list[TaskList]:
        """Return the lists that have settings; all other lists have the defaults."""

    async def set_list(
        self,
        namespace: str,
        task_list: str,
        *,
        paused: bool | None = None,
        accepting: bool | None = None,
        no_handler: str | None = None,
        entry: tuple[Row, ...] = (),
    ) -> tuple[int, ...]:
        """Change the settings that are not None, for all queues of the list, including queues created later.

        Returns the queues that may have work now.
        """

    async def list_queue_rules(self) -> list[QueueRule]:
        """Return all queues with their settings."""

    async def set_rate(self, queue_id: int, rate: float | None, burst: int | None, entry: tuple[Row, ...] = ()) -> None:
        """Limit claims to `rate` tasks per second with bursts of up to `burst`; None removes the rate."""

    async def set_backlog_limit(self, queue_id: int, backlog_limit: int | None, entry: tuple[Row, ...] = ()) -> None:
        """Refuse new tasks when the queue has `backlog_limit` ready tasks; None removes the cap."""

    async def list_limits(self, namespace: str) -> list[Limit]:
        """Return all limits of the namespace, each with its number of admitted and waiting tasks."""

    async def list_admitted(self, namespace: str, key: str, limit: int) -> list[str]:
        """Return the ids of up to `limit` admitted tasks of the key."""

    async def set_limit(self, namespace: str, key: str, max_running: int | None, entry: tuple[Row, ...] = ()) -> tuple[int, ...]:
        """Set an operator's limit of the key; None removes it. Returns the queues in which tasks became ready.

        For the key of a handler (`handler:NAME`), all tasks of that name without a key get it, including existing ones.
        Tasks that run when a limit is set or lowered continue; no other task of the key starts until there is room.
        """

    async def set_key_rate(
        self, namespace: str, key: str, rate: float | None, burst: int | None, entry: tuple[Row, ...] = ()
    ) -> tuple[int, ...]:
        """Let tasks of the key start at `rate` per second with bursts of up to `burst`; None removes the rate.

        Of any span of t seconds, no more than `burst + rate * t` claims of the key's tasks fall into it, across all workers. A
        change applies to waiting tasks immediately; tokens that are left stay, up to the new burst. Returns the queues in which
        tasks became ready.
        """

    async def set_handler_key(self, namespace: str, name: str, key: str | None, entry: tuple[Row, ...] = ()) -> tuple[int, ...]:
        """Set the limit key of the handler's tasks that have none of their own, including existing ones; None removes it.

        Returns the queues in which tasks became ready.
        """

    async def list_handler_keys(self, namespace: str) -> dict[str, str]:
        """Return the limit keys of handlers by name."""

    async def publish_flow(self, namespace: str, name: str, flow_id: str, actor: str, entry: tuple[Row, ...] = ()) -> FlowVersion:
        """Publish the flow as the next version of the name; write nothing if it already is the newest version."""

    async def list_handlers(self, namespace: str) -> list[HandlerRegistration]:
        """Return the handler registrations of the namespace, by name."""

    async def save_handler(self, namespace: str, registration: HandlerRegistration, entry: tuple[Row, ...] = ()) -> None:
        """Insert or replace the registration of that facet; `created` keeps its first value, `updated` becomes now."""

    async def delete_handler(self, namespace: str, facet_name: str, entry: tuple[Row, ...] = ()) -> bool:
        """Remove the registration; return False, and write nothing, if there was none."""


class RetentionStore(Protocol):
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

    async def set_keep(
        self, namespace: str, task_list: str, completed_for: int | None, failed_for: int | None, entry: tuple[Row, ...] = ()
    ) -> None:
        """Set the list's own retention times; None means the default."""

    async def prune_rest(self, limit: int, keep_servers_for: int, keep_records_for: int) -> tuple[int, int, int]:
        """Remove expired keys, silent servers, and old records that belong to no tree; return the number of each.

        Removes up to `limit` expired idempotency keys, servers without a heartbeat for `keep_servers_for`, and up to
        `limit` records, with their transitions, that ended `keep_records_for` ago.
        """

    async def compact(self, *, whole: bool = False, tight: bool = False) -> int:
        """Return free space to the system in a short step; return the bytes, 0 when done.

        A reserve for new rows stays free, unless `tight`. With `whole`, rewrite the store in one long step that others wait for.
        A no-op for a store that does this by itself; there, `whole` raises `Unsupported`. A store that cannot do it in steps does
        nothing, and raises `Unsupported` if `tight`.
        """


class HealthStore(Protocol):
    """Facts about the database for operators."""

    async def describe(self) -> dict[str, object]:
        """Return the kind of store, the version of its library or server, the schema version, and sizes."""

    async def overdue_for(self) -> int:
        """Return for how many milliseconds the first due `wake_at` has been due, 0 for none; one index lookup."""

    async def check(self) -> StoreHealth:
        """Return the health of the database, without findings; may take seconds on a large store."""

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


class NamespaceStore(Protocol):
    """All rows of a namespace. Their tables are `TABLES` of `kernel.store.transfer`."""

    async def list_names(self) -> list[str]:
        """Return the namespaces with tasks, runs or records, in order."""

    async def export_rows(self, namespace: str, receive: Callable[[str, StoredRow], None]) -> None:
        """Pass all rows of the namespace with the names of their tables to `receive`, as they are at one moment.

        They have the same form in every kind of store, and come in an order in which they can be written.
        """

    async def import_rows(self, incoming: NamespaceImport) -> None:
        """Insert the rows of an export in one transaction; if anything in it raises, nothing is imported.

        Before, the rows that the namespace has are passed to `refuse_row`; after, those that it has then to `check_row`. Then it
        calls `finish`, and commits. Shared rows that exist stay as they are, except that queues get the settings.
        """
