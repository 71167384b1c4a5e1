from pathlib import Path

from treadle import Engine
from treadle.testing import BlockingEnvironment

Path("topology.yaml").write_text("""
roles: [readiness, scheduler, runner]
types: {TICKET: {handler: write, gates: [], budget: 5m}}
""")
engine = Engine("memory://")
engine.goals.use_topology("topology.yaml")


@engine.handler("write", retry=2)
def write(payload, ctx):
    if ctx.attempt == 1:
        raise ConnectionError("the model does not answer")  # retried within the workorder
    return {"title": "A guide", "content": payload["prompt"], "metadata": {"words": 3}}


with BlockingEnvironment(engine) as env:
    objectives = engine.goals.objectives
    guide = env.run(objectives.add("Write the guide", actor="ada"))
    env.run(objectives.approve(guide.objective_id, actor="ada"))
    env.advance(seconds=1)  # the first retry comes after a second

    [made] = env.run(objectives.show(guide.objective_id)).workorders
    assert made.workorder.status == "EXECUTED"
    assert (made.bundle.title, made.bundle.content, made.bundle.error) == (
        "A guide",
        "Write the guide",
        None,
    )
    assert made.run_record is None  # this process has no gate
