"""The base of all agents: a registry of handlers, served by the worker in `start`, or one cycle at a time in `poll_once`."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import count
from typing import Any, TypeVar

from treadle.agents.config import AgentPollerConfig
from treadle.agents.connection import LEASE_FOR, Connection, forbid_event_loop
from treadle.agents.evaluator import Evaluator
from treadle.agents.host import OWN_KINDS, AgentHost, Profile
from treadle.agents.invoke import attempt, is_interrupt
from treadle.agents.persistence import Persistence
from treadle.kernel.queue.decide import TaskDecision, refusal
from treadle.kernel.runs.flows import missing_handlers
from treadle.kernel.store.units import DONE, Finish, UnitAnswer
from treadle.model.errors import InvalidInput, Refused, StoreError, StoreUnavailable, TreadleError
from treadle.model.names import HANDLER, is_function
from treadle.model.outcomes import Failed, Outcome, Problem, Released, Retry, Succeeded
from treadle.model.retry import Backoff
from treadle.model.states import TaskState
from treadle.model.tasks import Claim, LogLine, Task
from treadle.model.text import safe_logger
from treadle.model.values import decode
from treadle.workers.context import Context, RegisteredHandler, Registry

T = TypeVar("T")

_STARTING = Backoff(0.5, 15.0)
"""Seconds between attempts to start while the store cannot be reached."""
_log = safe_logger("treadle.agents")


class EvaluatorSettler:
    """Ends an agent's tasks through its evaluator; `asts` are the programs that it was given for `resume`."""

    def __init__(self, persistence: Persistence, evaluator: Evaluator, asts: Mapping[str, Mapping[str, Any]]) -> None:
        self._persistence = persistence
        self._evaluator = evaluator
        self._asts = asts
        self._fail_options = _options_of(evaluator.fail_step)
        self._resumes = _own(evaluator, "resume")
        self.asked = self._resumes or _own(evaluator, "continue_step") or _own(evaluator, "fail_step")
        """Whether the evaluator overrides methods that the worker must call."""

    def end(self, task: Task, outcome: Outcome) -> None:
        """Give a step its result or its error, and end its task, in the calling thread."""
        if _of_flow(task) and task.step_id is not None and isinstance(outcome, Succeeded | Failed | Retry):
            try:
                self._call_evaluator(task.step_id, outcome)
            except StoreError:
                raise
            except InvalidInput as error:
                outcome = _unstorable(error)
            except BaseException as error:
                if is_interrupt(error):
                    raise
                _log.error("the evaluator raised for step %s, whose task is settled without it: %r", task.step_id, error)
        if self._persistence.claims.pop(task.id, None) is not None:
            self._settle(task, outcome)

    def _settle(self, task: Task, outcome: Outcome) -> None:
        persistence = self._persistence
        try:
            persistence.run(persistence.settle(task, outcome))
        except InvalidInput as error:
            persistence.claims.pop(task.id, None)
            persistence.run(persistence.settle(task, _unstorable(error)))

    def _call_evaluator(self, step_id: str, outcome: Succeeded | Failed | Retry) -> None:
        if isinstance(outcome, Succeeded):
            self._evaluator.continue_step(step_id, outcome.result)
            return
        problem = outcome.problem
        details = {"code": problem.code, "error_type": problem.type, "traceback": problem.traceback}
        options: dict[str, Any] = {name: value for name, value in details.items() if name in self._fail_options}
        self._evaluator.fail_step(step_id, problem.message, **options)

    def resume(self, task: Task) -> None:
        """Continue the task's run; errors are logged. A durable function continues by itself."""
        run_id = task.run_id
        if run_id is None or is_function(task.flow_id):
            return
        try:
            self._evaluator.resume(run_id, self._asts.get(run_id))
        except TreadleError as error:
            _log.error("run %s could not be resumed: %s", run_id, error)
        except BaseException as error:
            if is_interrupt(error):
                raise
            _log.error("the evaluator raised while it resumed run %s: %r", run_id, error)

    async def settle(self, task: Task, claim: Claim, decided: TaskDecision) -> UnitAnswer:
        """Settle for the worker of `start` through an overriding evaluator, in a thread, because its methods block."""
        if not _of_flow(task) or task.step_id is None or not isinstance(decided, Finish):
            return await self._persistence.engine.kernel.run_services.settler.settle(task, claim, decided)
        self._persistence.claims[task.id] = task
        await asyncio.to_thread(self._end_and_resume, task, _outcome_of(decided))
        return DONE

    def _end_and_resume(self, task: Task, outcome: Outcome) -> None:
        self.end(task, outcome)
        if self._resumes:
            self.resume(task)


def _of_flow(task: Task) -> bool:
    """Whether the task belongs to a workflow's step."""
    return task.run_id is not None and not is_function(task.flow_id)


def _unstorable(error: InvalidInput) -> Failed:
    """Return the end of a task with a result that cannot be stored."""
    return Failed(Problem(error.code, str(error), type(error).__name__))


def _own(evaluator: Evaluator, name: str) -> bool:
    """Whether the evaluator overrides that method."""
    return getattr(getattr(evaluator, name), "__func__", None) is not getattr(Evaluator, name)


def _options_of(function: Any) -> frozenset[str]:
    """Return the options that its `fail_step` accepts; the one in the specification accepts none."""
    options = frozenset({"code", "error_type", "traceback"})
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return frozenset()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return options
    return options.intersection(parameters)


def _outcome_of(decided: Finish) -> Outcome:
    if decided.state == TaskState.COMPLETED:
        return Succeeded(decode(decided.result) or {})
    error = decode(decided.error) or {}
    return Failed(Problem(error.get("code", "failed"), error.get("message", "failed"), error.get("type"), error.get("traceback")))


def matches_topics(name: str, topics: Sequence[str]) -> bool:
    """Whether a facet's name matches one of the glob patterns; without patterns, all do."""
    return not topics or any(fnmatchcase(name, pattern) for pattern in topics)


async def _unserved_facets(connection: Connection, registry: Registry, task_list: str) -> list[str]:
    """Return event facets of published flows that neither this process nor a live worker handles; prompts need no handler."""
    engine = connection.engine
    needed: dict[str, None] = {}
    for published in await engine.kernel.flows.list_versions():
        program = await engine.kernel.flows.program(published.flow_id)
        needed |= {facet.qualified_name: None for facet in program.event_facets if facet.prompt is None}
    here = [name for name in needed if registry.find(name) is not None]
    return missing_handlers(
        needed,
        here,
        await engine.kernel.store.servers.list_all(engine.kernel.settings.namespace),
        task_list,
        await engine.kernel.store.now(),
    )


_CACHED_ASTS = 1000
GRACE = 30.0


class Agent:
    """A service that handles tasks. Subclasses provide the handlers; no state is kept between tasks."""

    grace = GRACE
    """Seconds that running work gets when the agent stops."""

    def __init__(
        self, persistence: Persistence, evaluator: Evaluator, config: AgentPollerConfig, topics: tuple[str, ...] = ()
    ) -> None:
        self._persistence = persistence
        self._evaluator = evaluator
        self._config = config
        self._server_id = persistence.engine.kernel.ids.new_id()
        self._monotonic = persistence.engine.kernel.clock.monotonic
        self._profile = Profile(config.server_group, config.service_name, config.server_name, topics, config.max_concurrent)
        self._asts: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
        self._endings = EvaluatorSettler(persistence, evaluator, self._asts)
        self._stop = threading.Event()
        self._state = threading.Lock()
        self._starting = False
        self._host: AgentHost | None = None
        self._stopping: AgentHost | None = None
        """The worker whose running work gets its grace."""
        self.on_started: Callable[[], None] = lambda: None
        """Called in the thread of `start` when the worker claims tasks."""

    # for subclasses

    _registry: Registry

    def registry(self) -> Registry:
        """Return the current handlers."""
        return self._registry

    def _handled_names(self) -> list[str] | None:
        """The names to compare with the topics and the published flows; None: they are not compared."""
        return None

    def prepare(self) -> None:
        """Called before anything is claimed; logs unserved facets."""
        for message in self.check():
            _log.warning("%s", message)

    def until_stopped(self, stop: threading.Event) -> None:
        """Run in the thread of `start` until the agent stops."""
        stop.wait()

    def _repeat(self, stop: threading.Event, every: float, work: Callable[[], object], failure: str) -> None:
        """Do the work every so many seconds until the agent stops; store errors are logged."""
        while not stop.wait(every):
            try:
                work()
            except StoreError as error:
                _log.warning("%s: %s", failure, error)

    @property
    def lease_for(self) -> int:
        """Milliseconds that a claim is valid between renewals."""
        return round(self._persistence.kernel.settings.lease * 1000)

    # public

    @property
    def server_id(self) -> str:
        """The id of this agent in the server registry."""
        return self._server_id

    @property
    def is_running(self) -> bool:
        """Whether the loop of `start` is active."""
        return self._host is not None

    def registered_names(self) -> list[str]:
        """The names that this agent handles, sorted."""
        return self._registry.names()

    def update_step(self, step_id: str, partial_result: Mapping[str, Any]) -> None:
        """Merge partial results into a step's returns without completing it."""
        self._evaluator.update_step(step_id, partial_result)

    def check(self) -> list[str]:
        """Return warnings for the start: topics without a handler, event facets that nothing handles."""
        names = self._handled_names()
        if names is None:
            return []
        topics = self._profile.topics
        idle = [pattern for pattern in topics if not any(fnmatchcase(name, pattern) for name in names)]
        unserved = self._persistence.run(_unserved_facets(self._persistence, self._registry, self._config.task_list))
        return [f"the topic pattern {pattern!r} matches no registered handler" for pattern in idle] + [
            f"no handler for the event facet {name}" for name in unserved if matches_topics(name, topics)
        ]

    def cache_workflow_ast(self, workflow_id: str, ast: Mapping[str, Any]) -> None:
        """Keep a program for `resume`. It is never needed, because runs are pinned to their program in the store."""
        self._asts[workflow_id] = ast
        while len(self._asts) > _CACHED_ASTS:
            self._asts.popitem(last=False)

    def start(self) -> None:
        """Register the server and handle tasks until `stop`; blocks. When it returns, nothing runs and nothing is held.

        A handler that raises fails only its step and its task. Store errors are logged and retried.
        """
        forbid_event_loop("start")
        with self._state:
            if self._starting:
                raise Refused("This agent is already running.")
            self._starting = True
            self._stop.clear()
        try:
            self._profile.error = None
            self._until_reachable(self.prepare)
            self._serve()
        except Exception as error:
            self._store_error(error)
            raise
        finally:
            self._starting = False

    def stop(self) -> None:
        """Make `start` return: no new claims, running work gets its grace. Returns immediately; callable from any thread."""
        if self._starting:
            self._stop.set()

    def poll_once(self) -> int:
        """Claim up to `max_concurrent` ready tasks and handle them here, one after another; return their number.

        The store renews the claims until this returns. It uses no threads and no heartbeat. Prompts follow last, if the store's
        engine serves them (`use_llm`). Raises `WrongThread` inside a running event loop.
        """
        forbid_event_loop("poll_once")
        self.prepare_once()
        registry = self.registry()
        longest = max([LEASE_FOR, *(handler.timeout_for or 0 for handler in registry)])
        tasks = self._persistence.run(self._claim(registry, longest))
        self._persistence.run(self._persistence.work_own_kinds())
        started = self._monotonic()
        with self._persistence.renewed(tasks, longest):
            for number, task in enumerate(tasks):
                if number and self._monotonic() - started > longest / 2000:
                    self._persistence.run(self._persistence.release(task, Released("earlier tasks took too long", 0)))
                    continue
                try:
                    self._handle(task, registry.find(task.name))
                except KeyboardInterrupt:
                    for unhandled in tasks[number:]:
                        self._persistence.run(self._persistence.release(unhandled, Released("the agent was interrupted", 0)))
                    raise
        prompts = self._ask_prompts(registry, self._config.max_concurrent - len(tasks))
        self._persistence.run(self._persistence.kernel.run_services.log_lines.flush())
        return len(tasks) + prompts

    def prepare_once(self) -> None:
        """Called before one cycle."""

    # internal

    async def _claim(self, registry: Registry, lease_for: int) -> list[Task]:
        config = self._config
        return await self._persistence.claim_where(
            lambda kind, name: kind == HANDLER and registry.find(name) is not None,
            config.task_list,
            config.max_concurrent,
            lease_for,
        )

    def _ask_prompts(self, registry: Registry, room: int) -> int:
        """Handle tasks of prompts with a model, one after another, each claimed when its turn comes; return their number."""
        persistence = self._persistence

        def served(name: str) -> bool:
            return registry.find(name) is not None

        for number in range(room):
            task = persistence.run(persistence.claim_prompt(self._config.task_list, served))
            if task is None:
                return number
            with persistence.renewed([task], LEASE_FOR):
                self._end(task, partial(self._ask, task))
        return max(room, 0)

    def _ask(self, task: Task, context: Context) -> Outcome | None:
        return self._persistence.run(self._persistence.ask_prompt(task, context))

    def _handle(self, task: Task, handler: RegisteredHandler | None) -> None:
        """Handle one task in this thread to its end; errors of handlers never propagate."""

        def work(context: Context) -> Outcome | None:
            if handler is None:
                return None
            started = self._monotonic()
            outcome = attempt(handler.call, self._persistence.run(self._persistence.payload_of(task)), context)
            timeout_for = task.timeout_for if task.timeout_for is not None else handler.timeout_for
            if timeout_for is not None and (self._monotonic() - started) * 1000 > timeout_for:
                return Failed(Problem("timeout", f"The attempt took longer than {timeout_for / 1000:g} s."))
            return outcome

        self._end(task, work)

    def _end(self, task: Task, work: Callable[[Context], Outcome | None]) -> None:
        """Do the work of a task and settle it; release a task that has no handler here."""
        lines: list[LogLine] = []
        problem = refusal(task)
        outcome = work(Context(task, self._persistence.kernel.clock.now, lines.append)) if problem is None else Failed(problem)
        if outcome is None:
            self._persistence.run(self._persistence.release(task, Released("no handler here")))
            return
        self._endings.end(task, outcome)
        if task.step_id is not None:
            self._endings.resume(task)
        self._profile.count(task.name, isinstance(outcome, Succeeded))
        try:
            self._persistence.run(self._persistence.kernel.store.log.append_lines(lines))
        except StoreError as error:  # the work is done; only its settlement failed
            _log.warning("%d line(s) about task %s could not be stored: %s", len(lines), task.id, error)

    def _until_reachable(self, step: Callable[[], T]) -> T:
        """Repeat a step of the start while the store cannot be reached, and the agent is not stopped."""
        for failures in count():
            try:
                return step()
            except StoreUnavailable as error:
                if error.rejected or self._stop.wait(_STARTING.delay(failures)):
                    raise
                _log.warning("starting: %s", error)
        raise AssertionError

    def _start_host(self) -> AgentHost:
        config = self._config
        host = AgentHost(
            self._persistence.kernel,
            self._profile,
            concurrency=config.max_concurrent + OWN_KINDS,
            threads=config.max_concurrent,
            processes=1,
            task_lists=(config.task_list,),
            lease_for=self.lease_for,
            grace=self.grace,
            registry=self.registry(),
            settle=self._endings.settle if self._endings.asked else None,
            owner_id=self._server_id,
            beat_every=config.heartbeat_interval_ms / 1000,
            poll_every=config.poll_interval_ms / 1000,
        )
        self._persistence.run(host.start())
        return host

    def _serve(self) -> None:
        self._host = host = self._until_reachable(self._start_host)
        try:
            self.on_started()
            self.until_stopped(self._stop)
        except Exception as error:
            self._profile.error = {"code": "loop_error", "message": str(error), "type": type(error).__name__}
            raise
        finally:
            self._host, self._stopping = None, host
            self._persistence.run(host.stop())
            self._stopping = None

    def _store_error(self, error: Exception) -> None:
        """Store an unrecoverable error in the server registry, if the store is reachable."""
        from treadle.agents.entities import ServerDefinition, ServerState

        details = {"code": getattr(error, "code", "error"), "message": str(error), "type": type(error).__name__}
        profile = self._profile
        server = ServerDefinition(
            uuid=self._server_id,
            server_group=profile.server_group,
            service_name=profile.service_name,
            server_name=profile.server_name,
            topics=list(profile.topics),
            state=ServerState.ERROR,
            error=details,
        )
        try:
            self._persistence.save_server(server)
        except Exception as second:
            _log.error("could not report the error of this server: %s", second)
