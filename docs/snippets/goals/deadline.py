from pathlib import Path

from treadle import Engine
from treadle.testing import BlockingEnvironment

Path("topology.yaml").write_text("""
roles: {readiness: {}, deadline: {interval: 10m}}
types: {TICKET: {handler: write, gates: []}}
deadlines: {4: 1h, 3: 8h}           # urgency: time from the approval
""")
engine = Engine("memory://")
engine.goals.use_topology("topology.yaml")

with BlockingEnvironment(engine) as env:
    objectives = engine.goals.objectives
    guide = env.run(objectives.add("Write the guide", actor="ada", urgency=4))
    env.run(objectives.approve(guide.objective_id, actor="ada"))
    env.advance(minutes=50)
    assert env.run(objectives.show(guide.objective_id)).overdue is None
    env.advance(minutes=20)

    trail = env.run(objectives.show(guide.objective_id))
    assert (trail.overdue.reason, trail.overdue.terminal) == ("DEADLINE_PASSED", False)
    for each in trail.overdue.actions:
        print(each.priority, each.action)
