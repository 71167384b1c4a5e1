"""Runs a workflow in the calling thread, without a store: for tests of AFL sources and handlers.

Storage is simulated strictly: between calls of the evaluator, rows are JSON text, and a call sees only the rows loaded for it. A
test therefore cannot pass because of state left in memory.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from treadle.evaluator import (
    Errored,
    Finished,
    Limits,
    RequestedTask,
    ScriptRequest,
    Started,
    StepError,
)
from treadle.evaluator.simulated import SimulatedRun
from treadle.lang import Program, compile_sources
from treadle.model.errors import InvalidInput, NonRetryable, TreadleError
from treadle.model.names import short_name
from treadle.model.outcomes import Problem
from treadle.model.states import RunState
from treadle.model.values import decode, encode

Sources = str | Mapping[str, str] | Iterable[tuple[str, str]]
Handler = Callable[[dict[str, Any]], dict[str, Any] | Awaitable[dict[str, Any] | None] | None]
Order = Callable[[Sequence[RequestedTask]], int]
ScriptRunner = Callable[[ScriptRequest, dict[str, Any]], dict[str, Any]]

_SCRIPT_LIMIT = 30.0
_SCRIPT_HOST = """
import io, json, sys, traceback
job, out = json.load(sys.stdin), sys.stdout
sys.stdout = io.StringIO()
names = {"params": job["params"], "result": {}}
result = names["result"]
try:
    exec(compile("\\n" * (job["line"] - 1) + job["code"], job["source"], "exec"), names)
    answer = json.dumps({"result": result}, allow_nan=False)
except BaseException as error:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == job["source"]]
    line = lines[-1] if lines else getattr(error, "lineno", None)
    where = f" ({job['source']}, line {line})" if line else ""
    answer = json.dumps({"error": f"{error}{where}", "type": type(error).__name__})
out.write(answer)
"""


class CompilationFailed(InvalidInput, code="compilation_failed"):
    """The sources do not compile; the message shows every diagnostic."""


class WorkflowFailed(TreadleError, code="workflow_failed"):
    """The workflow failed; the message has the whole path, `error` its parts."""

    def __init__(self, error: StepError) -> None:
        super().__init__(error.text)
        self.error = error


class ScriptFailed(TreadleError, code="script_failed"):
    """A script raised, timed out, or left a result that is not JSON."""

    def __init__(self, message: str, kind: str = "ScriptFailed") -> None:
        super().__init__(message)
        self.type = kind


def run_script(script: ScriptRequest, params: dict[str, Any]) -> dict[str, Any]:
    """Run a script in a separate Python process, for at most 30 s; line numbers of errors refer to the AFL source."""
    job = {"code": script.code, "line": script.line, "source": script.source or "<script>", "params": params}
    command = [sys.executable, "-I", "-c", _SCRIPT_HOST]
    try:
        done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, timeout=_SCRIPT_LIMIT)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise ScriptFailed(f"the script ran for more than {_SCRIPT_LIMIT:.0f} s", "TimeoutError") from None
    if done.returncode != 0:
        raise ScriptFailed(f"the script's process ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise ScriptFailed(answer["error"], answer["type"])
    result: dict[str, Any] = answer["result"]
    return result


def compile_program(sources: Sources, *, strict: bool = False) -> Program:
    """Compile one text, texts by name, or (name, text) pairs, where `strict` makes warnings errors; raise `CompilationFailed`."""
    if isinstance(sources, str):
        pairs = [("workflow.afl", sources)]
    else:
        pairs = list(sources.items()) if isinstance(sources, Mapping) else list(sources)
    compiled = compile_sources(pairs)
    compiled = compiled.strictly() if strict else compiled
    if not compiled.ok:
        raise CompilationFailed(f"The sources do not compile.\n{compiled.render()}")
    return Program.load(compiled.program)


class _Performer:
    """Turns tasks into events by calling handlers and running scripts."""

    def __init__(self, handlers: Mapping[str, Handler], script_runner: ScriptRunner) -> None:
        self._handlers, self._script_runner = handlers, script_runner
        self._loop: asyncio.Runner | None = None

    def perform(self, task: RequestedTask, payload: dict[str, Any]) -> Finished | Errored:
        """Call the handler or run the script; an exception fails the step."""
        handler: Any = self._handler(task.facet) if task.script is None else None
        try:
            result: Any = self._script_runner(task.script, payload) if task.script is not None else self._call(handler, payload)
            result = decode(encode({} if result is None else result, "result"))
        except Exception as error:
            kind = error.type if isinstance(error, ScriptFailed) else type(error).__name__
            code = error.error_code if isinstance(error, NonRetryable) else "error"
            return Errored(task.step_id, Problem(code, str(error) or type(error).__name__, kind), task.id)
        if not isinstance(result, dict):
            message = f"the handler of {task.facet} returned {type(result).__name__}; return a dict"
            return Errored(task.step_id, Problem("unexpected_result", message), task.id)
        return Finished(task.step_id, result, task.id)

    def _handler(self, facet: str) -> Handler:
        handler = self._handlers.get(facet) or self._handlers.get(short_name(facet))
        if handler is None:
            names = ", ".join(sorted(self._handlers)) or "none"
            raise InvalidInput(f"No handler for `{facet}`. Given: {names}.", code="handler_missing")
        return handler

    def _call(self, handler: Handler, payload: dict[str, Any]) -> Any:
        result = handler(payload)
        if not inspect.isawaitable(result):
            return result
        self._loop = self._loop or asyncio.Runner()

        async def wait() -> Any:
            return await result

        return self._loop.run(wait())

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()


def run_workflow(
    sources: Sources,
    workflow: str,
    inputs: Mapping[str, Any] | None = None,
    handlers: Mapping[str, Handler] | None = None,
    *,
    order: Order | None = None,
    script_runner: ScriptRunner = run_script,
    limits: Limits | None = None,
    strict: bool = False,
) -> dict[str, Any]:
    """Compile a workflow, run it to the end and return the outputs.

    Handlers (sync or async, by qualified or short facet name) take the payload and return a dict; an exception fails the step.
    `order` selects the next of the waiting tasks (default: the oldest). With `strict`, warnings are errors, and a result that does
    not fit the declared returns fails its step. Raises `CompilationFailed`, `WorkflowFailed`, or
    `InvalidInput` for an unknown workflow or a missing handler.
    """
    run = SimulatedRun(compile_program(sources, strict=strict), workflow, limits=limits)
    performer = _Performer(handlers or {}, script_runner)
    try:
        run.apply(Started(decode(encode(dict(inputs or {}), "inputs"))))
        run.settle()
        while run.status is RunState.RUNNING:
            if not run.tasks:
                raise AssertionError("the run waits for nothing and is not done")
            waiting = list(run.tasks.values())
            task = waiting[order(waiting) if order else 0]
            run.apply(performer.perform(task, run.payload(task)))
            run.settle()
    finally:
        performer.close()
    if run.error is not None and run.status is RunState.FAILED:
        raise WorkflowFailed(run.error)
    return run.outputs or {}
