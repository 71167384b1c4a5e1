"""Values at rest: with a codec nothing that users wrote is readable in the file; what cannot be read says so and stays."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Treadle
from tests.engines import ALL, url_of
from tests.limits import BOUND

from treadle import Context, Engine, NonRetryable, TaskFailed, Waiting
from treadle.engine.codecs import Zlib
from treadle.kernel.store.process import SystemIds
from treadle.kernel.store.records import ChangeRecord, PutItems, PutMessage, PutOutcome, PutRecord, RecordFilter
from treadle.kernel.store.units import Keep, PutRun, Unit
from treadle.model.errors import TreadleError, UnreadableValue
from treadle.model.names import QueueKey
from treadle.model.records import EffectOutcome, Message, Record
from treadle.model.runs import Run
from treadle.model.tasks import LogLine, NewTask
from treadle.settings import Settings

MARKER = "gooseberry-4711"

FLOW = """
namespace shop {
  event facet Charge(order: String) => (receipt: String)
  workflow Buy(order: String) => (receipt: String) andThen {
    paid = Charge(order = $.order)
    yield Buy(receipt = paid.receipt)
  }
}
"""


class Secret:
    """A toy cipher: every text is xored with a stream of its own, and carries a checksum. Do not use it for anything."""

    def __init__(self, key: str, name: str = "secret") -> None:
        self.name = name
        self._key = key.encode()
        self._nonces = count()

    def _stream(self, nonce: bytes, length: int) -> bytes:
        blocks = (hashlib.sha256(self._key + nonce + number.to_bytes(8, "big")).digest() for number in range(length // 32 + 1))
        return b"".join(blocks)[:length]

    def encode(self, text: str) -> str:
        data = text.encode()
        data = hashlib.sha256(self._key + data).digest()[:8] + data
        nonce = next(self._nonces).to_bytes(8, "big")
        mixed = bytes(a ^ b for a, b in zip(data, self._stream(nonce, len(data)), strict=True))
        return base64.b64encode(nonce + mixed).decode()

    def decode(self, stored: str) -> str:
        raw = base64.b64decode(stored, validate=True)
        nonce, mixed = raw[:8], raw[8:]
        data = bytes(a ^ b for a, b in zip(mixed, self._stream(nonce, len(mixed)), strict=True))
        if hashlib.sha256(self._key + data[8:]).digest()[:8] != data[:8]:
            raise ValueError("wrong key")
        return data[8:].decode()


def make(url: str, codec: Any = None, **settings: Any) -> Engine:
    engine = Engine(url, settings=Settings(**settings), codec=codec)

    @engine.handler("echo")
    async def echo(payload: Any, ctx: Context) -> dict[str, Any]:
        ctx.log(f"line about {MARKER}", about=MARKER)
        ctx.progress(0.5, f"half of {MARKER}")
        return {"back": payload}

    @engine.handler("fail", retry=1)
    async def fail(payload: Any, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise RuntimeError(f"not yet {MARKER}")
        raise NonRetryable(f"never {MARKER}")

    @engine.handler("wait")
    async def wait(payload: Any, ctx: Context) -> Any:
        return {"was": ctx.checkpoint} if ctx.checkpoint else Waiting(1, {"left": MARKER})

    @engine.handler("shop.Charge")
    async def charge(payload: Any) -> dict[str, Any]:
        return {"receipt": f"{payload['order']} paid"}

    return engine


async def do_everything(engine: Engine) -> dict[str, Any]:
    """Use all that stores text: payloads small and big, results, errors, checkpoints, progress, lines, flows, runs."""
    async with engine.worker(), asyncio.timeout(BOUND):
        small = await engine.enqueue("echo", {"text": MARKER})
        big = await engine.enqueue("echo", {"text": MARKER * 5000})
        failing = await engine.enqueue("fail", {"text": MARKER})
        waiting = await engine.enqueue("wait", {"text": MARKER})
        run = await engine.start_run([("buy.afl", FLOW.replace("paid", f"paid // {MARKER}\n", 0))], None, {"order": MARKER})
        ends = {
            "small": await engine.result(small),
            "big": await engine.result(big),
            "waiting": await engine.result(waiting),
            "run": await engine.run_result(run),
        }
        with pytest.raises(TaskFailed, match=MARKER):
            await engine.result(failing)
    canceled = await engine.enqueue("nobody", {"text": MARKER})
    await engine.cancel(canceled, reason=f"because of {MARKER}")
    await write_entities(engine)
    lines = await engine.kernel.reads.list_lines(small.id)
    transitions = await engine.kernel.reads.list_transitions(failing.id)
    seen = [transition.data or "" for transition in transitions]
    assert MARKER in lines[0].message
    assert all(MARKER in data for data in seen)
    return ends


async def write_entities(engine: Engine) -> None:
    """Records with items, mail and outcomes, as the engine's store stores them, and as it reads them."""
    store, ids, text = engine.kernel.store, SystemIds(), f'{{"text":"{MARKER}"}}'
    run = Run(id=(run_id := ids.new_id()), flow_id="1", workflow="pay", root_id=run_id)
    record = Record(id=ids.new_id(), entity="approval", name=f"n{run_id}", state="pending", document=text)
    mail = Message(id=ids.new_id(), run_id=run_id, document=text)
    outcome = EffectOutcome(idempotency_key=run_id, tool_call_id="c", status="succeeded", response=text, root_id=run_id)
    rows = (PutRun(run), PutRecord(record), PutItems(record.id, (("k", text),)), PutMessage(mail), PutOutcome(outcome))
    await store.commit([Unit(rows=rows)])
    vote = ChangeRecord(record.id, 0, text, "vote", "pending", "pending", actor="ann", data=text)
    await store.commit([Unit(rows=(vote,))])
    task = NewTask(id=ids.new_id(), queue=QueueKey("default", "handler", "default", "kept"))
    await store.commit([Unit(tasks=(task,))])
    (kept,) = await store.tasks.claim(list((await store.tasks.queue_ids([task.queue])).values()), "me", 60_000, 1)
    await store.commit([Unit(kept.claim, Keep(text, "tool_call.unknown", text))])
    found = [await store.records.find(record.id), await store.records.find_named("default", "approval", f"n{run_id}")]
    found += await store.records.list_matching(RecordFilter("approval"), 10)
    assert [each.document for each in found if each] == [text] * 3
    assert await store.records.list_items(record.id, None, 10) == [("k", text)]
    assert await store.records.list_items(record.id, keys=["k"]) == [("k", text)]
    assert [each.document for each in await store.records.list_messages(run_id, 10)] == [text]
    assert [each.response for each in await store.records.find_outcomes([run_id])] == [text]
    line = LogLine(task_id=task.id, at=1, level="info", message=text, details=text, run_id=run_id)
    await store.log.append_lines([line])
    assert [each for _, each in await store.log.page_run_lines(run_id, 10)] == [line]
    assert [transition.data for entity in (record.id, kept.id) for transition in await store.log.list_transitions(entity)] == [
        text
    ] * 2


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ALL)
async def test_every_operation_works_with_a_codec(request, tmp_path, kind):
    async with make(url_of(kind, request, tmp_path), Secret("key")) as engine:
        ends = await do_everything(engine)
        assert (await engine.kernel.verify()).problems == ()
    assert ends["small"] == {"back": {"text": MARKER}}
    assert ends["big"] == {"back": {"text": MARKER * 5000}}
    assert ends["waiting"] == {"was": {"left": MARKER}}
    assert ends["run"] == {"receipt": f"{MARKER} paid"}


async def test_no_user_text_is_readable_in_the_file_or_its_log(tmp_path):
    path = tmp_path / "treadle.db"
    async with make(f"sqlite:///{path}", Secret("key")) as engine:
        await do_everything(engine)
        found = {each.name: _readable(each) for each in tmp_path.iterdir()}
        assert any(each.endswith("-wal") for each in found)
    found |= {each.name: _readable(each) for each in tmp_path.iterdir()}
    assert {name for name, readable in found.items() if readable} == set()


def _readable(path: Path) -> bool:
    return MARKER.encode() in path.read_bytes()


async def test_without_a_codec_stored_values_are_readable(tmp_path):
    path = tmp_path / "treadle.db"
    async with make(f"sqlite:///{path}") as engine:
        await do_everything(engine)
    assert _readable(path)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_values_stored_without_a_codec_are_read_with_one(request, tmp_path, kind):
    url = url_of(kind, request, tmp_path)
    async with make(url) as before:
        old = await before.enqueue("echo", {"text": MARKER})
        big = await before.enqueue("echo", {"text": MARKER * 5000})
    async with make(url, Secret("key")) as after, after.worker(), asyncio.timeout(BOUND):
        assert await after.result(old) == {"back": {"text": MARKER}}
        assert await after.result(big) == {"back": {"text": MARKER * 5000}}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("other", [None, Secret("other key"), Zlib()], ids=["none", "another key", "another codec"])
async def test_a_codec_that_cannot_decode_an_old_value_reports_it_without_a_write(request, tmp_path, kind, other):
    url = url_of(kind, request, tmp_path)
    async with make(url, Secret("key")) as engine, engine.worker(), asyncio.timeout(BOUND):
        done = await engine.enqueue("echo", {"text": MARKER})
        await engine.result(done)
    async with make(url, other) as stranger:
        stored = (await stranger.kernel.reads.get_task(done)).payload
        with pytest.raises(UnreadableValue, match="codec"):
            await stranger.result(done)
        with pytest.raises(UnreadableValue):
            await stranger.kernel.value_store.unpack(stored)
    async with make(url, Secret("key")) as engine:
        assert (await engine.kernel.reads.get_task(done)).payload == stored
        assert await engine.result(done) == {"back": {"text": MARKER}}


async def test_a_task_with_an_unreadable_payload_is_dead_until_retried_with_the_right_codec(tmp_path):
    url = f"sqlite:///{tmp_path / 't.db'}"
    async with make(url, Secret("key")) as engine:
        task = await engine.enqueue("echo", {"text": MARKER})
    async with make(url, Secret("other key")) as stranger, stranger.worker(), asyncio.timeout(BOUND):
        with pytest.raises(TreadleError, match="unreadable_value"):
            await stranger.result(task)
    async with make(url, Secret("key")) as engine, engine.worker(), asyncio.timeout(BOUND):
        await engine.retry(task)
        assert await engine.result(task) == {"back": {"text": MARKER}}


def test_the_command_line_marks_unreadable_task_values(treadle: Treadle):
    async def leave() -> tuple[str, str]:
        async with make(f"sqlite:///{Path(treadle.folder, 'treadle.db')}", Secret("key")) as engine:
            failing = await engine.enqueue("fail", {"text": MARKER})
            async with engine.worker(), asyncio.timeout(BOUND):
                await asyncio.gather(engine.result(failing), return_exceptions=True)
            return failing.id, (await engine.enqueue("echo", {"text": MARKER})).id

    failing, live = asyncio.run(leave())
    shown = treadle.json("tasks", "show", failing)
    assert shown["error"]["code"] == shown["payload"]["@unreadable"] == "unreadable_value"
    assert shown["state"] == "failed"
    for arguments in (["tasks", "show", live], ["tasks", "list"], ["dlq", "show"], ["dlq", "list"], ["store", "verify"]):
        assert treadle(*arguments).code == 0, arguments
    assert MARKER not in treadle("tasks", "show", failing).out
    assert treadle("tasks", "cancel", live).code == 0


def test_the_command_line_shows_runs_with_unreadable_values(treadle: Treadle):
    async def leave() -> tuple[str, str]:
        async with make(f"sqlite:///{Path(treadle.folder, 'treadle.db')}", Secret("key")) as engine:
            done = await engine.start_run([("buy.afl", FLOW)], None, {"order": MARKER})
            async with engine.worker(), asyncio.timeout(BOUND):
                await engine.run_result(done)
            return done.id, (await engine.start_run([("buy.afl", FLOW)], None, {"order": MARKER})).id

    for run_id, state in zip(asyncio.run(leave()), ("completed", "running"), strict=True):
        shown = treadle.json("runs", "show", run_id)
        assert (shown["state"], shown["inputs"]["@unreadable"]) == (state, "unreadable_value")
        assert [(row["name"], row["error"]["type"]) for row in shown["step_rows"] if row["facet"] == "shop.Charge"] == [
            ("paid", "unreadable_value")
        ]
        assert MARKER not in treadle("runs", "show", run_id).out


def test_the_command_line_shows_big_values_whole(treadle: Treadle):
    task_id = treadle.json("enqueue", "greet", "--payload", f'{{"text": "{"x" * 20_000}"}}')["id"]
    assert treadle.json("tasks", "show", task_id)["payload"] == {"text": "x" * 20_000}


@pytest.mark.parametrize("text", ["", "{}", "x" * 511, "x" * 5000, '{"ü":"€"}' * 200, "".join(map(chr, range(32, 1000)))])
def test_zlib_round_trips_text(text):
    codec = Zlib()
    stored = codec.encode(text)
    assert codec.decode(stored) == text
    assert len(stored) <= len(text) + 1


def test_zlib_compresses_repeated_text_and_rejects_foreign_input():
    assert len(Zlib().encode('{"a":1},' * 1000)) < 500
    for stored in ("", "x", "znothing"):
        with pytest.raises(Exception):  # noqa: B017
            Zlib().decode(stored)
