"""Random appends to a stream, on every store, against a model that is a list: offsets, generations, notices and limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engines import ALL, url_of
from tests.sizes import examples

from treadle.kernel.store.process import SystemClock
from treadle.kernel.store.records import AppendStream
from treadle.kernel.store.units import Unit
from treadle.model.tasks import Task
from treadle.stores import make_store
from treadle_conformance.task_steps import put_and_claim

LIMIT = 25
WRITERS = ("a", "b")
ACTS = st.lists(
    st.tuples(
        st.sampled_from(WRITERS), st.sampled_from(["write", "write", "resend", "again", "wait", "last", "drop"]), st.integers(0, 4)
    ),
    max_size=14,
)


class Model:
    """The expected content of the stream, computed the simple way."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int, Any]] = []
        """(writer, kind, generation, value) at each offset."""
        self.gone: set[int] = set()
        self.live: dict[str, list[int]] = {}
        """The offsets of the current generation, by writer; the first is its beginning."""
        self.generation: dict[str, int] = {}
        self.new: dict[str, bool] = {}
        """Writers whose next append begins a session: whether it replaces the one before."""
        self.sizes: dict[str, int] = {}
        self.full = False

    def append(self, writer: str, values: list[int], *, drops: bool = False) -> bool:
        """Append the values; False if they were dropped."""
        if writer in self.generation and self.new.get(writer) is True:
            self.gone |= {
                offset
                for offset, (who, _, generation, _) in enumerate(self.seen)
                if who == writer and generation < self.generation[writer]
            }
            since = self.live[writer][0]
            self.live[writer] = [len(self.seen)]
            before = self.generation[writer]
            self.generation[writer] += 1
            self.seen.append((writer, "abandoned", self.generation[writer], {"generation": before, "since": since}))
            self.full, self.sizes[writer] = False, 0
            del self.new[writer]
        stored = self._put(writer, values) if values and not self.full else not values
        if drops and not self.full:
            self._put(writer, None)
        return stored

    def _put(self, writer: str, values: list[int] | None) -> bool:
        """Append the values, or the notice that entries are missing: if they do not fit, or with None; False for a notice."""
        self.new.pop(writer, None)  # a session that stored nothing is as if it had not been
        size = len(json.dumps(values, separators=(",", ":")))
        generation = self.generation.setdefault(writer, 1)
        self.live.setdefault(writer, []).append(len(self.seen))
        if values is None or sum(self.sizes.values()) + size > LIMIT:
            self.full = True
            self.seen.append((writer, "truncated", generation, None))
            return False
        self.sizes[writer] = self.sizes.get(writer, 0) + size
        self.seen += [(writer, "entries", generation, value) for value in values]
        return True


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


async def play(url: str, acts: list[tuple[str, str, int]]) -> tuple[list[Any], Model]:
    store, model = make_store(url, SystemClock()), Model()
    await store.open()
    try:
        task = await put_and_claim(store)
        sessions, starts = dict.fromkeys(WRITERS, 1), dict.fromkeys(WRITERS, 0)
        last: dict[str, AppendStream] = {}
        dropped: dict[str, list[int]] = {}
        """The entries of the last row, if they did not fit: sent again, they may."""

        async def send(row: AppendStream) -> None:
            (answer,) = await store.commit([Unit(task.claim, rows=(row,))])
            assert answer.verdict == "done"

        for writer, act, count in acts:
            if act == "resend" and writer in last:
                await send(last[writer])
                if writer in dropped and model.append(writer, dropped[writer]):
                    del dropped[writer]
            elif act in ("again", "wait") and writer in last:
                if act == "wait":
                    await send(_row(task, writer, sessions[writer], starts[writer], [], continues=True))
                sessions[writer] += 1
                starts[writer] = 0
                model.new[writer] = act == "again" and model.new.get(writer) is not False
                del last[writer]
            elif act in ("write", "last", "drop"):  # the last entries before a wait, some of which may be dropped
                values = list(range(starts[writer], starts[writer] + count))
                waits, drops = act != "write", act == "drop"
                last[writer] = _row(task, writer, sessions[writer], starts[writer], values, continues=waits, truncated=drops)
                starts[writer] += count
                await send(last[writer])
                dropped.pop(writer, None)
                if not model.append(writer, values, drops=drops):
                    dropped[writer] = values
                if waits:
                    sessions[writer] += 1
                    starts[writer] = 0
                    model.new[writer] = False
                    del last[writer]
        chunks = await store.streams.list_chunks(task.id, "s", 0, 1000)
        found: list[Any] = []
        for chunk in chunks:
            value = json.loads(chunk.entries)
            values = value if chunk.kind == "entries" else [value]
            found += [(chunk.first_offset + n, (chunk.writer, chunk.kind, chunk.generation, each)) for n, each in enumerate(values)]
        return found, model
    finally:
        await store.close()


def _row(task: Task, writer: str, session: int, start: int, values: list[int], **more: bool) -> AppendStream:
    entries = json.dumps(values, separators=(",", ":"))
    return AppendStream(
        task.id, "s", task.namespace, task.root_id, writer, str(session), start, entries, len(values), LIMIT, **more
    )


def checked(url_now: Callable[[], str], most: int) -> None:
    @settings(max_examples=most, deadline=None, suppress_health_check=list(HealthCheck))
    @given(ACTS)
    def check(acts: list[tuple[str, str, int]]) -> None:
        found, model = asyncio.run(play(url_now(), acts))
        assert found == [(offset, each) for offset, each in enumerate(model.seen) if offset not in model.gone]

    check()


@pytest.mark.postgres
def test_a_stream_matches_a_simple_model(url: str) -> None:
    checked(lambda: url, examples(15 if url.startswith("memory") else 5))
