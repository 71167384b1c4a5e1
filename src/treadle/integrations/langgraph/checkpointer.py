"""A LangGraph checkpointer on the engine's store.

In a handler or a durable function, the claim of its task guards every write: a worker that lost its lease gets `ClaimLost` and
writes nothing, and no other task can write the thread until this one ends (`thread_held`).

Keys of a thread's items (all parts are quoted):

    c/NS/ID               a checkpoint without its values; ids are inverted, so that the newest comes first
    v/NS/CHANNEL/VERSION  a value of a channel, stored once for all checkpoints that have it
    w/NS/ID/TASK/INDEX    a write of a task to the checkpoint
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast
from urllib.parse import quote

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_serializable_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from treadle.engine import Engine
from treadle.engine.kernel import Kernel
from treadle.kernel.threads import Items
from treadle.model.errors import InvalidInput, MisusedContext, NotOpen
from treadle.model.records import ThreadItem, text
from treadle.model.tasks import Claim, Task
from treadle.workers.context import holder

T = TypeVar("T")

_EMPTY = "empty"
"""The type of a channel without a value."""
_LAST = "~"


class TreadleSaver(BaseCheckpointSaver[str]):
    """Stores the checkpoints of LangGraph threads in the engine's store; sync methods are for other threads than the engine's.

    Values are serialized by LangGraph, and deserialized in its strict mode: messages, dates and other safe types, and the `types`
    given here. A value of any other type is read as plain data. `serde` replaces that serializer.
    """

    def __init__(self, engine: Engine, *, types: Iterable[type] = (), serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde or JsonPlusSerializer(allowed_msgpack_modules=list(types) or None))
        self._engine = engine

    @property
    def _kernel(self) -> Kernel:
        """The engine's current kernel: `treadle worker` and mounted engines choose their store after this object was made."""
        return self._engine.kernel

    # reads

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the config names, or the thread's newest one."""
        thread_id, ns = _place(config)
        record_id = await self._kernel.threads.find(thread_id)
        if record_id is None:
            return None
        if checkpoint_id := get_checkpoint_id(config):
            key = _checkpoint_key(ns, checkpoint_id)
            item = (await self._kernel.threads.find_items(record_id, [key])).get(key)
        else:
            item = await self._kernel.threads.first_item(record_id, f"c/{_quoted(ns)}/")
        return None if item is None else await self._tuple(record_id, thread_id, item)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, newest first; without a config, those of all threads."""
        threads = self._kernel.threads
        if config is None:
            names = await threads.list_names()
        else:
            thread_id = _place(config)[0]
            record_id = await threads.find(thread_id)
            names = [] if record_id is None else [(record_id, thread_id)]
        ns = None if config is None else config["configurable"].get("checkpoint_ns")
        wanted = None if config is None else get_checkpoint_id(config)
        until = None if before is None else get_checkpoint_id(before)
        prefix = "c/" if ns is None else f"c/{_quoted(ns)}/"
        checkpoints = [(item, record_id, name) for record_id, name in names async for _, item in threads.items(record_id, prefix)]
        checkpoints.sort(key=lambda checkpoint: checkpoint[0].checkpoint_id, reverse=True)
        for item, record_id, name in checkpoints:
            if limit is not None and limit <= 0:
                return
            if (wanted and item.checkpoint_id != wanted) or (until and item.checkpoint_id >= until):
                continue
            metadata = self.serde.loads_typed(item.about)
            if filter and any(metadata.get(key) != value for key, value in filter.items()):
                continue
            limit = None if limit is None else limit - 1
            yield await self._tuple(record_id, name, item)

    async def _tuple(self, record_id: str, thread_id: str, item: ThreadItem) -> CheckpointTuple:
        threads = self._kernel.threads
        checkpoint: Checkpoint = self.serde.loads_typed(item.value)
        keys = {_value_key(item.ns, name, version): name for name, version in checkpoint["channel_versions"].items()}
        values = await threads.find_items(record_id, keys)
        writes = [write async for _, write in threads.items(record_id, _writes_prefix(item.ns, item.checkpoint_id))]
        writes.sort(key=lambda write: writes_sort_key(write.path, write.task_id, write.index))
        checkpoint["channel_values"] = {
            name: self.serde.loads_typed(values[key].value)
            for key, name in keys.items()
            if key in values and values[key].type != _EMPTY
        }
        return CheckpointTuple(
            config=_config(thread_id, item.ns, item.checkpoint_id),
            checkpoint=checkpoint,
            metadata=self.serde.loads_typed(item.about),
            parent_config=None if item.parent_id is None else _config(thread_id, item.ns, item.parent_id),
            pending_writes=[(write.task_id, write.channel, self.serde.loads_typed(write.value)) for write in writes],
        )

    # writes

    async def aput(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        """Store a checkpoint, and the values of the channels that changed."""
        thread_id, ns = _place(config)
        values, items = checkpoint["channel_values"], cast("Items", {})
        for channel, version in new_versions.items():
            kind, data = self.serde.dumps_typed(values[channel]) if channel in values else (_EMPTY, b"")
            items[_value_key(ns, channel, version)] = ThreadItem(type=kind, data=text(data))
        kind, data = self.serde.dumps_typed({key: value for key, value in checkpoint.items() if key != "channel_values"})
        about, metadata_bytes = self.serde.dumps_typed(get_serializable_checkpoint_metadata(config, metadata))
        items[_checkpoint_key(ns, checkpoint["id"])] = ThreadItem(
            type=kind,
            data=text(data),
            metadata_type=about,
            metadata=text(metadata_bytes),
            checkpoint_id=checkpoint["id"],
            parent_id=get_checkpoint_id(config),
            ns=ns,
        )
        await self._write(thread_id, items)
        return _config(thread_id, ns, checkpoint["id"])

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task to a checkpoint; those that are stored stay, except the framework's own."""
        thread_id, ns = _place(config)
        prefix = _writes_prefix(ns, config["configurable"]["checkpoint_id"])
        items: Items = {}
        for number, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, number)
            kind, data = self.serde.dumps_typed(value)
            items[f"{prefix}{_quoted(task_id)}/{index}"] = ThreadItem(
                type=kind, data=text(data), task_id=task_id, channel=channel, path=task_path, index=index
            )

        async def unwritten(record_id: str | None) -> Items:
            final_keys = {key for key, item in items.items() if item is not None and item.index >= 0}
            stored = {} if record_id is None else await self._kernel.threads.find_items(record_id, final_keys)
            return {key: item for key, item in items.items() if key not in stored}

        await self._write(thread_id, unwritten)

    async def _write(self, thread_id: str, changes: Items | Callable[[str | None], Awaitable[Items]]) -> None:
        """Write items, or those that a function chooses for the thread's record, under the claim of the calling task."""

        async def same(_: str | None) -> Items:
            return cast("Items", changes)

        await self._kernel.threads.write(thread_id, changes if callable(changes) else same, *_held())

    # maintenance

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete the thread with everything in it."""
        await self._kernel.threads.remove(thread_id, _held()[1])

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata names one of these runs."""
        wanted = set(run_ids)
        for _, name in await self._kernel.threads.list_names() if wanted else ():
            await self._drop(name, lambda item: self.serde.loads_typed(item.about).get("run_id") not in wanted)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread."""
        record_id = await self._kernel.threads.find(source_thread_id)
        if record_id is not None:
            await self._write(target_thread_id, {key: item async for key, item in self._kernel.threads.items(record_id)})

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the newest checkpoint of each namespace (`keep_latest`), or delete the threads (`delete`)."""
        if strategy not in ("keep_latest", "delete"):
            raise InvalidInput(f"The strategy is keep_latest or delete, not {strategy!r}.")
        for thread_id in thread_ids:
            if strategy == "delete":
                await self.adelete_thread(thread_id)
            else:
                seen: set[str] = set()
                await self._drop(thread_id, lambda item, seen=seen: item.ns not in seen and not seen.add(item.ns))

    async def _drop(self, thread_id: str, keeps: Any) -> None:
        """Delete the checkpoints that are not to be kept, with their writes, and the values that no other one has.

        A value that a kept checkpoint rebuilds from the writes of its ancestors (a delta channel) keeps those ancestors.
        """
        threads = self._kernel.threads

        async def decide(record_id: str | None) -> Items:
            if record_id is None:
                return {}
            stored = [key async for key, _ in threads.items(record_id)]
            checkpoints = [entry async for entry in threads.items(record_id, "c/")]
            retained = [item for _, item in checkpoints if keeps(item)]
            retained += await self._ancestors(record_id, retained)
            retained_keys = {_checkpoint_key(item.ns, item.checkpoint_id) for item in retained}
            prefixes = tuple(_writes_prefix(item.ns, item.checkpoint_id) for item in retained)
            for item in retained:
                versions = self.serde.loads_typed(item.value)["channel_versions"]
                retained_keys |= {_value_key(item.ns, name, version) for name, version in versions.items()}
            return {key: None for key in stored if key not in retained_keys and not key.startswith(prefixes)}

        await self._write(thread_id, decide)

    async def _ancestors(self, record_id: str, kept: Sequence[ThreadItem]) -> list[ThreadItem]:
        """Return the checkpoints before the kept ones, up to the nearest one with a value of each of their delta channels."""
        threads, ancestors = self._kernel.threads, list[ThreadItem]()
        for item in kept:
            missing = set(self.serde.loads_typed(item.about).get("counters_since_delta_snapshot", ()))
            at: ThreadItem | None = item
            while at is not None and missing:
                versions = self.serde.loads_typed(at.value)["channel_versions"]
                keys = {_value_key(at.ns, name, versions[name]): name for name in missing if name in versions}
                values = await threads.find_items(record_id, keys)
                missing -= {keys[key] for key, value in values.items() if value.type != _EMPTY}
                if missing and at.parent_id is not None:
                    parent = _checkpoint_key(at.ns, at.parent_id)
                    at = (await threads.find_items(record_id, [parent])).get(parent)
                    ancestors += [] if at is None else [at]
                else:
                    at = None
        return ancestors

    # blocking

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Blocking `aget_tuple`."""
        return self._wait(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Blocking `alist`."""
        return iter(self._wait(_all(self.alist(config, filter=filter, before=before, limit=limit))))

    def put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        """Blocking `aput`."""
        return self._wait(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """Blocking `aput_writes`."""
        self._wait(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Blocking `adelete_thread`."""
        self._wait(self.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Blocking `adelete_for_runs`."""
        self._wait(self.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Blocking `acopy_thread`."""
        self._wait(self.acopy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Blocking `aprune`."""
        self._wait(self.aprune(thread_ids, strategy=strategy))

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        loop = self._kernel.loop
        try:
            if loop is None:
                raise NotOpen("Open the engine before its checkpointer is used.")
            try:
                current: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
            except RuntimeError:
                current = None
            if current is loop:
                raise MisusedContext("This would block the engine's event loop: use `ainvoke` or `astream` of the graph here.")
        except Exception:
            call.close()
            raise
        return asyncio.run_coroutine_threadsafe(call, loop).result()

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return the next version of a channel; two branches of a thread never make the same one."""
        number = 0 if current is None else int(str(current).partition(".")[0])
        return f"{number + 1:032}.{self._kernel.ids.random():016}"


def _held() -> tuple[Task | None, Claim | None]:
    """Return the task that this code runs for, and its claim."""
    held = holder.get()
    return (None, None) if held is None else (held.task, held.token)


async def _all(found: AsyncIterator[T]) -> Iterable[T]:
    return [item async for item in found]


def _place(config: RunnableConfig) -> tuple[str, str]:
    configurable = config["configurable"]
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns", "")


def _config(thread_id: str, ns: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}


def _quoted(part: object) -> str:
    return quote(str(part), safe="")


def _checkpoint_key(ns: str, checkpoint_id: str) -> str:
    inverted = "".join(chr(0x9E - ord(letter)) for letter in _quoted(checkpoint_id))
    return f"c/{_quoted(ns)}/{inverted}{_LAST}"


def _value_key(ns: str, channel: str, version: object) -> str:
    return f"v/{_quoted(ns)}/{_quoted(channel)}/{_quoted(version)}"


def _writes_prefix(ns: str, checkpoint_id: str) -> str:
    return f"w/{_quoted(ns)}/{_quoted(checkpoint_id)}/"
