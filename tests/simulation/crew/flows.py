"""The flow that submissions start, and the topology of the goal pipeline."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from treadle.goals.topology import Topology, load_topology

FLOW = """
namespace out {
    event facet Double(n: Long) => (out: Long)
}
namespace sim {
    event facet Double(n: Long) => (out: Long)
    event facet Break(n: Long) => (out: Long)
    event facet Print(key: String, takes: Long) => (printed: String)
    facet Twice(n: Long) => (out: Long) andThen {
        a = Double(n = $.n)
        b = Double(n = a.out)
        yield Twice(out = b.out)
    }
    workflow All(items: Json, key: String) => (outs: Json, sum: Long, printed: String) andThen foreach item in $.items {
        t = Twice(n = $.item)
        yield All(outs = [t.out])
    } andThen {
        left = Double(n = 10)
        right = Double(n = 20)
        both = Double(n = left.out + right.out)
        yield All(sum = both.out)
    } andThen {
        p = Print(key = $.key, takes = 3)
        yield All(printed = p.printed)
    }
    workflow Report(words: Json) => (count: Long, twice: Long, upper: Json)
    script { result["n"] = len(params["words"]) }
    andThen script {
        result["count"] = params["n"]
    } andThen {
        d = Double(n = $.n)
        yield Report(twice = d.out)
    } andThen script {
        result["upper"] = [word.upper() for word in params["words"]]
    }
    workflow Far(items: Json) => (outs: Json) andThen foreach item in $.items {
        d = out.Double(n = $.item)
        yield Far(outs = [d.out])
    }
    workflow Broken(n: Long) => (out: Long) andThen {
        a = Double(n = $.n)
        b = Break(n = a.out)
        yield Broken(out = b.out)
    }
}
"""
SOURCES = [("sim.afl", FLOW)]

TOPOLOGY = """
name: simulation
types:
  TICKET:
    handler: pursue
    budget: 30s
    gates: [{use: regex, name: says-ok, pattern: ok}]
"""


@cache
def the_topology() -> Topology:
    """The topology of the goal pipeline, as a file would define it."""
    with TemporaryDirectory() as folder:
        place = Path(folder) / "topology.yaml"
        place.write_text(TOPOLOGY)
        return load_topology(place)
