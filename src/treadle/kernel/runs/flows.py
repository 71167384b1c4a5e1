"""Flows: AFL sources compiled together, identified by a digest of their meaning, and published under names.

Before a run starts, its inputs are checked against the workflow's parameters (D59), and missing handlers are listed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from treadle.api.flows import SourceText
from treadle.kernel.core import Core, Service
from treadle.kernel.operations import operation_entry
from treadle.kernel.queue.why import shown_server_state
from treadle.kernel.store.queries import RunFilter
from treadle.kernel.store.units import PutFlow, Unit
from treadle.lang.nodes import Facet, OptionalType, Param
from treadle.lang.program import Program, misfits
from treadle.lang.types import words as type_words
from treadle.model.errors import (
    InvalidFlow,
    InvalidInput,
    NotFound,
    UnreadableValue,
    not_found,
)
from treadle.model.names import check_name, short_name
from treadle.model.runs import Flow, FlowVersion
from treadle.model.tasks import Server
from treadle.model.values import Json, decode, encode, shown

if TYPE_CHECKING:
    from treadle.lang.compiler import Compiled

SOURCES_LIMIT = 512 * 1024
"""Characters of AFL that one call may send: compiling that many already takes seconds."""
Source = tuple[str, str]
"""A name (usually a file's) and AFL text."""

_SOURCES_LIMIT = 64 * 1024 * 1024
_PROGRAMS = 64
_COMPILED_LIMIT = 4 * 1024 * 1024
"""Limit on the characters of sources with cached programs; a program takes much more memory."""

T = TypeVar("T")
R = TypeVar("R")
Made = tuple[Flow, Program, "Compiled"]
_Key = tuple[tuple[Source, ...], bool]
"""Sources, and whether they are compiled strictly."""


class Flows(Service):
    """Compiles, stores and finds the flows of one namespace; caches programs in use."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._programs: OrderedDict[str, Program] = OrderedDict()
        self._compiled: OrderedDict[_Key, Made] = OrderedDict()
        self._adopted: OrderedDict[str, None] = OrderedDict()
        """Flows recently adopted here, about to be run: they belong to this namespace regardless of the first to store them."""
        self._working = asyncio.Lock()

    def compile(self, sources: Sequence[Source], *, strict: bool = False) -> tuple[Flow, Program, Compiled]:
        """Compile the sources into a flow that is not stored yet; raises `InvalidFlow` with all diagnostics.

        If `strict`, warnings are errors, and results of handlers must fit their declarations.
        """
        key = _key(sources, strict=strict)
        cached = self._compiled.get(key)
        if cached is None:
            return self._keep(key, self._make(key))
        self._compiled.move_to_end(key)
        return cached

    async def compile_aside(self, sources: Sequence[Source], *, strict: bool = False) -> tuple[Flow, Program, Compiled]:
        """Like `compile`, in a thread: large sources take seconds, during which the event loop must renew leases."""
        key = _key(sources, strict=strict)
        if key in self._compiled:
            return self.compile(sources, strict=strict)
        return self._keep(key, await self.aside(self._make, key))

    async def check_aside(self, sources: Sequence[Source], *, strict: bool = False) -> Compiled:
        """Compile the sources in a thread and return the program or the diagnostics."""
        key = _key(sources, strict=strict)
        cached = self._compiled.get(key)
        return await self.aside(_check, key) if cached is None else cached[2]

    async def aside(self, work: Callable[[T], R], given: T) -> R:
        """Run long work on sources in a thread, one at a time."""
        async with self._working:
            return await asyncio.to_thread(work, given)

    def _make(self, key: _Key) -> Made:
        compiled = _valid(_check(key))
        flow = Flow(
            id=compiled.digest,
            namespace=self._namespace,
            sources=self._value_store.encode_text(encode([list(source) for source in key[0]], "sources", _SOURCES_LIMIT)),
            program=self._value_store.encode_text(encode(compiled.program, "program", _SOURCES_LIMIT)),
        )
        return flow, Program.load(compiled.program), compiled

    def _keep(self, key: _Key, compiled: Made) -> Made:
        """Cache the result, within the limit."""
        flow, program, _ = compiled
        self._remember(flow.id, program)
        self._compiled[key] = compiled
        while len(self._compiled) > _PROGRAMS or sum(map(_size, self._compiled)) > _COMPILED_LIMIT:
            self._compiled.popitem(last=False)
        return compiled

    async def publish(self, name: str, sources: Sequence[Source], *, actor: str = "operator", strict: bool = False) -> FlowVersion:
        """Store the flow under the next version of the name; runs in progress keep their pinned version.

        A stored flow that is damaged is replaced.
        """
        check_name(name, "flow name")
        flow, _, _ = await self.compile_aside(sources, strict=strict)
        stored = await self._store.runs.find_flow(flow.id)
        anew = stored is not None and not self._is_readable(stored)
        await self._committer.submit(Unit(rows=(PutFlow(flow, anew),)), self._patience)
        newest = await self._store.runs.find_flow_version(self._namespace, name)
        before = None if newest is None else {"flow_id": newest.flow_id, "version": newest.version}
        after = {"flow_id": flow.id, "version": 1 if newest is None else newest.version + 1}
        entry = operation_entry(self._core, "flows.publish", name, actor, before, after)
        return await self._store.operators.publish_flow(self._namespace, name, flow.id, actor, entry)

    def complete(self, program: Mapping[str, Any]) -> tuple[Flow, Program]:
        """Complete a compiled program that came without sources; raises `InvalidProgram` if it is invalid."""
        from treadle.lang.compiler import digest_of
        from treadle.lang.emit import encode_program

        loaded = Program.load(program)
        flow = Flow(
            id=digest_of(encode_program(loaded, locations=False)),
            namespace=self._namespace,
            sources=self._value_store.encode_text("[]"),
            program=self._value_store.encode_text(encode(loaded.dump(), "program", _SOURCES_LIMIT)),
        )
        return flow, loaded

    async def adopt(self, program: Mapping[str, Any]) -> Flow:
        """Store a compiled program that came without sources; see `complete`."""
        flow, loaded = self.complete(program)
        await self._committer.submit(Unit(rows=(PutFlow(flow),)), self._patience)
        self._remember(flow.id, loaded)
        self._adopted[flow.id] = None
        while len(self._adopted) > _PROGRAMS:
            self._adopted.popitem(last=False)
        return flow

    async def get_flow(self, name: str, version: int | None = None) -> Flow:
        """The flow of a digest, or of a name published in this namespace (its newest version by default).

        A flow is stored once, whatever the namespace. It belongs to the namespace that stored it first and to those that have
        published or run it; others do not find it.
        """
        flow = await self._store.runs.find_flow(name) if version is None else None
        if flow is not None and not await self._is_own(flow):
            flow = None
        if flow is None and (version is None or 0 < version < 2**31):
            published = await self._store.runs.find_flow_version(self._namespace, name, version)
            flow = None if published is None else await self._store.runs.find_flow(published.flow_id)
        if flow is None:
            raise not_found("flow", name if version is None else f"{name} version {version}")
        return flow

    async def _is_own(self, flow: Flow) -> bool:
        """Whether this namespace stored, published or ran the flow."""
        if flow.namespace == self._namespace or flow.id in self._adopted:
            return True
        if await self._store.runs.list_matching(RunFilter(namespace=self._namespace, flow_ids=(flow.id,)), 1):
            return True
        for newest in await self.list_versions():
            if any(version.flow_id == flow.id for version in await self.list_versions(newest.name)):
                return True
        return False

    async def list_versions(self, name: str | None = None) -> list[FlowVersion]:
        """All versions of a name, or the newest of every name."""
        return await self._store.runs.list_flow_versions(self._namespace, name)

    async def list_ids(self, name: str) -> list[str]:
        """The digests of all versions of a name, or the digest itself; raises `NotFound`."""
        if versions := await self._store.runs.list_flow_versions(self._namespace, name):
            return list(dict.fromkeys(version.flow_id for version in versions))
        return [(await self.get_flow(name)).id]

    def sources(self, flow: Flow) -> list[Source]:
        """The sources of the flow."""
        try:
            decoded = decode(self._value_store.plain(flow.sources))
            return msgspec.convert(decoded, list[tuple[str, str]])
        except (UnreadableValue, msgspec.ValidationError) as error:
            raise UnreadableValue(f"The sources of the flow {flow.id} cannot be read: {error} Publish the flow again.") from None

    async def program(self, flow_id: str) -> Program:
        """The compiled program of a stored flow."""
        if (program := self._programs.get(flow_id)) is not None:
            self._programs.move_to_end(flow_id)
            return program
        flow = await self._store.runs.find_flow(flow_id)
        if flow is None:
            raise not_found("flow", flow_id)
        program = self._load(flow)
        self._remember(flow_id, program)
        return program

    def _load(self, flow: Flow) -> Program:
        try:
            return Program.load(decode(self._value_store.plain(flow.program)))
        except UnreadableValue:
            raise
        except Exception as error:  # the loader trusts what it wrote
            what = f"The program of the flow {flow.id} cannot be read: {error}."
            raise UnreadableValue(f"{what} It is damaged, or a newer version wrote it.") from None

    def check(self, flow: Flow) -> None:
        """Raise `UnreadableValue` for a stored flow whose sources or program cannot be read."""
        self.sources(flow)
        self._load(flow)

    def _is_readable(self, flow: Flow) -> bool:
        """Whether the flow can be read here, or perhaps by a process that has its codec."""
        try:
            self.check(flow)
        except UnreadableValue:
            return any(map(self._value_store.is_foreign, (flow.sources, flow.program)))
        return True

    def _remember(self, flow_id: str, program: Program) -> None:
        self._programs[flow_id] = program
        while len(self._programs) > _PROGRAMS:
            self._programs.popitem(last=False)


def _key(sources: Sequence[Source], *, strict: bool) -> _Key:
    return tuple((name, text) for name, text in sources), strict


def _size(key: _Key) -> int:
    return sum(len(text) for _, text in key[0])


def _check(key: _Key) -> Compiled:
    from treadle.lang import compile_sources  # only callers that compile load the parser

    compiled = compile_sources(key[0])
    return compiled.strictly() if key[1] else compiled


def _valid(compiled: Compiled) -> Compiled:
    if not compiled.ok:
        rendered = "\n\n".join(diagnostic.render() for diagnostic in compiled.diagnostics)
        raise InvalidFlow(f"The sources do not compile.\n{rendered}", compiled.diagnostics)
    return compiled


def find_workflow(program: Program, name: str | None) -> Facet:
    """The workflow of that qualified or unambiguous short name; without a name, the only workflow."""
    if name is None and len(program.workflows) == 1:
        return program.workflows[0]
    workflow = None if name is None else program.find_workflow(name)
    if workflow is not None:
        return workflow
    names = sorted(facet.qualified_name for facet in program.workflows)
    same = [qualified_name for qualified_name in names if name is not None and short_name(qualified_name) == name]
    if len(same) > 1:
        raise NotFound(
            f"There are several workflows {name!r}; give the qualified name: {', '.join(same)}.", code="workflow_not_found"
        )
    wanted = "Name the workflow" if name is None else f"There is no workflow {name!r}"
    raise NotFound(f"{wanted}; the flow has: {', '.join(names) or 'none'}.", code="workflow_not_found")


def check_inputs(program: Program, workflow: Facet, inputs: dict[str, Json], *, lenient: bool = False) -> None:
    """Raise `InvalidInput` (`invalid_inputs`) with every missing, unknown or mistyped input; `lenient` checks nothing."""
    if lenient:
        return
    params: dict[str, Param] = {param.name: param for param in workflow.params}
    problems = [
        f"{param.name} ({type_words(param.type)}) is missing"
        for param in workflow.params
        if param.default is None and param.name not in inputs
    ]
    for name, value in inputs.items():
        if name in params:
            problems += misfits(program, name, params[name].type, value)
        elif workflow.pre_script is None:
            near = get_close_matches(name, params, 1)
            problems.append(f"{name} is not a parameter" + (f"; did you mean {near[0]}?" if near else ""))
    if problems:
        takes = ", ".join(f"{param.name}: {type_words(param.type)}" for param in workflow.params) or "nothing"
        raise InvalidInput(
            f"{workflow.qualified_name} cannot start: {'; '.join(problems)}. It takes {takes}.", code="invalid_inputs"
        )


def check_result(
    program: Program,
    facet: Facet,
    result: Mapping[str, Json],
    *,
    place: str = "",
    known: Collection[str] = (),
    partial: bool = False,
) -> None:
    """Raise `InvalidInput` with every value of another type, unknown name and missing name, and the declared returns.

    Names in `known` are not missing, and with `partial` none is: blocks may still yield them. A facet without declared returns
    accepts any. `place` is the place of the result, for the message.
    """
    dot = f"{place}." if place else ""
    names = [param.name for param in facet.returns]
    problems = [
        problem
        for param in facet.returns
        if param.name in result and not param.reference
        for problem in misfits(program, f"{dot}{param.name}", param.type, result[param.name])
    ]
    unknown = [str(key) for key in result if key not in names] if names else []
    meant = {key: near[0] for key in unknown if (near := get_close_matches(key, [name for name in names if name not in result], 1))}
    if not partial and not facet.blocks:
        needed = [param.name for param in facet.returns if param.default is None and not isinstance(param.type, OptionalType)]
        there = {*result, *known, *meant.values()}
        problems += [f"{dot}{name} is missing" for name in needed if name not in there]
    problems += [
        f"{dot}{key if key.isidentifier() else shown(key, 100)} is not one of its returns"
        + (f"; did you mean {meant[key]}?" if key in meant else "")
        for key in unknown
    ]
    if problems:
        wrong = f"This is not a result of {facet.qualified_name}: {'; '.join(problems)}".removesuffix("?")
        stop = "?" if problems[-1].endswith("?") else "."
        raise InvalidInput(f"{wrong}{stop} It returns {returns_words(facet)}. Nothing was changed.")


def returns_words(facet: Facet) -> str:
    """The declared returns in one line."""
    return ", ".join(f"{name}: {kind}" for name, kind in declared_returns(facet).items()) or "nothing"


def declared_returns(facet: Facet) -> dict[str, str]:
    """The types of the declared returns, by name."""
    return {param.name: type_words(param.type) for param in facet.returns}


# --- handlers ---


def needed_handlers(program: Program, workflow: Facet) -> list[str]:
    """The event facets that the workflow can reach, in order."""
    seen: dict[str, None] = {}
    pending = [workflow]
    while pending:
        facet = pending.pop()
        if facet.qualified_name in seen:
            continue
        seen[facet.qualified_name] = None
        called = [program.find_facet(name) for name in _called(facet)]
        pending += [callee for callee in reversed(called) if callee is not None]
    return [name for name in seen if name in program.facets and program.facets[name].is_event]


def missing_handlers(needed: Iterable[str], here: Iterable[str], servers: Sequence[Server], task_list: str, now: int) -> list[str]:
    """The needed handlers that neither this process nor a live worker of the task list has."""
    served = set(here)
    for server in servers:
        if task_list in server.task_lists and shown_server_state(server, now) == "running":
            served |= set(server.handlers)
    return [name for name in needed if name not in served and short_name(name) not in served]


def _called(facet: Facet) -> Iterator[str]:
    """Names of all facets that a facet calls: signature aliases, steps of its blocks, of their bodies and catches."""
    yield from (mixin.name for mixin in facet.mixins if mixin.alias is not None)
    yield from (step.call.name for block in facet.all_blocks() for step in block.steps)


def pairs(sources: Sequence[SourceText]) -> list[Source]:
    """The sources as the kernel takes them; refuses an empty list and too much text."""
    if not sources:
        raise InvalidInput("Give at least one AFL source.")
    if (size := sum(len(source.text) for source in sources)) > SOURCES_LIMIT:
        raise InvalidInput(f"The sources of one call may have at most {SOURCES_LIMIT} characters, not {size}.")
    return [(source.name, source.text) for source in sources]
