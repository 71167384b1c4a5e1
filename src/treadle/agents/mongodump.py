"""Imports a dump of the reference implementation's database: flows, handler registrations and finished runs.

Repeating an import changes nothing: flows are identified by their program, handlers by their facet, runs by their id. Imported
runs keep inputs, outputs, errors and steps; their times are those of the import, and the log of each has the original ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import fields, replace
from gzip import GzipFile
from pathlib import Path
from typing import Any, NamedTuple

from treadle.agents.entities import HandlerRegistration
from treadle.agents.modules import check_registration
from treadle.agents.persistence import id_of
from treadle.engine import Engine
from treadle.evaluator import State, StepRow
from treadle.evaluator.records import StepError
from treadle.evaluator.states import StepKind
from treadle.kernel.core import STORE_TIMEOUT
from treadle.kernel.runs.decide import once, store_step
from treadle.kernel.runs.flows import find_workflow
from treadle.kernel.store.units import PutFlow, PutRun, PutSteps, Row, RunTransition, Unit
from treadle.model.errors import InvalidFlow, InvalidInput, MissingDependency, TreadleError
from treadle.model.ids import derived_id
from treadle.model.runs import Run
from treadle.model.states import RunState
from treadle.model.values import encode

Document = dict[str, Any]
_COLLECTIONS = ("flows", "handler_registrations", "runners", "steps")
_ENDS = {
    "completed": ("succeed", RunState.COMPLETED),
    "failed": ("fail", RunState.FAILED),
    "cancelled": ("cancel", RunState.CANCELED),
}


class Imported(NamedTuple):
    """The outcome of one document: `imported`, `unchanged`, or `skipped` for a reason."""

    what: str
    name: str
    outcome: str
    reason: str = ""


class Mongodump:
    """The files of one dump; with `dry_run`, `load` writes nothing."""

    def __init__(self, folder: Path, engine: Engine, *, dry_run: bool = False) -> None:
        try:
            import bson
        except ImportError:
            raise MissingDependency("Dumps are BSON files, which need pymongo: pip install 'treadle[mongodb]'.") from None
        self._bson, self._engine, self._dry_run = bson, engine, dry_run
        self._files = {name: sorted(folder.rglob(f"{name}.bson*")) for name in _COLLECTIONS}
        if not any(self._files.values()):
            raise InvalidInput(f"There is no flows.bson, handler_registrations.bson or runners.bson below {folder}.")

    def read(self, name: str) -> Iterator[Document]:
        """Yield the documents of a collection as plain JSON; ids and dates become text."""
        for path in self._files[name]:
            file: Any
            try:
                with GzipFile(path) if path.suffix == ".gz" else path.open("rb") as file:
                    for document in self._bson.decode_file_iter(file):
                        yield json.loads(json.dumps(document, default=str))
            except (self._bson.errors.BSONError, OSError, EOFError) as error:
                raise InvalidInput(f"{path} is not a complete BSON file: {error}") from error

    async def load(self) -> AsyncIterator[Imported]:
        """Import all documents, one after another."""
        programs: dict[str, Any] = {}
        for flow in self.read("flows"):
            programs[str(flow.get("uuid"))] = flow.get("compiled_ast")
            yield await _imported("flow", _flow_name(flow), self._flow(flow))
        for handler in self.read("handler_registrations"):
            yield await _imported("handler", str(handler.get("facet_name")), self._handler(handler))
        steps: dict[str, list[Document]] = {
            runner["workflow_id"]: [] for runner in self.read("runners") if runner["state"] in _ENDS
        }
        for step in self.read("steps"):
            if step["workflow_id"] in steps:
                steps[step["workflow_id"]].append(step)
        for runner in self.read("runners"):
            program = runner.get("compiled_ast") or programs.get((runner.get("workflow") or {}).get("flow_id", ""))
            yield await _imported("run", str(runner.get("uuid")), self._run(runner, program, steps.get(runner["workflow_id"], [])))

    async def _flow(self, document: Document) -> bool:
        flows, name = self._engine.kernel.flows, _flow_name(document)
        newest = {version.name: version.flow_id for version in await flows.list_versions()}.get(name)
        sources = [(source["name"], source["content"]) for source in document.get("compiled_sources") or ()]
        try:
            flow_id = (await flows.compile_aside(sources))[0].id if sources else ""
        except InvalidFlow:
            if not document.get("compiled_ast"):
                raise
            flow_id = ""
        imported_id = flow_id or flows.complete(document["compiled_ast"])[0].id
        if imported_id != newest and not self._dry_run:
            if flow_id:
                await flows.publish(name, sources, actor="import")
            else:
                await flows.adopt(document["compiled_ast"])
                await self._engine.kernel.store.operators.publish_flow(
                    self._engine.kernel.settings.namespace, name, imported_id, "import"
                )
        return imported_id != newest

    async def _handler(self, document: Document) -> bool:
        attributes = {field.name: document[field.name] for field in fields(HandlerRegistration) if field.name in document}
        registration = HandlerRegistration(**{**attributes, "created": 0, "updated": 0})
        check_registration(registration)
        namespace = self._engine.kernel.settings.namespace
        stored = [
            replace(handler, created=0, updated=0) for handler in await self._engine.kernel.store.operators.list_handlers(namespace)
        ]
        if registration not in stored and not self._dry_run:
            await self._engine.kernel.store.operators.save_handler(namespace, registration)
        return registration not in stored

    async def _run(self, document: Document, program: Document | None, steps: list[Document]) -> bool:
        if document["state"] not in _ENDS:
            raise InvalidInput(f"The run is {document['state']}; only finished runs are imported. Start it again.")
        engine, run_id = self._engine, id_of(document["uuid"])
        if await engine.kernel.store.runs.find(run_id) is not None:
            return False
        if not program:
            raise InvalidInput("Neither the run nor its flow has a compiled program.")
        flow, loaded = engine.kernel.flows.complete(program)
        workflow = find_workflow(loaded, document["workflow"]["name"]).qualified_name
        if self._dry_run:
            return True
        rows = [_row(run_id, workflow, number, step) for number, step in enumerate(steps)]
        outputs = next((row.returns for row in rows if row.kind is StepKind.WORKFLOW), {})
        errors = [row.error.text for row in rows if row.error is not None and row.kind is StepKind.STEP]
        values, limit = engine.kernel.value_store, engine.kernel.settings.payload_limit
        parameters = {parameter["name"]: parameter.get("value") for parameter in document.get("parameters") or ()}
        inputs, blobs = values.pack(parameters, run_id, "inputs", limit)
        packed, more = values.pack(outputs, run_id, "outputs", limit)
        transition, state = _ENDS[document["state"]]
        error = encode({"code": "failed", "message": (errors or ["failed"])[0]}, "error") if state is RunState.FAILED else None
        times = encode({key: document.get(key) for key in ("start_time", "end_time", "duration", "user")}, "times")
        own = engine.kernel.settings.namespace
        run = Run(id=run_id, namespace=own, flow_id=flow.id, workflow=workflow, inputs=inputs, root_id=run_id, steps=len(rows))
        stored = [store_step(row, values, run_id) for row in rows]
        done = packed if state is RunState.COMPLETED else None
        writes: list[Row] = [
            *(*blobs, *more, *(blob for *_, step_blobs in stored for blob in step_blobs)),
            PutFlow(flow),
            PutRun(run),
            RunTransition(run_id, "start", RunState.PENDING, RunState.RUNNING, actor="import", data=times),
            PutSteps(run_id, tuple(step for step, *_ in stored), len(stored)),
            RunTransition(run_id, transition, RunState.RUNNING, state, actor="import", outputs=done, error=error, data=error),
        ]
        await engine.kernel.committer.submit(Unit(rows=once(writes)), STORE_TIMEOUT)
        return True


async def _imported(what: str, name: str, work: Coroutine[Any, Any, bool]) -> Imported:
    try:
        return Imported(what, name, "imported" if await work else "unchanged")
    except (TreadleError, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = str(error) if isinstance(error, TreadleError | ValueError) else f"{type(error).__name__}: {error}"
        return Imported(what, name, "skipped", reason.partition("\n")[0])


def _flow_name(document: Document) -> str:
    """Return the name of a flow, with characters that names do not allow replaced."""
    name = document.get("name")
    text = str(name.get("name") if isinstance(name, dict) else name).removesuffix(".afl")
    return re.sub(r"^(?=\d)|^$", "_", re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-"))


def _row(run_id: str, workflow: str, number: int, step: Document) -> StepRow:
    """Return a step of the reference as a row directly below the root."""
    is_root, name = step.get("object_type") == "Workflow", str(step.get("statement_name") or f"block-{number}")
    place, kind = (workflow, StepKind.WORKFLOW) if is_root else (f"{workflow}/{name}#{number}", StepKind.STEP)
    step_id, problem = derived_id(run_id, place), (step.get("transition") or {}).get("error")
    attributes = step.get("attributes") or {}
    params, returns = (
        {key: attribute.get("value") for key, attribute in (attributes.get(part) or {}).items()} for part in ("params", "returns")
    )
    return StepRow(
        id=step_id, run_id=run_id, parent_id=None if is_root else derived_id(run_id, workflow), place=place,
        statement_id=f"imported:{step.get('statement_id')}", name=workflow if is_root else name,
        kind=kind if is_root or step.get("facet_name") else StepKind.BLOCK, facet=step.get("facet_name") or None,
        state=State(step["state"]), ordinal=number, params=params, returns=returns,
        error=StepError(message=str(problem), type="failed", path=name, step_id=step_id) if problem else None,
    )  # fmt: skip
