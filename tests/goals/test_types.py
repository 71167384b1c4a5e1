"""Several types of objectives in one namespace, each served by its own topology; and input of objectives that is rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engines import SHARED, make_engine, url_of
from tests.goals.scene import GATE, READINESS, RUN, SCHEDULE, approved, play, settle, take, use_topology

from treadle.model.errors import TreadleError

ONE = "name: one\ntypes:\n  CAPTURE: {handler: do, gates: []}\n"
OTHER = "name: other\ntypes:\n  REVIEW: {handler: do, gates: []}\n"
ROLES = (READINESS, SCHEDULE, GATE)


@pytest.mark.postgres
@pytest.mark.parametrize("kind", SHARED)
async def test_a_topology_serves_the_tasks_of_its_own_types_only(kind: str, request: Any, tmp_path: Path) -> None:
    engine = make_engine(url_of(kind, request, tmp_path))
    async with engine:
        for of_type in ("CAPTURE", "REVIEW"):
            use_topology(engine, tmp_path, ONE if of_type == "CAPTURE" else OTHER)
            roles = engine.goals.serve(None)  # type: ignore[arg-type]
            assert roles is not None
            made = await approved(engine, type=of_type)
            seen = []
            for role in (READINESS, READINESS, SCHEDULE, RUN, GATE):
                task = await play(engine, role)
                seen.append((task.kind, task.name))
                other = "REVIEW" if of_type == "CAPTURE" else "CAPTURE"
                if role in ROLES:
                    assert (task.name, roles.find(role, task.name) is not None, roles.find(role, other)) == (of_type, True, None)
            assert (await play(engine, READINESS)).name == READINESS  # its dependants, of any type
            assert (await engine.goals.objectives.get(made.objective_id)).status == "DONE", seen


@pytest.mark.parametrize("kind", SHARED)
async def test_the_claim_version_of_a_workorder_increases_across_roles(kind: str, request: Any, tmp_path: Path) -> None:
    engine = make_engine(url_of(kind, request, tmp_path))
    use_topology(engine, tmp_path, ONE)
    async with engine:
        await approved(engine, type="CAPTURE")
        for role in (READINESS, READINESS, SCHEDULE):
            await play(engine, role)
        versions = []
        for role in (RUN, GATE):
            task = await take(engine, role)
            assert task is not None
            (claim,) = await engine.goals.objectives.claims(role)
            versions.append((claim.resource_type, claim.resource_id, claim.claim_version))
            if role == RUN:
                await settle(engine, task, {})
        assert versions[0][:2] == versions[1][:2]
        assert versions[1][2] > versions[0][2]


@pytest.mark.parametrize(
    "fields",
    [
        {"acceptance_criteria": "abc"},
        {"acceptance_criteria": b"abc"},
        {"acceptance_criteria": {"a": 1}},
        {"acceptance_criteria": 3},
        {"blocked_by": "abc"},
        {"metadata": {"x": object()}},
        {"metadata": {"x": {1, 2}}},
        {"metadata": {"x": float("nan")}},
        {"metadata": [1]},
        {"type": "not a type"},
        {"type": 7},
    ],
)
async def test_invalid_fields_are_rejected_with_a_code(fields: dict[str, Any]) -> None:
    async with make_engine("memory://") as engine:
        with pytest.raises(TreadleError):
            await engine.goals.objectives.add("Do it", actor="ada", **fields)
        if "type" not in fields and "blocked_by" not in fields:
            made = await engine.goals.objectives.add("Do it", actor="ada")
            with pytest.raises(TreadleError):
                await engine.goals.objectives.edit(made.objective_id, actor="ada", **fields)
        with pytest.raises(TreadleError):
            await engine.goals.objectives.list(statuses="NEW")


async def test_the_reason_of_an_unserved_objective_names_its_type(tmp_path: Path) -> None:
    engine = make_engine("memory://")
    use_topology(engine, tmp_path, ONE)
    async with engine:
        made = await approved(engine, type="NOBODY")
        trail = await engine.goals.objectives.show(made.objective_id)
        assert (trail.objective.status, "declares the type NOBODY" in trail.why) == ("TODO", True)
