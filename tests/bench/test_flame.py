"""Flame graphs: what was seen is counted once, belongs to one part, and is drawn as wide as it was long."""

from __future__ import annotations

from xml.etree import ElementTree

from bench.flame import draw, read, shares

SEEN = """\
MainThread;run (asyncio/runners.py:190);_run_once (asyncio/base_events.py:1);_execute (treadle/workers/loop.py:5);<b> (x.py:1) 30
MainThread;run (asyncio/runners.py:190);_run_once (asyncio/base_events.py:9);_execute (treadle/workers/loop.py:7) 50
MainThread;run (asyncio/runners.py:190);_run_once (asyncio/base_events.py:9);fetch (asyncpg/connection.py:7) 20
MainThread;run (asyncio/runners.py:190);_run_once (asyncio/base_events.py:9);work (bench/flame.py:7) 1000
MainThread;_run_once (asyncio/base_events.py:9);exec_module (<frozen importlib._bootstrap>:2) 1000
lease-renewer;tick (treadle/workers/lease_renewer.py:3) 1000
"""


def test_only_samples_of_the_event_loop_are_counted_and_lines_are_merged() -> None:
    root = read(SEEN)
    assert root.samples == 100
    (loop,) = root.above.values()
    assert {bar.name: bar.samples for bar in loop.above.values()} == {"_execute": 80, "fetch": 20}


def test_each_look_belongs_to_the_part_of_the_function_that_ran() -> None:
    found = shares(read(SEEN))
    assert found["the worker"] == 0.5
    assert found["the database's driver"] == 0.2
    assert found["other"] == 0.3
    assert sum(found.values()) == 1


def test_function_names_are_escaped_in_the_svg() -> None:
    picture = ElementTree.fromstring(draw(read(SEEN), "a < b"))
    titles = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert "<b> (x.py): 30.0%" in titles
