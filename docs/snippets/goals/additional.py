from pathlib import Path

from treadle import Engine
from treadle.testing import BlockingEnvironment

Path("topology.yaml").write_text("""
roles:
  capture: {handler: capture.check, events: [objective.approve]}
types: {TICKET: {handler: write, gates: []}}
""")
engine = Engine("memory://")
engine.goals.use_topology("topology.yaml", roles=["readiness", "capture"])


@engine.handler("capture.check", retry=3)
def check(payload):
    assert (payload["role"], payload["event"]) == ("capture", "objective.approve")
    return (
        {}
        if "capture" in payload["objective"]["metadata"]
        else {"block": "no capture is attached"}
    )


with BlockingEnvironment(engine) as env:
    objectives = engine.goals.objectives
    guide = env.run(objectives.add("Write the guide", actor="ada"))
    env.run(objectives.approve(guide.objective_id, actor="ada"))
    env.drain()

    blocked = env.run(objectives.get(guide.objective_id))
    assert (blocked.status, blocked.blockers[0].text) == ("BLOCKED", "no capture is attached")
