"""`treadle import mongodump`: flows, handler registrations and finished runs from dumps that these tests write."""

from __future__ import annotations

import gzip
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bson
import pytest
from tests.commands import Treadle
from tests.engines import SHARED, make_engine, url_of
from tests.lang.test_completion import as_reference

from treadle import Engine
from treadle.agents.mongodump import Imported, Mongodump
from treadle.lang import compile_sources
from treadle.model.errors import InvalidInput, MissingDependency, Refused

FLOW = """namespace billing {
    event facet Pay(amount: Double) => (id: String)
    workflow Checkout(total: Double) => (receipt: String) andThen {
        p = Pay(amount = $.total)
        yield Checkout(receipt = p.id)
    }
}"""
AST = as_reference(compile_sources([("billing.afl", FLOW)]).program)


@pytest.fixture
def treadle(tmp_path: Path) -> Treadle:
    return Treadle(tmp_path)


def attributes(**values: Any) -> dict[str, Any]:
    return {name: {"name": name, "value": value, "type_hint": "Any"} for name, value in values.items()}


def step(run: str, name: str, facet: str, state: str, error: str | None = None, **parts: Any) -> dict[str, Any]:
    kind = "Workflow" if facet.endswith("Checkout") else "VariableAssignment"
    return {
        "_id": bson.ObjectId(),
        "uuid": f"{run}-{name}",
        "object_type": kind,
        "workflow_id": run,
        "statement_name": name,
        "facet_name": facet,
        "state": f"state.statement.{state}",
        "transition": {"error": error},
        "attributes": {part: attributes(**values) for part, values in parts.items()},
    }


def runner(run: str, state: str, **more: Any) -> dict[str, Any]:
    return {
        "uuid": f"runner-{run}",
        "workflow_id": run,
        "workflow": {"name": "Checkout", "flow_id": "flow-1"},
        "parameters": [{"name": "total", "value": 2.5, "type_hint": "Double"}],
        "state": state,
        "start_time": bson.Int64(1_700_000_000_000),
        "end_time": bson.Int64(1_700_000_001_000),
        **more,
    }


DUMP: dict[str, list[dict[str, Any]]] = {
    "flows": [
        {
            "uuid": "flow-1",
            "name": {"name": "billing.afl", "path": "/x", "uuid": "n"},
            "compiled_sources": [{"name": "billing.afl", "content": FLOW, "language": "afl"}],
            "compiled_ast": AST,
        },
        {"uuid": "flow-2", "name": {"name": "only compiled"}, "compiled_ast": AST},
        {"uuid": "flow-3", "name": {"name": "broken"}, "compiled_sources": [{"name": "b", "content": "nonsense"}]},
    ],
    "handler_registrations": [
        {"facet_name": "billing.Pay", "module_uri": "handlers.billing", "entrypoint": "pay", "timeout_ms": 5000, "created": 1},
        {"facet_name": "no name", "module_uri": "x"},
    ],
    "runners": [
        runner("w1", "completed", _id=bson.ObjectId(), seen=datetime(2026, 1, 1, tzinfo=UTC)),
        runner("w2", "failed", compiled_ast=AST),
        runner("w3", "cancelled"),
        runner("w4", "running"),
        runner("w5", "completed", workflow={"name": "Lost", "flow_id": "gone"}),
    ],
    "steps": [
        step("w1", "Checkout", "billing.Checkout", "Complete", params={"total": 2.5}, returns={"receipt": "txn"}),
        step("w1", "p", "billing.Pay", "Complete", params={"amount": 2.5}, returns={"id": "txn"}),
        step("w2", "Checkout", "billing.Checkout", "Error", error="1 block(s) errored"),
        step("w2", "p", "billing.Pay", "Error", error="card declined", params={"amount": 2.5}),
    ],
}


def write(folder: Path, *, packed: bool = False) -> Path:
    """Write the files as mongodump does: one per collection, in a folder for the database."""
    made = folder / "dump" / "afl"
    made.mkdir(parents=True)
    for name, documents in DUMP.items():
        data = b"".join(bson.encode(each) for each in documents)
        path = made / f"{name}.bson{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(data) if packed else data)
        (made / f"{name}.metadata.json").write_text("{}")
    return folder / "dump"


def summary(found: list[Imported]) -> dict[str, dict[str, int]]:
    counts = Counter((each.what, each.outcome) for each in found)
    return {what: {outcome: counts[what, outcome] for outcome in IMPORTED["run"]} for what in IMPORTED}


IMPORTED = {
    "flow": {"imported": 2, "unchanged": 0, "skipped": 1},
    "handler": {"imported": 1, "unchanged": 0, "skipped": 1},
    "run": {"imported": 3, "unchanged": 0, "skipped": 2},
}
AGAIN = {what: {**by, "imported": 0, "unchanged": by["imported"]} for what, by in IMPORTED.items()}


@pytest.mark.postgres
@pytest.mark.parametrize("kind", SHARED)
async def test_a_dump_is_imported_once(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    folder = write(tmp_path, packed=kind == "postgres")
    async with make_engine(url_of(kind, request, tmp_path)) as engine:
        dump = Mongodump(folder, engine)
        assert summary([each async for each in Mongodump(folder, engine, dry_run=True).load()]) == IMPORTED
        assert (await engine.kernel.flows.list_versions(), await engine.kernel.run_reads.list_runs()) == ([], [])
        assert summary([each async for each in dump.load()]) == IMPORTED
        found = [each async for each in dump.load()]
        assert summary(found) == AGAIN
        assert summary([each async for each in Mongodump(folder, engine, dry_run=True).load()]) == AGAIN
        reasons = {each.name: each.reason for each in found if each.outcome == "skipped"}
        assert "running; only finished runs" in reasons["runner-w4"]
        assert "compiled program" in reasons["runner-w5"]
        assert sorted(each.name for each in await engine.kernel.flows.list_versions()) == ["billing", "only-compiled"]
        (handler,) = await engine.kernel.store.operators.list_handlers(engine.kernel.settings.namespace)
        assert (handler.facet_name, handler.entrypoint, handler.timeout_ms) == ("billing.Pay", "pay", 5000)
        runs = {run.state: run for run in await engine.kernel.run_reads.list_runs()}
        assert sorted(runs) == ["canceled", "completed", "failed"]
        done = runs["completed"]
        assert done.workflow == "billing.Checkout"
        assert (await engine.kernel.runs.inputs(done), await engine.kernel.runs.outputs(done)) == (
            {"total": 2.5},
            {"receipt": "txn"},
        )
        status = await engine.kernel.runs.status(runs["failed"].id)
        assert (status.status, status.error) == ("ERROR", "p: card declined")
        steps = [
            (shown.row.name, shown.row.facet, str(shown.row.status)) for shown in await engine.kernel.run_reads.list_steps(done.id)
        ]
        assert steps == [("billing.Checkout", "billing.Checkout", "completed"), ("p", "billing.Pay", "completed")]
        failed = await engine.kernel.run_reads.list_steps(runs["failed"].id)
        with pytest.raises(Refused, match="rerun it"):
            await engine.runs.retry(runs["failed"].id, step=failed[-1].row.id)
        assert (await engine.runs.rerun(runs["failed"].id)).created
        assert (await engine.kernel.verify()).problems == ()


def test_the_command_shows_a_summary_and_the_problems(treadle: Treadle) -> None:
    write(treadle.folder)
    trial = treadle.json("import", "mongodump", "dump", "--dry-run")
    assert (trial["dry_run"], trial["runs"]) == (True, IMPORTED["run"])
    done = treadle.json("import", "mongodump", "dump")
    assert (done["flows"], done["handlers"]) == (IMPORTED["flow"], IMPORTED["handler"])
    assert {each["name"] for each in done["problems"]} == {"broken", "no name", "runner-w4", "runner-w5"}
    assert "skipped run runner-w4" in treadle("import", "mongodump", "dump").out
    assert treadle("import", "mongodump", "nowhere", "--json").error["code"] == "invalid_input"


def test_a_folder_without_a_dump_and_a_damaged_file_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"flows\.bson"):
        Mongodump(tmp_path, Engine("memory://"))
    path = write(tmp_path) / "afl" / "flows.bson"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InvalidInput, match=r"flows\.bson is not a complete BSON file"):
        list(Mongodump(tmp_path, Engine("memory://")).read("flows"))


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bson", None)
    with pytest.raises(MissingDependency, match=r"treadle\[mongodb\]"):
        Mongodump(tmp_path, Engine("memory://"))
