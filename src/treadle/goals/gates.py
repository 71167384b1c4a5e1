"""Gates: functions, registered by name or built in, that judge the output of a workorder.

A gate takes (bundle) or (bundle, ctx) and returns True, False, or a `Judgement` with a reason. Sync gates run in threads. An
exception is not a judgement: the gates run again, and after the last retry the workorder fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.api.objectives import GateReport, Objective, OutputBundle, Workorder
from treadle.goals.records import FAIL, PASS
from treadle.goals.schemas import first_error
from treadle.goals.topology import SHIPPED_GATES, GateSpec, InvalidTopology, Topology, TopologyProblem
from treadle.model.errors import Refused, TreadleError
from treadle.model.text import suggestion
from treadle.model.values import Json, storable
from treadle.workers.call import Executor
from treadle.workers.context import RegisteredHandler, make_handler

GATE_FOR = 600_000
"""Milliseconds that a gate may take, unless it has its own timeout."""

_TAIL = 700
_CHUNK = 64 * 1024
_REASON_LIMIT = 1000


class GateExists(Refused, code="gate_exists"):
    """The process already has a gate of that name."""


class GateError(TreadleError, code="gate_error"):
    """A gate returned no judgement."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict of a gate, with its reason."""

    passed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GateContext:
    """The context of a gate: the objective and workorder, its options in the topology, and the topology's folder."""

    objective: dict[str, Json]
    workorder: dict[str, Json]
    options: Mapping[str, Json]
    folder: Path


class Gates:
    """The gates of a process, by name."""

    def __init__(self) -> None:
        self._gates: dict[str, RegisteredHandler] = {}

    def add(self, gate: RegisteredHandler) -> None:
        """Register a gate; a second one of the same name, or the name of a built-in one, raises `GateExists`."""
        if gate.name in self._gates or gate.name in SHIPPED_GATES:
            raise GateExists(f"The gate {gate.name} is already registered; each name has one gate in a process.")
        self._gates[gate.name] = gate

    def find(self, name: str) -> RegisteredHandler | None:
        """Return the gate of that name, including built-in ones."""
        return _SHIPPED.get(name) or self._gates.get(name)

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted([*SHIPPED_GATES, *self._gates])

    def __iter__(self) -> Any:
        return iter(self._gates.values())

    def check(self, topology: Topology) -> None:
        """Raise `InvalidTopology` if the topology names a gate that is not registered here."""
        unknown = [
            TopologyProblem(
                f"types.{name}.gates[{number}]",
                f"there is no gate {gate.use} here; there are {', '.join(self.names())}{suggestion(gate.use, self.names())}",
            )
            for name, rules in topology.types.items()
            for number, gate in enumerate(rules.gates)
            if self.find(gate.use) is None
        ]
        if unknown:
            raise InvalidTopology(topology.name, tuple(unknown))

    async def judge(
        self,
        specs: tuple[GateSpec, ...],
        bundle: OutputBundle,
        objective: Objective,
        workorder: Workorder,
        folder: Path,
        executor: Executor,
    ) -> list[GateReport]:
        """Run the gates one after another and return their reports; raise the exception of a gate that raised."""
        reports = []
        for spec in specs:
            gate = self.find(spec.use)
            if gate is None:
                raise GateError(f"There is no gate {spec.use} in this process; there are {', '.join(self.names())}.")
            context = GateContext(objective.as_json(), workorder.as_json(), spec.options, folder)
            judgement = await _ask(gate, spec, bundle.as_json(), context, executor)
            reason = storable(judgement.reason, _REASON_LIMIT) or ("passed" if judgement.passed else "did not pass")
            reports.append(GateReport(gate=spec.name, result=PASS if judgement.passed else FAIL, reason=reason))
        return reports


async def _ask(
    gate: RegisteredHandler, spec: GateSpec, bundle: dict[str, Json], context: GateContext, executor: Executor
) -> Judgement:
    timeout_for = spec.timeout_for or gate.timeout_for or GATE_FOR
    arguments = (bundle, context)[: gate.arguments]
    try:
        async with asyncio.timeout(timeout_for / 1000) as limit:
            verdict = await (executor.in_thread(gate, arguments) if gate.isolation == "thread" else gate.call(*arguments))
    except TimeoutError:
        if not limit.expired():
            raise
        return Judgement(False, f"took longer than {timeout_for / 1000:g} s")
    if isinstance(verdict, bool):
        return Judgement(verdict)
    if isinstance(verdict, Judgement) and isinstance(verdict.passed, bool) and isinstance(verdict.reason, str):
        return verdict
    raise GateError(f"The gate {spec.name} returned a {type(verdict).__name__}; it must return True, False or a Judgement.")


# --- built in ---


async def _exit_code(bundle: dict[str, Json], ctx: GateContext) -> Judgement:
    """Run a command and check its exit code: an argument list, no shell; its stdin is the bundle as JSON.

    `{objective_id}` and `{work_order_id}` are replaced in its arguments and its folder. It runs in the topology's folder or
    below.
    """
    words = {"{objective_id}": str(bundle["objective_id"]), "{work_order_id}": str(bundle["work_order_id"])}
    root = ctx.folder.resolve()
    cwd = (root / _filled(str(ctx.options.get("cwd", ".")), words)).resolve()
    if not cwd.is_relative_to(root):
        return Judgement(False, f"its folder {cwd} is outside the topology's folder")
    if not cwd.is_dir():
        return Judgement(False, f"there is no folder {cwd}")
    argv = [_filled(word, words) for word in ctx.options["argv"]]
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return Judgement(False, f"{argv[0]} could not be started: {error}")
    try:
        _, output = await asyncio.gather(_write_input(process, json.dumps(bundle).encode()), _read_tail(process))
        code = await process.wait()
    finally:
        await _end(process)
    tail = output.decode("utf-8", "replace")[-_TAIL:].strip()
    wanted = ctx.options.get("expect", 0)
    return Judgement(code == wanted, f"{argv[0]} ended with {code}" + (f": {tail}" if tail else ""))


async def _write_input(process: asyncio.subprocess.Process, text: bytes) -> None:
    """Write the command's input; a command may ignore it."""
    if process.stdin is None:
        return
    try:
        process.stdin.write(text)
        await process.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass
    process.stdin.close()


async def _read_tail(process: asyncio.subprocess.Process) -> bytes:
    """Return the end of the command's output, however long it is."""
    output = b""
    while process.stdout is not None and (more := await process.stdout.read(_CHUNK)):
        output = (output + more)[-4 * _TAIL :]
    return output


def _filled(text: str, words: Mapping[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the command and its children if they still run, and close its pipes."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    try:
        await process.wait()
    finally:
        process._transport.close()  # type: ignore[attr-defined]  # what it started may hold its pipes, wherever it has gone


def _json_schema(bundle: dict[str, Json], ctx: GateContext) -> Judgement:
    """Check a part of the bundle (its content) against a JSON Schema."""
    wrong = first_error(ctx.options["schema"], bundle[str(ctx.options.get("of", "content"))])
    return Judgement(wrong is None, "matches the schema" if wrong is None else wrong)


def _regex(bundle: dict[str, Json], ctx: GateContext) -> Judgement:
    """Search a part of the bundle (its content) for a regular expression, which must be found, or with `forbid` must not."""
    part = bundle[str(ctx.options.get("of", "content"))]
    text = part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)
    is_match = re.search(str(ctx.options["pattern"]), text) is not None
    return Judgement(
        is_match is not bool(ctx.options.get("forbid", False)), f"{ctx.options['pattern']} was {'' if is_match else 'not '}found"
    )


_SHIPPED = {
    "exit_code": make_handler("exit_code", _exit_code),
    "json_schema": make_handler("json_schema", _json_schema),
    "regex": make_handler("regex", _regex),
}
