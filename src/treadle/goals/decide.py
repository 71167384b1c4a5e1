"""The decisions of the goal pipeline's roles: from the artifacts read to the artifacts written, in one unit each. Pure.

A decision lists new artifacts and changed ones; it is applied as a whole, under the claim of the role's task. Ids are derived,
so that repeating a decision produces the same artifacts (D11).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from string import Template

import msgspec

from treadle.api.objectives import (
    ArtifactDigest,
    Blocker,
    BundleError,
    ContextSnapshot,
    GateReport,
    NextAction,
    Objective,
    OutputBundle,
    PastWorkorder,
    PauseState,
    ReadinessEvent,
    RunRecord,
    Workorder,
)
from treadle.api.wire import Instant
from treadle.goals.kinds import GOAL_GATE, GOAL_READINESS, GOAL_ROLE, GOAL_RUN, GOAL_SCHEDULE
from treadle.goals.records import (
    BUDGET_CODE,
    FAIL,
    PASS,
    PAST_KEPT,
    SCHEDULED,
    STALE,
    UNSERVED,
    FollowUp,
    PauseReason,
    Status,
    event_id_of,
    follow_up_id,
)
from treadle.goals.topology import Topology, TypeRules
from treadle.model.ids import derived_id
from treadle.model.names import DEFAULT_NAMESPACE, ENGINE_LIST, QueueKey
from treadle.model.records import Record
from treadle.model.tasks import NewTask
from treadle.model.values import Json, encode

BLOCKERS_KEPT = 20
"""Resolved blockers that an objective keeps."""

REASON_LIMIT = 2000


def approved(objective: Objective, actor: str, now: Instant) -> Objective:
    """Return the objective as approved by a person (or the topology's reviewer)."""
    version = objective.status_version + 1
    return msgspec.structs.replace(objective, status=Status.TODO, status_version=version, approved_by=actor, approved_at=now)


def unblocked(objective: Objective) -> Objective:
    """Return the objective without its blockers; its count of failed workorders restarts."""
    return msgspec.structs.replace(objective, status=Status.TODO, status_version=objective.status_version + 1, failed_workorders=0)


def resolve_blocker(blocker: Blocker, now: Instant, actor: str) -> Blocker:
    """Return the blocker as resolved by that actor."""
    return msgspec.structs.replace(blocker, resolved=True, resolved_at=now, resolved_by=actor)


def resolved_by(objective: Objective, actor: str, now: Instant) -> Objective:
    """Return the objective with all its blockers resolved."""
    return msgspec.structs.replace(
        objective,
        blockers=[blocker if blocker.resolved else resolve_blocker(blocker, now, actor) for blocker in objective.blockers],
    )


def blocked(objective: Objective, blocker: Blocker) -> Objective:
    """Return the objective, BLOCKED by the given blocker."""
    resolved = [other for other in objective.blockers if other.resolved][-BLOCKERS_KEPT:]
    blockers = [other for other in objective.blockers if not other.resolved or other in resolved]
    return msgspec.structs.replace(
        objective, status=Status.BLOCKED, status_version=objective.status_version + 1, blockers=[*blockers, blocker]
    )


def text_blocker(objective: Objective, text: str) -> Blocker:
    """Return a blocker that only a person resolves."""
    return Blocker(blocker_id=next_blocker_id(objective), kind="TEXT", text=text[:REASON_LIMIT])


def next_blocker_id(objective: Objective) -> str:
    """Return a blocker id that is unused in the objective."""
    return f"b{max((int(blocker.blocker_id[1:]) for blocker in objective.blockers), default=0) + 1}"


Document = Objective | ReadinessEvent | ContextSnapshot | Workorder | OutputBundle | RunRecord | PauseState

_replace = msgspec.structs.replace
_BUNDLE_KEYS = frozenset({"title", "metadata", "content", "notes"})
_BLOCKER_LIMIT = 400


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record as it was read, and its artifact."""

    record: Record
    objective: Objective


@dataclass(frozen=True, slots=True)
class Changed:
    """The new version of an artifact; `transition` is the transition of its state machine, if any."""

    record: Record
    document: Document
    transition: str | None = None
    actor: str | None = None
    data: dict[str, Json] | None = None


@dataclass(slots=True)
class Decision:
    """The artifacts written together; `result` is stored in the task."""

    result: dict[str, Json]
    new: list[Document] = field(default_factory=list)
    changed: list[Changed] = field(default_factory=list)
    tasks: list[NewTask] = field(default_factory=list)


# --- tasks ---


def role_queue(namespace: str, kind: str, objective_type: str) -> QueueKey:
    """Return the queue of a role's tasks for one type, so that only processes whose topology has the type claim them."""
    return QueueKey(namespace, kind, ENGINE_LIST, objective_type)


def readiness_task(namespace: str, objective: Objective, occasion: str, transition: str | None = None) -> NewTask:
    """Return the task that checks whether the objective is executable; `occasion` distinguishes one check from another.

    `transition` is the operator's transition that it checks: it becomes an event of additional roles, which only a topology knows.
    """
    return NewTask(
        id=derived_id(objective.objective_id, f"readiness/{occasion}"),
        queue=role_queue(namespace, GOAL_READINESS, objective.type),
        payload=encode({"objective_id": objective.objective_id} | ({} if transition is None else {"transition": transition})),
        root_id=objective.objective_id,
    )


def dependants_task(namespace: str, objective_id: str, after_key: str | None = None) -> NewTask:
    """Return the task that checks all objectives blocked by this one, once it is DONE, a page at a time."""
    return NewTask(
        id=derived_id(objective_id, f"dependants/{after_key or ''}"),
        queue=QueueKey(namespace, GOAL_READINESS, ENGINE_LIST, GOAL_READINESS),
        payload=encode({"dependants_of": objective_id, "after_key": after_key}),
        root_id=objective_id,
    )


def role_task(namespace: str, objective_id: str, of_type: str, role: str, transition: str, occasion: str) -> NewTask:
    """Return the task in which an additional role receives a transition of an objective."""
    return NewTask(
        id=derived_id(objective_id, f"role/{role}/{transition}/{occasion}"),
        queue=role_queue(namespace, GOAL_ROLE, f"{role}/{of_type}"),
        payload=encode({"role": role, "event": f"objective.{transition}", "objective_id": objective_id}),
        root_id=objective_id,
    )


def hold_text(role: str) -> str:
    """Return the text of the blocker with which a role holds an objective until it has run."""
    return f"waits for the role {role}"


def _follow_up_task(queue: QueueKey, source_id: str, follow_up: FollowUp, objective_id: str) -> NewTask:
    """Return the task that follows from an event or a workorder."""
    payload = {"event_id" if follow_up == "schedule" else "work_order_id": source_id}
    return NewTask(id=follow_up_id(source_id, follow_up), queue=queue, payload=encode(payload), root_id=objective_id)


# --- readiness ---


def decide_readiness(
    seen: ReadRecord,
    done: Collection[str],
    now: Instant,
    review: dict[str, Json] | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    holders: Collection[str] = (),
) -> Decision:
    """Apply resolved blockers and a review, and emit the readiness event of this status, once, if the objective is executable.

    `done` holds the blocking objectives that are DONE. A BLOCKED objective becomes TODO when its last blocker is among them.
    `holders` are the additional roles that hold objectives of its type: before the first event, each blocks it and runs.
    """
    objective, transition, actor = seen.objective, None, "readiness"
    resolved = [
        resolve_blocker(blocker, now, actor) if blocker.objective_id in done and not blocker.resolved else blocker
        for blocker in objective.blockers
    ]
    if resolved != objective.blockers:
        objective, transition = _replace(objective, blockers=resolved), "resolve"
    if objective.status == Status.NEW and review is not None:
        actor = f"reviewer:{review['by']}"
        transition = "approve" if review["approved"] else "review"
        objective = approved(objective, actor, now) if review["approved"] else objective
    elif objective.status == Status.BLOCKED and transition == "resolve" and not objective.open_blockers:
        objective, transition = unblocked(objective), "unblock"
    decision = Decision({"objective_id": objective.objective_id, "status": objective.status, "emitted": False})
    data: dict[str, Json] | None = None if review is None else {"approved": review["approved"], "reason": review.get("reason")}
    held_by = [role for role in holders if all(blocker.text != hold_text(role) for blocker in objective.blockers)]
    if objective.executable and held_by and seen.record.state != Status.TODO:  # one transition in each commit
        decision.tasks.append(readiness_task(namespace, objective, f"status/{objective.status_version}"))
    elif objective.executable and held_by:
        for role in held_by:
            objective = blocked(objective, text_blocker(objective, hold_text(role)))
            decision.tasks.append(role_task(namespace, objective.objective_id, objective.type, role, "approve", "hold"))
        transition, data = "block", {"reason": "; ".join(map(hold_text, held_by))}
    elif objective.executable and (objective.emitted_version is None or objective.emitted_version < objective.status_version):
        event = ReadinessEvent(
            event_id=event_id_of(objective.objective_id, objective.status_version),
            resource_id=objective.objective_id,
            status_version=objective.status_version,
            created_at=now,
        )
        objective = _replace(objective, emitted_version=objective.status_version)
        decision.new.append(event)
        queue = role_queue(namespace, GOAL_SCHEDULE, objective.type)
        decision.tasks.append(_follow_up_task(queue, event.event_id, "schedule", event.resource_id))
        decision.result |= {"emitted": True, "event_id": event.event_id}
    if objective != seen.objective or transition is not None:
        decision.changed.append(Changed(seen.record, _replace(objective, updated_at=now), transition, actor, data))
    return decision


# --- scheduler ---


def decide_schedule(
    event: ReadinessEvent,
    event_record: Record,
    seen: ReadRecord | None,
    topology: Topology,
    now: Instant,
    namespace: str = DEFAULT_NAMESPACE,
) -> Decision:
    """Create the context snapshot and the workorder of the event, set the objective IN_PROGRESS, and mark the event processed.

    An event that is already processed changes nothing; if its objective has changed since, the event is processed as STALE.
    """
    if event.processed:
        return Decision({"event_id": event.event_id, "reason": event.processed_reason, "repeated": True})
    objective = None if seen is None else seen.objective
    if objective is None or seen is None or not objective.executable or objective.status_version != event.status_version:
        return _processed(event, event_record, STALE, now)
    rules = topology.types.get(objective.type)
    if rules is None:
        decision = _processed(event, event_record, UNSERVED, now)
        why = f"The topology {topology.name} has no rules for objectives of type {objective.type}."
        after = _replace(blocked(objective, text_blocker(objective, why)), updated_at=now)
        decision.changed.append(Changed(seen.record, after, "block", "scheduler", {"reason": why}))
        return decision
    workorder = Workorder(
        work_order_id=follow_up_id(event.event_id, "workorder"),
        objective_id=objective.objective_id,
        event_id=event.event_id,
        diazotroph_type=rules.handler,
        snapshot_id=follow_up_id(event.event_id, "snapshot"),
        budget_ms=rules.budget_for,
        created_at=now,
    )
    decision = _processed(event, event_record, SCHEDULED, now)
    decision.result |= {"work_order_id": workorder.work_order_id}
    decision.new += [_snapshot(objective, event, rules, topology, now), workorder]
    after = _replace(
        objective,
        status=Status.IN_PROGRESS,
        status_version=objective.status_version + 1,
        work_order_id=workorder.work_order_id,
        updated_at=now,
    )
    decision.changed.append(Changed(seen.record, after, "schedule", "scheduler", {"work_order_id": workorder.work_order_id}))
    queue = QueueKey(namespace, GOAL_RUN, rules.task_list, workorder.diazotroph_type)
    decision.tasks.append(_follow_up_task(queue, workorder.work_order_id, "run", workorder.objective_id))
    return decision


def _processed(event: ReadinessEvent, record: Record, reason: str, now: Instant) -> Decision:
    after = _replace(event, processed=True, processed_reason=reason, processed_at=now)
    return Decision(
        {"event_id": event.event_id, "reason": reason}, changed=[Changed(record, after, "process", "scheduler", {"reason": reason})]
    )


def _snapshot(objective: Objective, event: ReadinessEvent, rules: TypeRules, topology: Topology, now: Instant) -> ContextSnapshot:
    past = objective.workorders
    return ContextSnapshot(
        snapshot_id=follow_up_id(event.event_id, "snapshot"),
        event_id=event.event_id,
        objective_id=objective.objective_id,
        objective=objective,
        blockers=objective.blockers,
        run_records=[
            ArtifactDigest(id=follow_up_id(workorder.work_order_id, "run_record"), digest=workorder.run_record_digest)
            for workorder in past
        ],
        output_bundles=[
            ArtifactDigest(id=follow_up_id(workorder.work_order_id, "bundle"), digest=workorder.output_bundle_digest)
            for workorder in past
        ],
        topology_name=topology.name,
        topology_digest=topology.digest,
        prompt=prompt_of(objective, rules),
        created_at=now,
    )


def prompt_of(objective: Objective, rules: TypeRules) -> str:
    """Return the prompt: the objective's own, else the topology's (`$title`, `$acceptance_criteria`), else a plain one."""
    criteria = "\n".join(f"- {criterion}" for criterion in objective.acceptance_criteria)
    words = {"title": objective.title, "acceptance_criteria": criteria, "type": objective.type, "id": objective.objective_id}
    template = objective.prompt or rules.prompt
    if template is not None:
        return Template(template).safe_substitute(words)
    return f"{objective.title}\n\nIt is done when:\n{criteria}" if criteria else objective.title


# --- runner ---


def decide_executed(
    workorder: Workorder,
    record: Record,
    title: str,
    result: dict[str, Json] | None,
    error: dict[str, Json] | None,
    now: Instant,
    namespace: str = DEFAULT_NAMESPACE,
    objective_type: str | None = None,
) -> Decision:
    """Store the handler's result, or the reason for its absence (D42), as the output bundle; set the workorder EXECUTED.

    A workorder that is already EXECUTED changes nothing.
    """
    ids: dict[str, Json] = {"work_order_id": workorder.work_order_id, "bundle_id": follow_up_id(workorder.work_order_id, "bundle")}
    if workorder.status != "CREATED":
        return Decision({**ids, "repeated": True})
    bundle = _bundle(workorder, title, result or {}, error, now)
    decision = Decision({**ids, "error": None if error is None else error.get("code")}, new=[bundle])
    after = _replace(workorder, status="EXECUTED", executed_at=now)
    decision.changed.append(Changed(record, after, "execute", "runner", None if error is None else {"error": error.get("code")}))
    queue = role_queue(namespace, GOAL_GATE, objective_type or GOAL_GATE)
    decision.tasks.append(_follow_up_task(queue, workorder.work_order_id, "gate", workorder.objective_id))
    return decision


def _bundle(workorder: Workorder, title: str, result: dict[str, Json], error: dict[str, Json] | None, now: Instant) -> OutputBundle:
    """Return the bundle of a handler's result: its parts if they have a bundle's names, else the whole result as content."""
    parts: dict[str, Json] = {} if error is not None else {"content": result}
    if result and set(result) <= _BUNDLE_KEYS and _fits(result):
        parts = result
    notes = parts.get("notes") or []
    notes = [notes] if isinstance(notes, str) else list(notes)
    failed = None
    if error is not None:
        failed = BundleError(code=str(error.get("code") or "failed"), message=str(error.get("message") or ""))
        notes.append(f"{failed.code}: {failed.message}")
    return OutputBundle(
        bundle_id=follow_up_id(workorder.work_order_id, "bundle"),
        work_order_id=workorder.work_order_id,
        objective_id=workorder.objective_id,
        title=parts.get("title") or title,
        metadata=parts.get("metadata") or {},
        content=parts.get("content"),
        notes=notes,
        error=failed,
        created_at=now,
    )


def _fits(result: dict[str, Json]) -> bool:
    notes = result.get("notes", [])
    return (
        isinstance(result.get("title", ""), str)
        and isinstance(result.get("metadata", {}), dict)
        and (isinstance(notes, str) or (isinstance(notes, list) and all(isinstance(note, str) for note in notes)))
    )


# --- gate ---


def decide_gate(
    workorder: Workorder,
    bundle: OutputBundle,
    seen: ReadRecord | None,
    reports: Sequence[GateReport],
    rules: TypeRules | None,
    now: Instant,
    namespace: str = DEFAULT_NAMESPACE,
) -> Decision:
    """Judge the workorder: write its run record and its terminal pause state, and advance its objective."""
    record = _judged(workorder, bundle, reports, rules, now)
    decision = Decision({"work_order_id": workorder.work_order_id, "gate_result": record.gate_result}, new=[record])
    after: Objective | None = None
    if seen is not None and seen.objective.status == Status.IN_PROGRESS and seen.objective.work_order_id == workorder.work_order_id:
        after, transition = _after(seen.objective, record, bundle, rules)
        after = _replace(after, updated_at=now)
        decision.changed.append(
            Changed(seen.record, after, transition, "gate", {"gate_result": record.gate_result, "reason": record.reason})
        )
        if after.status == Status.TODO:
            decision.tasks.append(readiness_task(namespace, after, f"status/{after.status_version}"))
        if after.status == Status.DONE:
            decision.tasks.append(dependants_task(namespace, after.objective_id))
    decision.new.append(_pause(workorder, record, bundle, after, now))
    return decision


def _judged(
    workorder: Workorder, bundle: OutputBundle, reports: Sequence[GateReport], rules: TypeRules | None, now: Instant
) -> RunRecord:
    failed = [report for report in reports if report.result == FAIL]
    if bundle.error is not None:
        result, reason = FAIL, f"no output: {bundle.error.code}: {bundle.error.message}"
    elif failed:
        result, reason = FAIL, "; ".join(f"{report.gate}: {report.reason}" for report in failed)
    elif rules is None:
        result, reason = FAIL, "the gate's topology has no rules for objectives of this type"
    elif missing := {gate.name for gate in rules.gates} - {report.gate for report in reports}:
        result, reason = FAIL, f"not judged by {', '.join(sorted(missing))}"
    else:
        result, reason = PASS, f"{len(reports)} of {len(reports)} gates passed" if reports else "its type has no gates"
    return RunRecord(
        run_record_id=follow_up_id(workorder.work_order_id, "run_record"),
        work_order_id=workorder.work_order_id,
        objective_id=workorder.objective_id,
        bundle_id=bundle.bundle_id,
        gate_result=result,
        reason=reason[:REASON_LIMIT],
        gates=list(reports),
        created_at=now,
    )


def _after(objective: Objective, record: RunRecord, bundle: OutputBundle, rules: TypeRules | None) -> tuple[Objective, str]:
    """Return the next status and the transition: DONE, TODO for another attempt, or BLOCKED when the policy allows no more
    (D42)."""
    past = PastWorkorder(
        work_order_id=record.work_order_id,
        gate_result=record.gate_result,
        run_record_digest=digest_of(record),
        output_bundle_digest=digest_of(bundle),
    )
    passed = record.gate_result == PASS
    objective = _replace(
        objective,
        workorders=[*objective.workorders, past][-PAST_KEPT:],
        work_order_id=None,
        failed_workorders=objective.failed_workorders + (not passed),
    )
    if passed:
        return _replace(objective, status=Status.DONE, status_version=objective.status_version + 1), "pass"
    tries = objective.failed_workorders
    if rules is not None and rules.on_fail == Status.TODO and tries < rules.max_workorders:
        return _replace(objective, status=Status.TODO, status_version=objective.status_version + 1), "fail"
    why = f"{tries} workorder{'s' if tries > 1 else ''} failed; the last: {' '.join(record.reason.split())}"[:_BLOCKER_LIMIT]
    return blocked(objective, text_blocker(objective, why)), "give_up"


def _pause(workorder: Workorder, record: RunRecord, bundle: OutputBundle, after: Objective | None, now: Instant) -> PauseState:
    objective_id = workorder.objective_id
    if record.gate_result == PASS:
        reason = PauseReason.RUN_COMPLETE
        actions = [f"Use the result: `treadle objectives show {objective_id}`."]
    else:
        spent = bundle.error is not None and bundle.error.code == BUDGET_CODE
        reason = PauseReason.BUDGET_EXHAUSTED if spent else PauseReason.GATE_FAILED
        actions = [f"Look at the output and the reason of the failure: `treadle objectives show {objective_id}`."]
        if spent:
            actions.append(f"Raise the budget of its type in the topology (now {workorder.budget_ms} ms), or reduce its scope.")
        if after is not None and after.status == Status.BLOCKED:
            actions.append(f"Remove the cause, then `treadle objectives unblock {objective_id}`.")
        elif after is not None:
            actions.append("None if another attempt may help: a new workorder follows.")
    return PauseState(
        pause_state_id=follow_up_id(workorder.work_order_id, "pause_state"),
        objective_id=objective_id,
        work_order_id=workorder.work_order_id,
        reason=reason,
        terminal=True,
        actions=[NextAction(priority=number, action=action) for number, action in enumerate(actions[:3], 1)],
        created_at=now,
    )


# --- deadline monitor ---


def decide_overdue(seen: ReadRecord, now: Instant) -> Decision:
    """Flag the objective as overdue, once, with a pause state that lists next actions."""
    objective = seen.objective
    actions = {
        Status.BLOCKED: f"Resolve its blockers: `treadle objectives show {objective.objective_id}`.",
        Status.IN_PROGRESS: "Wait for its workorder, or check its worker.",
    }
    first = actions.get(Status(objective.status), "Start workers for its type, or resolve its blockers: `treadle objectives show`.")
    pause = PauseState(
        pause_state_id=follow_up_id(objective.objective_id, "overdue"),
        objective_id=objective.objective_id,
        reason=PauseReason.DEADLINE_PASSED,
        terminal=False,
        actions=[
            NextAction(priority=1, action=first),
            NextAction(priority=2, action=f"Lower its urgency: `treadle objectives edit {objective.objective_id} --urgency N`."),
        ],
        created_at=now,
    )
    after = _replace(objective, overdue_at=now, updated_at=now)
    return Decision({}, new=[pause], changed=[Changed(seen.record, after, "overdue", "deadline")])


def digest_of(document: Document) -> str:
    """Return the digest of an artifact's document, independent of the order of keys."""
    text = msgspec.json.encode(document.as_json(), order="sorted")
    return hashlib.sha256(text).hexdigest()
