from pathlib import Path

from treadle import Engine
from treadle.goals.gates import GateContext, Judgement
from treadle.testing import BlockingEnvironment

Path("topology.yaml").write_text("""
types:
  TICKET:
    handler: write
    gates: [{use: regex, pattern: TODO, forbid: true}, {use: long_enough, least: 20}]
    max_workorders: 2
""")
engine = Engine("memory://")
engine.goals.use_topology("topology.yaml")


@engine.handler("write")
def write(payload):
    earlier = len(payload["objective"]["workorders"])
    return {"content": "TODO" if earlier == 0 else "A guide, which is complete."}


@engine.goals.gate("long_enough", timeout=30)
def long_enough(bundle, ctx: GateContext):
    length = len(bundle["content"])
    return Judgement(length >= ctx.options["least"], f"{length} characters")


with BlockingEnvironment(engine) as env:
    objectives = engine.goals.objectives
    guide = env.run(objectives.add("Write the guide", actor="ada"))
    env.run(objectives.approve(guide.objective_id, actor="ada"))
    env.drain()

    trail = env.run(objectives.show(guide.objective_id))
    assert trail.objective.status == "DONE"
    for each in trail.workorders:
        print(each.run_record.gate_result, each.run_record.reason, each.pause_state.reason)
