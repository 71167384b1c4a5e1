"""Big values of runs stand once, apart from rows: nobody loads or writes them who does not look into them."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, make_engine, url_of
from tests.limits import BOUND
from tests.runs.driver import Hands, hands_on

from treadle import Engine
from treadle.evaluator import BlobRef
from treadle.kernel.store.units import PutBlob, PutSteps, Unit
from treadle.settings import Settings

MANUAL = "m" * 20_000

FLOW = [
    (
        "big.afl",
        """
namespace big {
    event facet Read(n: Long, manual: String) => (page: Long)
    workflow All(items: Json, manual: String) => (pages: Json) andThen foreach item in $.items {
        r = Read(n = $.item.n, manual = $.manual)
        yield All(pages = [r.page])
    }
    event facet Echo(text: String) => (text: String, list: Json)
    workflow Chain(text: String) => (out: String, list: Json, size: Json) andThen {
        a = Echo(text = $.text)
        b = Echo(text = a.text)
        c = Echo(text = b.text ++ "!")
        yield Chain(out = c.text, list = a.list)
    } andThen { yield Chain(list = ["end"]) }
}
""",
    )
]


class Meter:
    """Counts what goes to and comes from a store."""

    def __init__(self, store: Any) -> None:
        self.calls: Counter[str] = Counter()
        self.steps_read = self.bytes_read = self.blob_bytes_read = 0
        self.bytes_written = self.blob_bytes_written = self.steps_written = 0
        load_steps, find_blobs, commit = store.runs.load_steps, store.runs.find_blobs, store.commit

        async def loading(*args: Any, **options: Any) -> Any:
            self.calls["load_steps"] += 1
            steps = await load_steps(*args, **options)
            self.steps_read += len(steps)
            self.bytes_read += sum(len(step.document) for step in steps)
            return steps

        async def finding(digests: Any) -> Any:
            self.calls["find_blobs"] += 1
            found = await find_blobs(digests)
            self.blob_bytes_read += sum(map(len, found.values()))
            return found

        async def committing(units: list[Unit]) -> Any:
            self.calls["commit"] += 1
            for unit in units:
                self.bytes_written += sum(len(task.payload) for task in unit.tasks)
                for row in unit.rows:
                    if isinstance(row, PutSteps):
                        self.steps_written += len(row.steps)
                        self.bytes_written += sum(len(step.document) for step in row.steps)
                    elif isinstance(row, PutBlob):
                        self.blob_bytes_written += len(row.value)
            return await commit(units)

        store.runs.load_steps, store.runs.find_blobs, store.commit = loading, finding, committing


@pytest.mark.parametrize("count", [2_500, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_a_shared_parameter_is_stored_once_for_many_items(count: int) -> None:
    async with hands_on("memory://") as hands:
        meter = Meter(hands.engine.kernel.store)
        items = [{"n": number} for number in range(count)]
        listed = sum(len(f'{{"n":{number}}},') for number in range(count))
        run = await hands.engine.start_run(FLOW, "big.All", {"items": items, "manual": MANUAL})
        await hands.advance()  # 500 at a time
        assert meter.blob_bytes_written < listed + len(MANUAL) + 100
        assert meter.blob_bytes_read <= listed + 100  # the list once, for all expansions: it is kept in mind
        assert meter.bytes_written < 3 * count * 1200
        written, read = meter.bytes_written, meter.bytes_read
        while tasks := await hands.claim(limit=250):
            assert "@blob" in tasks[0].payload
            assert len(tasks[0].payload) < 300
            payload = await hands.payload(tasks[0])
            assert (payload["manual"], len(payload)) == (MANUAL, 2)
            numbers = [(await hands.payload(task))["n"] for task in tasks]
            await asyncio.gather(*(hands.settle(task, {"page": n}) for task, n in zip(tasks, numbers, strict=True)))
        assert await hands.engine.run_result(run) == {"pages": list(range(count))}
        assert meter.bytes_read - read < 4 * count * 1200
        assert meter.bytes_written - written < 3 * count * 1200
        assert meter.steps_read < 5 * count
        assert meter.steps_written < 5 * count
        assert meter.blob_bytes_read < 2 * (listed + len(MANUAL)) + 100
        await hands.nothing_is_left(run.id)


async def test_one_item_is_settled_by_reading_a_bounded_number_of_rows() -> None:
    async with hands_on("memory://") as hands:
        run = await hands.engine.start_run(FLOW, "big.All", {"items": [{"n": 1}] * 3000, "manual": MANUAL})
        await hands.advance()
        hands.engine.kernel.run_services.advancer.views.forget(run.id)
        (task,) = await hands.claim(limit=1)
        meter = Meter(hands.engine.kernel.store)
        await hands.settle(task, {"page": 1})
        assert (meter.calls["load_steps"], meter.calls["find_blobs"]) == (1, 0)
        assert meter.steps_read == 4  # root, block, item, step
        assert meter.steps_written == 3  # step, item, block


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ALL)
async def test_large_results_round_trip_in_separate_rows(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    async with hands_on(url_of(kind, request, tmp_path)) as hands:
        text = "é\\" * 6000
        run = await hands.engine.start_run(FLOW, "big.Chain", {"text": text})
        listed = [list(range(5000)), {"@blob": "not a reference", "size": 1}, {"@value": 1}]
        await hands.work(lambda name, payload: {"text": payload["text"], "list": listed, "@blob": {"@blob": "x"}})
        assert await hands.engine.run_result(run) == {"out": f"{text}!", "list": [*listed, "end"]}
        for row in await hands.engine.kernel.runs.list_steps(run.id):
            values = {**row.params, **row.returns}
            assert all(isinstance(value, BlobRef) for name, value in values.items() if name in ("text", "out"))
        rows = {row.path: row for row in await hands.engine.kernel.runs.list_steps(run.id)}
        assert rows["Chain.a"].returns["@blob"] == {"@blob": "x"}
        for step in await hands.engine.kernel.store.runs.list_steps(run.id, None, 100):
            assert len(step.document) < 1500
        for task in await hands.engine.kernel.reads.list_tasks(kind="handler"):
            assert len(task.payload) + len(task.result or "") < 1000
        found = await hands.engine.kernel.runs.get_run(run.id)
        assert len(found.inputs) + len(found.outputs or "") < 1000
        await hands.nothing_is_left(run.id)


async def test_big_results_survive_pause_failure_and_agents(tmp_path: Path) -> None:
    async with hands_on(f"sqlite:///{tmp_path / 'treadle.db'}") as hands:
        text = "x" * 20_000
        run = await hands.engine.start_run(FLOW, "big.Chain", {"text": text})
        task = await hands.claim_one()
        await hands.engine.runs.pause(run.id)
        await hands.settle(task, {"text": text + "1", "list": []})
        (left,) = await hands.inbox(run.id)
        assert len(str(left)) < 1000
        await hands.engine.runs.resume(run.id)
        await hands.advance()
        step = next(row for row in await hands.engine.kernel.runs.list_steps(run.id) if row.path == "Chain.b")
        await hands.engine.kernel.runs.update_step(run.id, step.id, {"list": ["y" * 10_000]})
        assert await hands.engine.kernel.runs.continue_step(run.id, step.id, {"text": text + "2"})
        task = await hands.claim_one()
        payload = await hands.payload(task)
        assert payload["text"] == text + "2!"
        await hands.settle(task, {"text": "short"})
        assert await hands.engine.run_result(run) == {"out": "short", "list": ["end"]}
        again = await hands.engine.runs.fork(run.id, step.id)
        (task,) = await hands.claim()
        assert (await hands.payload(task))["text"] == text + "1"
        assert (await hands.engine.kernel.runs.get_run(again.id)).root_id == run.id


async def test_handlers_get_big_values_whole() -> None:
    engine = make_engine("memory://")
    seen: list[int] = []

    @engine.handler("big.Read")
    async def read(payload: dict[str, Any]) -> dict[str, Any]:
        seen.append(len(payload["manual"]))
        return {"page": payload["n"]}

    async with engine, engine.worker():
        run = await engine.start_run(FLOW, "big.All", {"items": [{"n": 1}, {"n": 2}], "manual": MANUAL})
        assert await engine.run_result(run, timeout=BOUND) == {"pages": [1, 2]}
    assert seen == [20_000, 20_000]


class Hex:
    """A codec that everybody can see through."""

    name = "hex"

    def encode(self, text: str) -> str:
        return text.encode().hex()

    def decode(self, stored: str) -> str:
        return bytes.fromhex(stored).decode()


async def test_with_a_codec_no_value_of_a_run_is_stored_in_plain_text(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'treadle.db'}"
    secret, big = "secret " * 3, "secret " * 3000
    async with Engine(url, settings=Settings(), codec=Hex()) as engine:
        hands = Hands(engine)
        run = await engine.start_run(FLOW, "big.Chain", {"text": secret})
        task = await hands.claim_one()
        await engine.runs.pause(run.id)
        await hands.settle(task, {"text": big, "list": [secret]})
        await engine.runs.resume(run.id)
        stored = "".join((tmp_path / name).read_bytes().decode("latin-1") for name in ("treadle.db", "treadle.db-wal"))
        await hands.work(lambda name, payload: {"text": payload["text"], "list": []})
        assert await engine.run_result(run) == {"out": f"{big}!", "list": [secret, "end"]}
        forked = await engine.runs.fork(run.id, (await engine.kernel.runs.list_steps(run.id))[-1].id)
        await hands.work(lambda name, payload: {"text": payload["text"], "list": []})
        assert (await engine.run_result(forked))["out"] == f"{big}!"
    assert b"secret".hex() in stored
    assert "secret" not in stored
