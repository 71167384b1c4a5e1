"""Recorded runs of durable functions, replayed against the present code: does a deployment break runs that are under way?

    recording = await record(engine, run)             # in production; `treadle functions record RUN > order.json`
    replay(shop.engine, "recordings/order.json")      # in a test: raises ReplayFailed if the code has diverged

A replay executes the function's own code and nothing else: steps, calls and effects return their recorded results. It ends where
the recording ends, or where the code waits for something that the recording does not contain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

import msgspec

from treadle.engine import Engine
from treadle.kernel.functions.steps import Recorded, folded, queue_name
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.units import Finish, PutSteps, Requeue, Row, Unit
from treadle.model.errors import InvalidInput
from treadle.model.ids import Ref
from treadle.model.names import is_function
from treadle.model.runs import Step
from treadle.model.stored import convert
from treadle.model.values import BlobRef, Json, decode, encode
from treadle.testing.environment import Environment
from treadle.workers.context import Context
from treadle.workers.functions.driver import Driver, SetSettling
from treadle.workers.functions.runner import FunctionRunner

FORMAT = 1
LEASE_FOR = 3_600_000


class ReplayFailed(AssertionError):
    """The code no longer matches the recorded steps of the run."""


class Recording(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The history of one run of a durable function, with all values in the clear."""

    format: int = FORMAT
    run_id: str
    function: str
    version: int
    state: str
    payload: Json
    result: Json = None
    steps: list[dict[str, Any]]

    def text(self) -> str:
        """Return the recording as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()


async def record(engine: Engine, run: Ref) -> Recording:
    """Return the history of a run of a durable function, finished or not; values are decrypted."""
    kernel = engine.kernel
    run_record = await engine.kernel.runs.get_run(run)
    run_id = run_record.id
    if not is_function(run_record.flow_id):
        raise InvalidInput(f"Run {run_id} is a workflow; only runs of durable functions are replayed.")
    functions = kernel.run_services.functions
    steps = await functions.recorded(run_id)
    digests = [step.value.digest for step in steps if isinstance(step.value, BlobRef)]
    values = await kernel.value_store.load(digests) if digests else {}
    for step in steps:
        if isinstance(step.value, BlobRef):
            step.value = values[step.value.digest]
    outputs = await engine.kernel.runs.outputs(run_record) if run_record.state == "completed" else {}
    return Recording(
        run_id=run_id,
        function=run_record.workflow,
        version=await functions.version_of(run_record),
        state=run_record.state,
        payload=await kernel.value_store.unpack(run_record.inputs),
        result=outputs.get("result"),
        steps=[msgspec.to_builtins(step) for step in steps],
    )


def replay(engine: Engine, recording: Recording | Mapping[str, Any] | str | Path) -> None:
    """Replay a recording, or the one in a file, against the engine's functions; raises `ReplayFailed` if they have diverged.

    Call it outside an event loop; `replay_async` is for async tests.
    """
    asyncio.run(replay_async(engine, recording))


async def replay_async(engine: Engine, recording: Recording | Mapping[str, Any] | str | Path) -> None:
    """`replay` for async tests."""
    recording = read_recording(recording)
    name = queue_name(recording.function, recording.version)
    if engine.kernel.function_registry.find(name) is None:
        offers = ", ".join(engine.kernel.function_registry.names()) or "no function"
        raise ReplayFailed(f"{name} is not registered; the engine has {offers}. Runs of this version would not continue.")
    async with Environment(engine) as environment:
        await _Replay(environment, recording).check()


def read_recording(given: Recording | Mapping[str, Any] | str | Path) -> Recording:
    """Read a recording from a file or its JSON."""
    if isinstance(given, Recording):
        return given
    raw = dict(given) if isinstance(given, Mapping) else decode(Path(given).read_text(encoding="utf-8"))
    try:
        recording = msgspec.convert(raw, Recording)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"This is not a recording of a run: {error}.") from None
    if recording.format != FORMAT:
        raise InvalidInput(f"The recording has format {recording.format}; this version of Treadle reads format {FORMAT}.")
    return recording


class _EndOfRecording(Exception):
    """The code goes on where the recording ends."""


class _NoCommits:
    """A committer that refuses: a replay writes nothing."""

    async def submit(self, *_: object) -> NoReturn:
        raise _EndOfRecording


class _ReplayDriver(Driver):
    """Runs the function's code up to the end of its recorded steps."""

    ended: tuple[Any, BaseException | None] | None = None

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.journal.start = self._stop  # type: ignore[method-assign]

    def _stop(self, kind: str, place: str, name: str, recorded: Recorded | None, about: str) -> int:
        """Stop before the code of a step that the recording does not contain."""
        raise self.execution.crashed(_EndOfRecording())

    async def _settle(self, set_settling: SetSettling) -> Finish | Requeue | None:
        execution = self.execution
        self.ended = self._ended
        if execution.problem is None and self._ended is not None and (next_step := self.journal.history.unreached()) is not None:
            raise ReplayFailed(
                f"the function ends before {next_step.kind} {next_step.name}, which is recorded at {next_step.place}"
            )
        if execution.problem is not None:
            raise ReplayFailed(execution.problem.message)
        execution.lose()
        return None


class _Replay:
    def __init__(self, environment: Environment, recording: Recording) -> None:
        self._environment = environment
        self._recording = recording

    async def check(self) -> None:
        recording, engine = self._recording, self._environment.engine
        kernel = engine.kernel
        await kernel.run_services.functions.start(
            recording.function, recording.payload, run_id=recording.run_id, version=recording.version
        )
        steps: list[Step] = []
        rows: list[Row] = []
        for recorded in recording.steps:
            step, blobs = folded(recording.run_id, convert(Recorded, recorded), recording.run_id, kernel.value_store)
            steps.append(step)
            rows += blobs
        await kernel.committer.submit(Unit(rows=(*rows, PutSteps(recording.run_id, tuple(steps), len(steps)))))
        queues = list(await kernel.store.tasks.list_queues())
        [task] = await kernel.store.tasks.claim(queues, "replay", LEASE_FOR, 1)
        task.claim_version = 2  # so that the driver reads the recorded steps
        drivers: list[_ReplayDriver] = []

        def make_driver(*parts: Any) -> _ReplayDriver:
            drivers.append(_ReplayDriver(*parts))
            return drivers[-1]

        host = self._environment.make_host()
        runtime = replace(host.functions.runtime, committer=cast("Committer", _NoCommits()))
        runner = FunctionRunner(kernel.function_registry, runtime, driver=make_driver)
        context = Context(task, kernel.clock.now, lambda line: None)
        try:
            await runner.execute(task, context, lambda settling: None)
        except _EndOfRecording:
            pass
        except ReplayFailed as error:
            raise ReplayFailed(f"{task.name} cannot continue the recorded run {recording.run_id}: {error}") from None
        self._compare(drivers[0])

    def _compare(self, driver: _ReplayDriver) -> None:
        recording = self._recording
        if recording.state != "completed" or driver.ended is None:
            return
        value, error = driver.ended
        if error is not None:
            raise ReplayFailed(f"The recorded run {recording.run_id} completed; now the function raises {error!r}.") from error
        if encode(value) != encode(recording.result):
            raise ReplayFailed(f"The recorded run {recording.run_id} returned {recording.result!r}; now it returns {value!r}.")
