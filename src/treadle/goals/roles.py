"""The roles of the goal pipeline as handlers of their task kinds: they call user code, and settling the task applies the decision.

The readiness role calls the reviewer, if the topology names one; the runner calls the handler that the workorder names, within
its budget; the gate role runs the gates; the monitor finds overdue objectives. Scheduling needs no user code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from treadle.api.objectives import ContextSnapshot, OutputBundle, RunRecord, Workorder
from treadle.engine.kernel import Kernel
from treadle.goals.artifacts import Artifacts
from treadle.goals.gates import Gates
from treadle.goals.kinds import GOAL_DEADLINE, GOAL_GATE, GOAL_READINESS, GOAL_ROLE, GOAL_RUN, GOAL_SCHEDULE
from treadle.goals.records import BUDGET_CODE, Status, follow_up_id
from treadle.goals.settler import GoalSettler
from treadle.goals.topology import MONITOR_EVERY_FOR, InvalidTopology, Topology, TopologyProblem
from treadle.kernel.queue.why import shown_server_state
from treadle.model.errors import StoreError
from treadle.model.outcomes import AwaitingApproval, Failed, Outcome, Problem, Released, Retry, Succeeded, Waiting
from treadle.model.retry import RetryPolicy
from treadle.model.tasks import LIVE_SERVER_STATES, NewTask
from treadle.model.text import safe_logger, suggestion
from treadle.model.values import Json, decode, encode, shown, text_of
from treadle.workers.call import Executor, call
from treadle.workers.context import Context, RegisteredHandler, make_handler

THREADS = 16
PROCESSES = 4
"""Concurrent workorders of a handler that runs in threads or in processes, unless it sets its own limit."""

_PERSISTENT = RetryPolicy(retries=1_000_000, first_for=1_000, cap_for=300_000)
_NO_SPECIALIST = "{} is a specialist or a batch handler; workorders need a plain handler, which may enqueue a task of it and wait"
_GATE_RETRY = RetryPolicy(retries=2, first_for=1_000)


Call = Callable[[dict[str, Any], Context], Any]
_log = safe_logger("treadle.goals")


class Roles:
    """The handlers of the roles that a topology assigns to this process, by kind and name."""

    def __init__(
        self, kernel: Kernel, artifacts: Artifacts, settler: GoalSettler, topology: Topology, gates: Gates, executor: Executor
    ) -> None:
        self._kernel, self._artifacts, self._settler = kernel, artifacts, settler
        self._topology, self._gates, self._executor = topology, gates, executor
        self._kinds = topology.kinds()
        self._own = {
            GOAL_READINESS: make_handler(GOAL_READINESS, self._review, retry=_PERSISTENT),
            GOAL_SCHEDULE: make_handler(GOAL_SCHEDULE, _nothing),
            GOAL_GATE: make_handler(GOAL_GATE, self._judge, retry=_GATE_RETRY),
            GOAL_DEADLINE: make_handler(GOAL_DEADLINE, self._scan, retry=_PERSISTENT),
        }
        self._users: dict[tuple[str, str], RegisteredHandler] = {}

    @property
    def names(self) -> list[str]:
        """The kinds of task that this process serves."""
        roles = self._topology.roles
        return sorted([*self._kinds - {GOAL_ROLE}, *(f"{GOAL_ROLE}/{name}" for name, role in roles.items() if role.handler)])

    def start_tasks(self) -> list[NewTask]:
        """Return the deadline monitor's task for each type, if this process has that role and there are deadlines."""
        topology = self._topology
        if "deadline" not in topology.roles or not topology.deadlines:
            return []
        return [self._settler.monitor_task(self._kernel.ids.new_id(), name) for name in topology.types]

    async def declare(self) -> None:
        """Store the additional roles, so that all workers of the pipeline send them their events."""
        if self._topology.additional:
            await self._artifacts.put_roles(self._topology.additional)
        if self._kinds == {GOAL_ROLE}:
            now = await self._kernel.store.now()
            servers = await self._kernel.store.servers.list_all(self._kernel.settings.namespace)
            live = [server for server in servers if shown_server_state(server, now) in LIVE_SERVER_STATES]
            if not any(GOAL_READINESS in server.handlers for server in live):
                _log.warning(
                    "no live worker plays the role readiness, without which %s receives no events: start one with "
                    "`treadle worker --topology FILE`",
                    ", ".join(self._topology.roles),
                )

    def check(self) -> None:
        """Raise `InvalidTopology` if this process lacks gates, a reviewer or suitable handlers."""
        topology, registry = self._topology, self._kernel.registry
        for name, rules in topology.types.items():
            if (handler := registry.find(rules.handler)) is not None and handler.executes is not None:
                raise InvalidTopology(
                    topology.name, (TopologyProblem(f"types.{name}.handler", _NO_SPECIALIST.format(rules.handler)),)
                )
        if GOAL_GATE in self._kinds:
            self._gates.check(topology)
        wanted = {f"roles.{name}.handler": role.handler for name, role in topology.roles.items() if role.handler is not None}
        if topology.reviewer is not None and GOAL_READINESS in self._kinds:
            wanted["reviewer"] = topology.reviewer
        names = registry.names()
        missing = [
            TopologyProblem(
                path, f"there is no handler {name} here; there are {', '.join(names) or 'none'}{suggestion(name, names)}"
            )
            for path, name in wanted.items()
            if registry.find(name) is None
        ]
        if missing:
            raise InvalidTopology(topology.name, tuple(missing))

    def find(self, kind: str, name: str) -> RegisteredHandler | None:
        """Return the handler for tasks of that kind and name, if this process has that role."""
        if kind not in self._kinds:
            return None
        if kind == GOAL_RUN:
            return self._called(kind, name, self._running)
        if kind == GOAL_ROLE:
            role_name, _, of_type = name.partition("/")
            role = self._topology.roles.get(role_name)
            is_declared = role is not None and of_type in self._topology.types
            return self._called(kind, str(role.handler), self._playing) if role is not None and is_declared else None
        # a task that belongs to no type has its kind as its name: follow-ups for dependants, the monitor
        return self._own.get(kind) if name == kind or name in self._topology.types else None

    def _called(self, kind: str, name: str, calling: Callable[[RegisteredHandler], Call]) -> RegisteredHandler | None:
        """Return a handler that calls the user's handler of that name for tasks of that kind."""
        user = self._kernel.registry.find(name)
        if user is None:
            return None
        handler = self._users.get((kind, name))
        if handler is None:
            bound = {"thread": THREADS, "process": PROCESSES}.get(user.isolation)
            handler = self._users[kind, name] = msgspec.structs.replace(
                user,
                name=f"{kind}/{user.name}",
                call=calling(user),
                arguments=2,
                isolation="loop",
                timeout_for=None,
                concurrency=user.concurrency or bound,
                executes=None,
                cancels=None,
            )
        return handler

    async def _review(self, payload: dict[str, Any], ctx: Context) -> Outcome:
        """Call the reviewer for a NEW objective, if there is a reviewer."""
        reviewer = self._topology.reviewer
        if reviewer is None or "objective_id" not in payload:
            return Succeeded()
        try:
            seen = await self._artifacts.find_objective(payload["objective_id"])
        except StoreError as error:
            return Released(f"the objective could not be read: {error}")
        handler = self._kernel.registry.find(reviewer)
        if seen is None or handler is None or seen.objective.status != Status.NEW:
            return Succeeded()
        inner = _inner(ctx, handler, {"objective": seen.objective.as_json()})
        outcome = await call(handler, inner, self._executor)
        if isinstance(outcome, Retry | Failed | Waiting | Released):
            return outcome
        if not isinstance(outcome, Succeeded):
            kind = type(outcome).__name__
            return Failed(Problem("unexpected_result", f"The reviewer {reviewer} returned {kind}; it must return a dict."))
        review = outcome.result
        if not isinstance(review.get("approved"), bool):
            return Failed(
                Problem(
                    "unexpected_result", f"The reviewer {reviewer} must return {{'approved': true or false}}, not {shown(review)}."
                )
            )
        return Succeeded(
            {"review": {"by": reviewer, "approved": review["approved"], "reason": text_of(review.get("reason") or "")}}
        )

    async def _judge(self, payload: dict[str, Any]) -> Outcome:
        """Run the gates, unless the workorder is already judged or has no output."""
        artifacts, topology = self._artifacts, self._topology
        work_order_id = payload["work_order_id"]
        try:
            workorder = await artifacts.find(Workorder, work_order_id)
            bundle = await artifacts.find(OutputBundle, follow_up_id(work_order_id, "bundle"))
            judged = await artifacts.find(RunRecord, follow_up_id(work_order_id, "run_record"))
            seen = None if workorder is None else await artifacts.find_objective(workorder.objective_id)
        except StoreError as error:
            return Released(f"the workorder could not be read: {error}")
        if workorder is None or bundle is None or seen is None or judged is not None or bundle.error is not None:
            return Succeeded()
        rules = topology.types.get(seen.objective.type)
        specs = () if rules is None else rules.gates
        reports = await self._gates.judge(specs, bundle, seen.objective, workorder, Path(topology.folder), self._executor)
        return Succeeded({"gates": [report.as_json() for report in reports]})

    async def _scan(self, _: dict[str, Any], ctx: Context) -> Outcome:
        """Scan the objectives of a type, and again after the interval."""
        topology = self._topology
        if ctx.task.name not in topology.types:  # stored by a version with one monitor for all types
            return Succeeded()
        try:
            await self._settler.scan(ctx.token, topology, ctx.task.name)
        except StoreError as error:
            return Released(f"objectives could not be read: {error}")
        role = topology.roles.get("deadline")
        return Waiting((role.interval_for if role is not None else None) or MONITOR_EVERY_FOR)

    def _running(self, user: RegisteredHandler) -> Call:
        async def run(payload: dict[str, Any], ctx: Context) -> Outcome:
            """Call the workorder's handler within the rest of its budget; skip a workorder that is already EXECUTED."""
            try:
                workorder = await self._artifacts.find(Workorder, payload["work_order_id"])
                snapshot = None if workorder is None else await self._artifacts.find(ContextSnapshot, workorder.snapshot_id)
            except StoreError as error:
                return Released(f"the workorder could not be read: {error}")
            if workorder is None or workorder.status != "CREATED":
                return Succeeded()
            if user.executes is not None:
                return Failed(Problem("unexpected_result", _NO_SPECIALIST.format(user.name)))
            if snapshot is None:
                return Failed(Problem("value_lost", "The context snapshot of the workorder is no longer in the store."))
            spent, checkpoint = _spent(ctx)
            remaining_ms = workorder.budget_ms - spent
            if remaining_ms <= 0:
                return _out_of_budget(workorder)
            arguments = {
                "objective": snapshot.objective.as_json(),
                "workorder": workorder.as_json(),
                "snapshot": snapshot.as_json(),
                "prompt": snapshot.prompt,
            }
            timeout_for = remaining_ms if user.timeout_for is None else min(remaining_ms, user.timeout_for)
            inner = _inner(ctx, user, arguments, timeout_for, checkpoint)
            started = self._kernel.clock.monotonic()
            outcome = await call(user, inner, self._executor)
            spent += math.ceil((self._kernel.clock.monotonic() - started) * 1000)
            if isinstance(outcome, Retry) and spent >= workorder.budget_ms:
                return _out_of_budget(workorder)
            if isinstance(outcome, AwaitingApproval):
                message = "A workorder's handler cannot ask for an approval; people approve objectives."
                return Failed(Problem("unexpected_result", message))
            after = {"spent_ms": spent, "checkpoint": decode(checkpoint)}
            ctx.task.checkpoint = encode(after, "checkpoint")  # kept across a retry or a pause
            if isinstance(outcome, Waiting):
                return Waiting(
                    outcome.wait_for, {**after, "checkpoint": outcome.checkpoint} if outcome.checkpoint is not None else after
                )
            return outcome

        return run

    def _playing(self, user: RegisteredHandler) -> Call:
        async def play(payload: dict[str, Any], ctx: Context) -> Outcome:
            """Call the handler of an additional role with the event and the objective as it is now."""
            try:
                seen = await self._artifacts.find_objective(payload["objective_id"])
            except StoreError as error:
                return Released(f"the objective could not be read: {error}")
            if seen is None:
                return Succeeded()
            arguments = {"role": payload["role"], "event": payload["event"], "objective": seen.objective.as_json()}
            outcome = await call(user, _inner(ctx, user, arguments, user.timeout_for, ctx.task.checkpoint), self._executor)
            if isinstance(outcome, AwaitingApproval) or user.executes is not None:
                return Failed(
                    Problem("unexpected_result", f"{user.name} cannot play a role: it is a specialist, or asks for an approval.")
                )
            return outcome

        return play


async def _nothing(_: dict[str, Any]) -> None:
    """Do nothing: settling the task schedules."""


def _inner(
    ctx: Context,
    handler: RegisteredHandler,
    payload: dict[str, Json],
    timeout_for: int | None = None,
    checkpoint: str | None = None,
) -> Context:
    """Return the attempt as the user's handler sees it: with its name, payload, timeout and checkpoint."""
    task = msgspec.structs.replace(
        ctx.task, name=handler.name, payload=encode(payload, "workorder", 2**31), timeout_for=timeout_for, checkpoint=checkpoint
    )
    return ctx.standing_in(task)


def _spent(ctx: Context) -> tuple[int, str | None]:
    """Return the milliseconds spent by earlier attempts, and the handler's checkpoint."""
    checkpoint = decode(ctx.task.checkpoint)
    if not isinstance(checkpoint, dict) or "spent_ms" not in checkpoint:
        return 0, None
    inner = checkpoint.get("checkpoint")
    return int(checkpoint["spent_ms"]), None if inner is None else encode(inner, "checkpoint")


def _out_of_budget(workorder: Workorder) -> Failed:
    return Failed(Problem(BUDGET_CODE, f"The budget of {workorder.budget_ms} ms was exceeded before the handler finished."))
