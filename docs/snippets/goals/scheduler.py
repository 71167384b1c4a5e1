from pathlib import Path

from treadle import Engine
from treadle.testing import BlockingEnvironment

Path("topology.yaml").write_text("""
roles: [readiness, scheduler]
types: {TICKET: {handler: write, gates: [], budget: 5m, prompt: "Do this: $title"}}
""")
engine = Engine("memory://")
engine.goals.use_topology("topology.yaml")

with BlockingEnvironment(engine) as env:
    objectives = engine.goals.objectives
    guide = env.run(objectives.add("Write the guide", actor="ada"))
    env.run(objectives.approve(guide.objective_id, actor="ada"))
    env.drain()

    trail = env.run(objectives.show(guide.objective_id))
    assert trail.objective.status == "IN_PROGRESS"
    assert [(event.processed, event.processed_reason) for event in trail.events] == [
        (True, "SCHEDULED")
    ]
    [made] = trail.workorders
    assert (
        made.workorder.status,
        made.workorder.diazotroph_type,
        made.workorder.budget_ms,
    ) == ("CREATED", "write", 300_000)
    assert made.snapshot.prompt == "Do this: Write the guide"
