"""Scopes of `$.`, steps and loop variables."""

from __future__ import annotations

import pytest

from treadle.testing.workflows import WorkflowFailed, run_workflow

ECHO = "event facet Echo(a: Long = 0) => (b: Long, c: Long)\nfacet Num(v: Json)\n"
HANDLERS = {"Echo": lambda p: {"b": p["a"] + 1}}


def test_a_step_body_reads_the_owners_parameters_then_its_returns_then_outwards() -> None:
    source = (
        ECHO
        + """
    workflow W(a: Long, z: Long) => (x: Json) andThen {
        e = Echo(a = 10) andThen { yield Echo(c = $.a * 10000 + $.b * 100 + $.z) }
        yield W(x = e.c)
    }
    """
    )
    assert run_workflow(source, "W", {"a": 1, "z": 5}, HANDLERS) == {"x": 101105}


def test_a_facets_body_does_not_see_the_scope_of_its_caller() -> None:
    source = """
    facet Inner(n: Long) => (r: Json) script { print(result) } andThen { yield Inner(r = $.outer) }
    workflow W(outer: Long) => (x: Json) andThen { i = Inner(n = 1) yield W(x = i.r) }
    """
    with pytest.raises(WorkflowFailed, match=r"W\.i: yield of `r`: `\$\.outer` was never given"):
        run_workflow(source, "W", {"outer": 3})


def test_nested_bodies_see_all_enclosing_steps_and_owners() -> None:
    source = (
        ECHO
        + """
    workflow W() => (x: Json) andThen {
        one = Num(v = 1)
        e = Echo(a = 2) andThen {
            two = Num(v = one.v + e.b)
            f = Echo(a = two.v) andThen { yield Echo(c = one.v + two.v + e.b + f.b) }
            yield Echo(c = f.c)
        }
        yield W(x = e.c)
    }
    """
    )
    assert run_workflow(source, "W", handlers=HANDLERS) == {"x": 1 + 4 + 3 + 5}


def test_a_return_shadows_a_parameter_when_a_step_is_read_from_outside() -> None:
    source = """
    facet F(n: Long) => (n: Long) andThen { yield F(n = $.n + 1) }
    workflow W() => (x: Long) andThen { f = F(n = 1) yield W(x = f.n) }
    """
    assert run_workflow(source, "W") == {"x": 2}


def test_a_loop_variable_shadows_a_parameter_and_can_be_written_in_three_ways() -> None:
    source = """
    facet Num(v: Json)
    workflow W(x: Json, list: Json) => (out: Json) andThen foreach x in $.list {
        n = Num(v = [$.x.k, x.k, x])
        yield W(out = [n.v])
    }
    """
    assert run_workflow(source, "W", {"x": 0, "list": [{"k": 1}]}) == {"out": [[1, 1, {"k": 1}]]}


def test_inner_loops_see_outer_loop_variables() -> None:
    source = """
    facet Num(v: Json) => (out: Json)
    workflow W(rows: Json) => (out: Json) andThen foreach row in $.rows {
        n = Num(v = row) andThen foreach cell in $.row.cells { yield Num(out = [row.name ++ cell]) }
        yield W(out = n.out)
    }
    """
    rows = [{"name": "a", "cells": [1, 2]}, {"name": "b", "cells": [3]}]
    assert run_workflow(source, "W", {"rows": rows}) == {"out": ["a1", "a2", "b3"]}


def test_a_foreach_inside_a_body_loops_over_an_outer_step_of_the_same_name_as_an_inner_one() -> None:
    source = """
    facet Num(v: Json) => (out: Json)
    workflow W() => (out: Json) andThen {
        p = Num(v = [1, 2])
        q = Num(v = 0) andThen foreach x in p.v {
            p = Num(v = x * 10)
            yield Num(out = [p.v])
        }
        yield W(out = q.out)
    }
    """
    assert run_workflow(source, "W") == {"out": [10, 20]}


def test_a_step_body_replaces_the_facets_body() -> None:
    source = """
    facet F() => (r: Long) andThen { yield F(r = 1) } andThen { yield F(r = 2) }
    workflow W() => (x: Long) andThen { f = F() andThen { yield F(r = 3) } yield W(x = f.r) }
    """
    assert run_workflow(source, "W") == {"x": 3}


def test_a_step_reference_reads_the_step_that_was_passed() -> None:
    source = """
    event facet Fetch(url: String) => (body: Json)
    facet Use(src: Fetch) => (n: Json) andThen { yield Use(n = $.src.url ++ ":" ++ $.src.body.len) }
    facet Pass(src: Fetch) => (n: Json) andThen { u = Use(src = $.src) yield Pass(n = u.n) }
    workflow W() => (x: Json, y: Json) andThen {
        f = Fetch(url = "u")
        u = Use(src = f)
        p = Pass(src = f)
        yield W(x = u.n, y = p.n)
    }
    """
    handlers = {"Fetch": lambda p: {"body": {"len": 3}}}
    assert run_workflow(source, "W", handlers=handlers) == {"x": "u:3", "y": "u:3"}


def test_a_handler_gets_a_reference_for_a_step() -> None:
    source = """
    facet Doc(text: String)
    event facet Use(src: Doc) => (n: Long)
    workflow W() => (x: Json) andThen { d = Doc(text = "t") u = Use(src = d) yield W(x = u.n) }
    """
    seen: list[object] = []
    run_workflow(source, "W", handlers={"Use": lambda p: seen.append(p["src"]["facet"]) or {"n": 1}})
    assert seen == ["Doc"]


def test_a_signature_alias_runs_before_the_body_and_can_be_read_inside_and_outside() -> None:
    source = """
    event facet Look(key: Long) => (found: Long)
    facet F(a: Long) => (r: Json) with Look(key = $.a) as one with Look(key = $.one.found) as two andThen {
        yield F(r = [$.one.found, $.two.found])
    }
    workflow W() => (x: Json, y: Json) andThen { f = F(a = 1) yield W(x = f.r, y = f.two.key) }
    """
    assert run_workflow(source, "W", handlers={"Look": lambda p: {"found": p["key"] + 1}}) == {"x": [2, 3], "y": 2}


def test_a_yield_to_a_signature_alias_overrides_only_the_yielded_attributes() -> None:
    source = """
    facet M(a: Long) => (z: Long, w: Long) andThen { yield M(z = $.a, w = 1) }
    facet F() => (r: Json) with M(a = 5) as m andThen { yield m(z = 9) } andThen { yield F(r = $.m.z) with M(w = 2) }
    workflow W() => (x: Json, r: Json) andThen { f = F() yield W(x = f.m, r = f.r) }
    """
    assert run_workflow(source, "W") == {"x": {"a": 5, "z": 9, "w": 2}, "r": 5}


def test_a_yield_to_an_unaliased_signature_mixin_lands_in_the_owners_returns() -> None:
    source = """
    facet M() => (z: Long)
    facet F() => (r: Long) with M() andThen { yield F(r = 1) with M(z = 2) }
    workflow W() => (x: Json) andThen { f = F() yield W(x = [f.r, f.z]) }
    """
    assert run_workflow(source, "W") == {"x": [1, 2]}


def test_the_blocks_of_an_event_facet_read_its_handler_result() -> None:
    source = """
    event facet E(n: Long) => (r: Long, rs: [Long])
    andThen { yield E(r = $.r + $.n) }
    andThen when { case $.r > 1 => { yield E(rs = [$.r]) } case _ => { } }
    workflow W() => (x: Long, rs: [Long]) andThen { e = E(n = 1) yield W(x = e.r, rs = e.rs) }
    """
    assert run_workflow(source, "W", handlers={"E": lambda payload: {"r": payload["n"] + 1, "rs": []}}) == {"x": 3, "rs": [2]}
