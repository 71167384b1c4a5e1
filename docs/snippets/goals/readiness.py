from pathlib import Path

from treadle import Engine
from treadle.testing import BlockingEnvironment

Path("topology.yaml").write_text("""
roles: [readiness]                  # this process has no other role
types: {TICKET: {handler: write, gates: []}}
""")
engine = Engine("memory://")
engine.goals.use_topology("topology.yaml")

with BlockingEnvironment(engine) as env:
    objectives = engine.goals.objectives
    guide = env.run(objectives.add("Write the guide", actor="ada"))
    copies = env.run(
        objectives.add("Print the guide", actor="ada", blocked_by=[guide.objective_id])
    )
    env.run(objectives.approve(guide.objective_id, actor="ada"))
    env.run(objectives.approve(copies.objective_id, actor="ada"))
    env.drain()

    ready = env.run(objectives.show(guide.objective_id))
    assert [
        (event.event_type, event.status_version, event.processed) for event in ready.events
    ] == [("OBJECTIVE_READY", 1, False)]
    waiting = env.run(objectives.show(copies.objective_id))
    assert (waiting.objective.status, waiting.events) == ("TODO", [])
    assert waiting.why.endswith("(Write the guide), which is TODO")
