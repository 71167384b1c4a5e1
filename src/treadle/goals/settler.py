"""Settles the tasks of the goal pipeline's roles: a role's decision commits with the end of its task, under its claim.

It reads, decides in pure code and commits under the versions read; if one has changed, it starts over. Each role is therefore
idempotent: it finds earlier results and repeats nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec.structs import replace

from treadle.api.objectives import BundleError, GateReport, Objective, OutputBundle, ReadinessEvent, RunRecord, Workorder
from treadle.api.wire import Instant
from treadle.goals import kinds
from treadle.goals.artifacts import Artifacts
from treadle.goals.decide import (
    Changed,
    Decision,
    ReadRecord,
    blocked,
    decide_executed,
    decide_gate,
    decide_overdue,
    decide_readiness,
    decide_schedule,
    dependants_task,
    hold_text,
    readiness_task,
    resolve_blocker,
    resolved_by,
    role_queue,
    role_task,
    text_blocker,
    unblocked,
)
from treadle.goals.kinds import GOAL_DEADLINE, GOAL_READINESS, GOAL_ROLE, GOAL_RUN
from treadle.goals.records import FAIL, Status, artifact_of, follow_up_id
from treadle.goals.topology import Role, Topology
from treadle.kernel.core import Core, Service
from treadle.kernel.queue.decide import TaskDecision, backed_off, settlement, settlement_of
from treadle.kernel.store.committer import Stale
from treadle.kernel.store.units import Finish, Requeue, Row, Unit, UnitAnswer, Verdict
from treadle.kernel.telemetry.events import StoreTrouble
from treadle.model.errors import Contended, Refused, StoreError, StoreUnavailable, TreadleError, UnreadableValue
from treadle.model.outcomes import Problem, Released
from treadle.model.retry import RetryPolicy
from treadle.model.states import TaskState
from treadle.model.tasks import Claim, NewTask, Task
from treadle.model.values import Json, decode, encode

PAGE = 200
_WATCHED = (Status.TODO, Status.IN_PROGRESS, Status.BLOCKED)


def is_overdue(objective: Objective, topology: Topology, now: int) -> bool:
    """Whether the deadline has passed and the objective is not flagged yet."""
    allowed_for = topology.deadlines.get(objective.urgency)
    if allowed_for is None or objective.approved_at is None or objective.overdue_at is not None:
        return False
    approved_at = objective.approved_at.ms
    return approved_at + allowed_for <= now


def role_tasks(namespace: str, roles: Mapping[str, Role], decision: Decision, task: Task | None = None) -> list[NewTask]:
    """Return the additional roles' tasks for the transitions of a decision, and for the operator's transition that `task`
    checks."""
    transitions = [
        (change.document.objective_id, change.document.type, change.transition, f"version/{change.record.version}")
        for change in decision.changed
        if isinstance(change.document, Objective) and change.transition is not None
    ]
    if task is not None and task.kind == GOAL_READINESS and (transition := decode(task.payload).get("transition")) is not None:
        transitions.append((decode(task.payload)["objective_id"], task.name, transition, task.id))
    return [
        role_task(namespace, objective_id, of_type, name, transition, occasion)
        for objective_id, of_type, transition, occasion in transitions
        for name, role in roles.items()
        if f"objective.{transition}" in role.events and of_type in role.types and not (role.holds and transition == "approve")
    ]


def decide_role(seen: ReadRecord, role: str, result: dict[str, Json], now: Instant, namespace: str) -> Decision | None:
    """Block a TODO objective for the reason in `block`, or unblock a BLOCKED one with `unblock: true`; None for anything else.

    The role lets go of an objective that it holds: that becomes TODO, unless there is a reason or another blocker.
    """
    objective, reason = seen.objective, result.get("block")
    actor, is_reason = f"role:{role}", isinstance(reason, str) and bool(reason.strip())
    released = [
        resolve_blocker(blocker, now, actor) if blocker.text == hold_text(role) and not blocker.resolved else blocker
        for blocker in objective.blockers
    ]
    if objective.status == Status.BLOCKED and released != objective.blockers:
        after, transition = replace(objective, blockers=released), "resolve"
        if is_reason:
            after = blocked(after, text_blocker(after, str(reason)))
        elif not after.open_blockers:
            after, transition = unblocked(after), "unblock"
    elif is_reason and objective.status == Status.TODO:
        after, transition = blocked(objective, text_blocker(objective, str(reason))), "block"
    elif result.get("unblock") is True and objective.status == Status.BLOCKED:
        after, transition = unblocked(resolved_by(objective, actor, now)), "unblock"
    else:
        return None
    after = replace(after, updated_at=now)
    changed = Changed(seen.record, after, transition, actor, {"reason": reason} if is_reason else None)
    tasks = [readiness_task(namespace, after, f"status/{after.status_version}")] if after.status == Status.TODO else []
    return Decision({**result, "transition": transition}, changed=[changed], tasks=tasks)


DEPENDANTS_PAGE = 200
"""Dependent objectives that one unit checks."""

_AGAIN_FOR = 1_000
_CODE = "not_judged"


class NoTopology(TreadleError, code="no_topology"):
    """A role's task was settled in a process without a topology."""


class GoalSettler(Service):
    """Decides for the roles, with the topology of this process, and flags overdue objectives of one namespace."""

    def __init__(self, core: Core, artifacts: Artifacts, topology: Callable[[], Topology | None]) -> None:
        super().__init__(core)
        self._artifacts = artifacts
        self._topology = topology

    async def scan(self, claim: Claim, topology: Topology, objective_type: str) -> int:
        """Scan objectives of a type under the claim of the monitor's task; return the number of newly overdue ones.

        An objective that changes meanwhile is left for the next scan; when the claim is lost, another worker has taken over.
        """
        overdue = 0
        before_id: str | None = None
        while page := await self._artifacts.list_objectives(_WATCHED, before_id, PAGE, live=True):
            now = await self._store.now()
            for seen in page:
                if seen.objective.type == objective_type and is_overdue(seen.objective, topology, now):
                    verdict = await self._flag(claim, seen, topology, Instant.of(now))
                    if verdict is Verdict.CLAIM_LOST:
                        return overdue
                    overdue += verdict is Verdict.DONE
            before_id = page[-1].objective.objective_id
        return overdue

    async def _flag(self, claim: Claim, seen: ReadRecord, topology: Topology, now: Instant) -> Verdict:
        decision = decide_overdue(seen, now)
        tasks = tuple(role_tasks(self._namespace, await self._roles(), decision))
        return (await self._committer.submit(Unit(claim, tasks=tasks, rows=self._artifacts.rows(decision)))).verdict

    def monitor_task(self, task_id: str, objective_type: str) -> NewTask:
        """Return the monitor's task for a type; storing it again has no effect while one is live."""
        queue = role_queue(self._namespace, GOAL_DEADLINE, objective_type)
        return NewTask(id=task_id, queue=queue, unique_key=f"{GOAL_DEADLINE}/{objective_type}")

    async def settle(self, task: Task, token: Claim, decided: TaskDecision) -> UnitAnswer:
        """Commit the end of a role's task and its consequences in one unit; a Requeue changes nothing else."""
        ended = settlement_of(decided)
        if isinstance(ended, Requeue) or task.kind == GOAL_DEADLINE:
            return await self._committer.submit(Unit(token, ended))

        async def attempt() -> UnitAnswer:
            decision = await self._decide_at_last(task, ended)
            finish = ended if decision is None else _finished(decision)
            tasks, rows = ((), ()) if decision is None else (tuple(decision.tasks), self._artifacts.rows(decision))
            answer = await self._committer.submit(Unit(token, finish, tasks, rows=rows))
            deferred = answer.verdict is Verdict.DEFERRED
            if deferred or (answer.verdict is Verdict.DONE and await self._was_beaten(token, decision)):
                raise Stale
            return answer

        try:
            return await self._committer.transact(attempt, f"settle the task {task.id}")
        except UnreadableValue as error:
            return await self._committer.submit(Unit(token, backed_off(task, Problem(error.code, str(error)))))
        except Contended:
            pass  # retried later
        released = settlement_of(settlement(task, Released("its objective changes too fast"), RetryPolicy()))
        return await self._committer.submit(
            Unit(token, msgspec.structs.replace(released, delay=_AGAIN_FOR) if isinstance(released, Requeue) else released)
        )

    async def _decide_at_last(self, task: Task, finish: Finish) -> Decision | None:
        """Decide as soon as the store can be read, so that an outage does not lose work done under a claim."""
        while True:
            try:
                return await self.decide(task, finish)
            except StoreUnavailable as error:
                self._emit(StoreTrouble(f"reading for {task.kind}", str(error), _AGAIN_FOR / 1000))
                await self._clock.sleep(_AGAIN_FOR / 1000)

    async def _was_beaten(self, token: Claim, decision: Decision | None) -> bool:
        """Whether nothing was written because another task had just written the same; the claim is still held then."""
        if decision is None or not decision.new:
            return False
        try:
            task = await self._store.tasks.find(token.task_id)
        except StoreError:  # it is done, or its lease expires and another worker checks it
            return False
        return task is not None and not task.finished and task.claim == token

    async def decide(self, task: Task, finish: Finish) -> Decision | None:
        """Return the role's decision about the end of its task; None if the task simply ends."""
        decision = await self._decide(task, finish)
        if decision is not None:
            decision.tasks += role_tasks(self._namespace, await self._roles(), decision, task)
        return decision

    async def _roles(self) -> dict[str, Role]:
        """Return the additional roles that workers have declared, and those of this process's topology."""
        topology = self._topology()
        return {**({} if topology is None else topology.additional), **await self._artifacts.list_roles()}

    async def _decide(self, task: Task, finish: Finish) -> Decision | None:
        payload: dict[str, Json] = decode(task.payload)
        match task.kind:
            case kinds.GOAL_READINESS:
                return await self._readiness(payload, finish)
            case kinds.GOAL_SCHEDULE:
                return None if _failed(finish) else await self._schedule(payload["event_id"])
            case kinds.GOAL_RUN:
                return await self._executed(payload["work_order_id"], finish)
            case kinds.GOAL_GATE:
                return await self._gate(payload["work_order_id"], finish)
            case kinds.GOAL_ROLE if not _failed(finish):
                seen = await self._artifacts.find_objective(payload["objective_id"])
                result = decode(finish.result) or {}
                return None if seen is None else decide_role(seen, payload["role"], result, await self._now(), self._namespace)
            case _:
                return None

    async def follow(self, task: Task, finish: Finish) -> tuple[tuple[NewTask, ...], tuple[Row, ...]]:
        """Return the consequences of an operator ending a role's task: a canceled workorder is EXECUTED without a result.

        Ending the task of a built-in role is refused, because no task would check its objective afterwards.
        """
        if task.kind == GOAL_ROLE:
            return (), ()
        if task.kind != GOAL_RUN:
            raise Refused(
                f"Task {task.id} is a role of the goal pipeline ({task.kind}) and cannot be canceled; "
                "operate its objective with `treadle objectives`."
            )
        try:
            decision = await self.decide(task, finish)
        except UnreadableValue:
            return (), ()  # only the task ends
        return ((), ()) if decision is None else (tuple(decision.tasks), self._artifacts.rows(decision))

    async def _now(self) -> Instant:
        return Instant.of(await self._store.now())

    async def _readiness(self, payload: dict[str, Json], finish: Finish) -> Decision | None:
        if (objective_id := payload.get("dependants_of")) is not None:
            return await self._dependants(objective_id, payload.get("after_key"))
        if _failed(finish):
            return None
        seen = await self._artifacts.find_objective(payload["objective_id"])
        if seen is None:
            return Decision({"objective_id": payload["objective_id"], "emitted": False})
        review = (decode(finish.result) or {}).get("review")
        holders = [name for name, role in (await self._roles()).items() if role.holds and seen.objective.type in role.types]
        return decide_readiness(seen, await self._done_blockers(seen), await self._now(), review, self._namespace, holders)

    async def _done_blockers(self, seen: ReadRecord) -> set[str]:
        wanted = {blocker.objective_id for blocker in seen.objective.open_blockers if blocker.objective_id is not None}
        objectives = [await self._artifacts.find(Objective, objective_id) for objective_id in sorted(wanted)]
        return {objective.objective_id for objective in objectives if objective is not None and objective.status == Status.DONE}

    async def _dependants(self, objective_id: str, after_key: str | None) -> Decision:
        """Return a readiness task for each objective that waited for this one, and a follow-up task if there are more."""
        items = await self._store.records.list_items(objective_id, after_key, DEPENDANTS_PAGE)
        decision = Decision({"dependants_of": objective_id, "looked_at": len(items)})
        for key, _ in items:
            seen = await self._artifacts.find_objective(key)
            if seen is not None and seen.objective.status != Status.DONE:
                decision.tasks.append(readiness_task(self._namespace, seen.objective, f"after/{objective_id}"))
        if len(items) == DEPENDANTS_PAGE:
            decision.tasks.append(dependants_task(self._namespace, objective_id, items[-1][0]))
        return decision

    async def _schedule(self, event_id: str) -> Decision:
        topology = self._need_topology()
        stored = await self._artifacts.find_with_record(ReadinessEvent, event_id)
        if stored is None:
            return Decision({"event_id": event_id, "reason": "GONE"})
        record, event = stored
        seen = await self._artifacts.find_objective(event.resource_id)
        return decide_schedule(event, record, seen, topology, await self._now(), self._namespace)

    async def _executed(self, work_order_id: str, finish: Finish) -> Decision:
        stored = await self._artifacts.find_with_record(Workorder, work_order_id)
        if stored is None:
            return Decision({"work_order_id": work_order_id, "reason": "GONE"})
        record, workorder = stored
        seen = await self._artifacts.find_objective(workorder.objective_id)
        title = workorder.diazotroph_type if seen is None else seen.objective.title
        error = decode(finish.error) or {"code": "failed", "message": "It failed."} if _failed(finish) else None
        result = None if error is not None else decode(finish.result)
        of_type = None if seen is None else seen.objective.type
        return decide_executed(workorder, record, title, result, error, await self._now(), self._namespace, of_type)

    async def _gate(self, work_order_id: str, finish: Finish) -> Decision:
        topology = self._need_topology()
        workorder = await self._artifacts.find(Workorder, work_order_id)
        bundle = await self._artifacts.find(OutputBundle, follow_up_id(work_order_id, "bundle"))
        if workorder is None or bundle is None or workorder.status != "EXECUTED":
            return Decision({"work_order_id": work_order_id, "reason": "GONE" if workorder is None else "NOT_EXECUTED"})
        if (judged := await self._artifacts.find(RunRecord, follow_up_id(work_order_id, "run_record"))) is not None:
            return Decision({"work_order_id": work_order_id, "gate_result": judged.gate_result, "repeated": True})
        seen = await self._artifacts.find_objective(workorder.objective_id)
        rules = None if seen is None else topology.types.get(seen.objective.type)
        if _failed(finish):  # the gates could not run: the reason of their failure is the reason of a FAIL
            problem = artifact_of(BundleError, {"code": _CODE, "message": "", **_problem(finish)})
            reports = [GateReport(gate="gates", result=FAIL, reason=f"{problem.code}: {problem.message}"[:1000])]
        else:
            reports = [artifact_of(GateReport, report) for report in (decode(finish.result) or {}).get("gates", [])]
        return decide_gate(workorder, bundle, seen, reports, rules, await self._now(), self._namespace)

    def _need_topology(self) -> Topology:
        topology = self._topology()
        if topology is None:
            raise NoTopology("This process has no role in the goal pipeline; give its worker a topology: `--topology FILE`.")
        return topology


def _failed(finish: Finish) -> bool:
    return finish.state != TaskState.COMPLETED


def _problem(finish: Finish) -> dict[str, Json]:
    error = decode(finish.error) or {}
    return {name: str(error[name]) for name in ("code", "message") if error.get(name)}


def _finished(decision: Decision) -> Finish:
    """A role that has decided has succeeded, regardless of the decision."""
    return Finish("succeed", TaskState.COMPLETED, result=encode(decision.result, "result"))
