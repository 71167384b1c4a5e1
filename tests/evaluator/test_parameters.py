"""Sources of step parameters and their precedence."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.evaluator.stored import StoredRun

from treadle.evaluator import Finished, Started, Updated
from treadle.model.retry import RetryPolicy
from treadle.model.stored import read
from treadle.testing.workflows import WorkflowFailed, compile_program, run_workflow

MAIL = """
facet Budget(limit: Long, host: String = "never")
facet Message(host: String = "local", retries: Long = 0, to: String = "nobody") with Budget(limit = 5, retries = 3)
"""


def params_of(call: str, before: str = MAIL, inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    source = f"{before}\nworkflow W(n: Long = 1) => (x: Json) andThen {{ s = {call} }}"
    run = StoredRun(compile_program(source), "W")
    run.apply(Started(inputs or {}))
    return run.row("W.s").params


def test_an_argument_wins_over_everything() -> None:
    call = 'Message(host = "arg", retries = 9) with Budget(host = "mixin", retries = 8)'
    params = params_of(call, MAIL + 'implicit m = Message(host = "implicit", retries = 7)')
    assert (params["host"], params["retries"]) == ("arg", 9)


def test_a_call_site_mixin_wins_over_an_implicit_and_the_first_mixin_over_the_second() -> None:
    call = 'Message() with Budget(host = "first") with Budget(host = "second", limit = 2)'
    params = params_of(call, MAIL + 'implicit m = Message(host = "implicit")')
    assert (params["host"], params["limit"]) == ("first", 2)


def test_an_implicit_wins_over_the_signature() -> None:
    params = params_of("Message()", MAIL + "implicit m = Message(retries = 7)")
    assert params == {"retries": 7, "limit": 5, "host": "local", "to": "nobody"}


def test_a_signature_mixin_stands_just_above_the_facets_own_defaults() -> None:
    assert params_of("Message()") == {"limit": 5, "retries": 3, "host": "local", "to": "nobody"}


def test_all_implicits_are_merged_and_the_nearest_namespace_wins() -> None:
    source = """
    namespace far { implicit one = near.Message(host = "far", to = "far") }
    namespace near {
        facet Message(host: String, to: String = "x", n: Long = 0)
        implicit two = Message(host = "near")
        implicit three = Message(n = 3)
        workflow W() => (h: String, t: String, n: Long) andThen {
            m = Message()
            yield W(h = m.host, t = m.to, n = m.n)
        }
    }
    """
    assert run_workflow(source, "near.W") == {"h": "near", "t": "far", "n": 3}


def test_an_aliased_mixin_at_the_call_is_one_parameter_without_its_facets_defaults() -> None:
    params = params_of("Message() with Budget(limit = 9 + $.n) as cap")
    assert params["cap"] == {"limit": 10}


def test_defaults_may_read_other_parameters_in_any_order() -> None:
    before = "facet F(a: Long = $.b + 1, b: Long = $.c * 2, c: Long = 3)"
    assert params_of("F()", before) == {"c": 3, "b": 6, "a": 7}
    assert params_of("F(b = 1)", before) == {"b": 1, "a": 2, "c": 3}


def test_defaults_that_need_one_another_are_an_error() -> None:
    source = "facet F(a: Long = $.b, b: Long = $.a)\nworkflow W() andThen { s = F() }"
    with pytest.raises(WorkflowFailed, match="in turn needs"):
        run_workflow(source, "W")


def test_a_long_chain_of_defaults_costs_no_stack() -> None:
    params = ", ".join(f"p{n}: Long = $.p{n + 1} + 1" for n in range(2000))
    source = f"workflow W({params}, p2000: Long = 0) => (x: Long) andThen {{ yield W(x = $.p0) }}"
    assert run_workflow(source, "W") == {"x": 2000}


def test_inputs_win_over_defaults_and_unknown_inputs_are_kept() -> None:
    run = StoredRun(compile_program("workflow W(a: Long = 1, b: Long = 2) andThen { }"), "W")
    run.apply(Started({"b": 5, "extra": [1]}))
    assert run.row("W").params == {"a": 1, "b": 5, "extra": [1]}


def test_a_missing_argument_fails_only_when_it_is_read() -> None:
    source = """
    facet F(a: Long, b: Long)
    workflow W(n: Long) => (x: Long) andThen { s = F(a = 1) yield W(x = s.%s) }
    """
    assert run_workflow(source % "a", "W") == {"x": 1}
    with pytest.raises(WorkflowFailed, match="step `s` has no `b`"):
        run_workflow(source % "b", "W")


def test_an_external_facet_receives_its_arguments_unchanged() -> None:
    assert run_workflow("workflow W() => (x: Long) andThen { s = Somewhere(a = 4) yield W(x = s.a) }", "W") == {"x": 4}


def test_a_return_default_applies_when_no_block_yields_a_value() -> None:
    source = """
    facet F(n: Long) => (a: Long = $.n * 2, b: Long = 7) andThen { yield F(b = 1) }
    workflow W() => (a: Long, b: Long, c: Json = [1]) andThen { s = F(n = 4) yield W(a = s.a, b = s.b) }
    """
    assert run_workflow(source, "W") == {"a": 8, "b": 1, "c": [1]}


def test_a_missing_return_is_an_error_only_when_it_is_read() -> None:
    source = """
    event facet E() => (a: Long, b: Long)
    workflow W() => (x: Long, y: Long = 0) andThen { e = E() yield W(x = e.%s) }
    """
    assert run_workflow(source % "a", "W", handlers={"E": lambda p: {"a": 1}})["x"] == 1
    with pytest.raises(WorkflowFailed, match="W: yield of `x`: step `e` has no `b`: `E` declares it, but nothing gave it a value"):
        run_workflow(source % "b", "W", handlers={"E": lambda p: {"a": 1}})
    with pytest.raises(WorkflowFailed, match=r"W.e: handler failed: .*`E` returned another .*: b \(Long\) is missing .*strict"):
        run_workflow(source % "a", "W", handlers={"E": lambda p: {"a": 1}}, strict=True)


RESULTS = """
namespace n {
    schema Point { x: Long, y: Double, tags: [Int]?, }
    event facet E() => (v: %s, other: Json = 0)
    workflow W() => (x: Json) andThen { e = E() yield W(x = e.v) }
}
"""


@pytest.mark.parametrize(
    ("type_", "value", "problem"),
    [
        ("Long", "3", "v must be a Long, not a string"),
        ("Long", 3.5, "v must be a Long, not a number"),
        ("Long", None, "v must be a Long, not null"),
        ("Long", 1e300, "v must be a Long, not a number"),
        ("Int", True, "v must be an Int, not a boolean"),
        ("String", None, "v must be a String, not null"),
        ("String?", 1, "v must be a String, not a number"),
        ("Boolean", "yes", "v must be a Boolean, not a string"),
        ("Double", [1.5], "v must be a Double, not a list"),
        ("[Long]", [1, "x"], r"v\[1\] must be a Long, not a string"),
        ("[Long]", {"a": 1}, "v must be a list, not an object"),
        ("[Long]?", 7, "v must be a list, not a number"),
        ("Point", {"x": 1}, r"v.y is missing"),
        ("Point", {"x": "1", "y": 2, "tags": [1, None]}, r"v.x must be a Long, not a string; v.tags\[1\] must be an Int, not null"),
        ("[Point]", [{"x": 1, "y": 2}, 5], r"v\[1\] must be a Point \(an object\), not a number"),
    ],
)
def test_a_result_of_another_type_is_merged_with_a_warning_and_fails_only_under_strict(
    type_: str, value: object, problem: str
) -> None:
    source = RESULTS % type_
    run = StoredRun(compile_program(source), "W")
    run.apply(Started())
    step = run.row("W.e")
    run.apply(Finished(step.id, {"v": value, "more": 1}))
    run.settle()
    assert run.outputs == {"x": value}
    [entry] = run.logs
    assert (entry.step_id, entry.path) == (step.id, "W.e")
    assert re.fullmatch(
        f"the handler of `n.E` returned another result than declared: {problem}; more is not declared", entry.warning
    )
    with pytest.raises(WorkflowFailed, match=f"W.e: handler failed: .*{problem}.*the flow is strict") as failed:
        run_workflow(source, "n.W", handlers={"E": lambda p: {"v": value}}, strict=True)
    assert failed.value.error.type == "unexpected_result"


def test_a_result_that_is_nested_too_deeply_to_be_checked_is_merged_with_a_warning() -> None:
    source = """
    namespace n {
        schema Nested { v: Long, inner: Nested?, }
        event facet E() => (deep: Nested, n: Long)
        workflow W() => (x: Json) andThen { e = E() yield W(x = e.n) }
    }
    """
    deep: dict[str, Any] = {"v": 1.0}
    for _ in range(700):
        deep = {"v": 1.0, "inner": deep}
    run = StoredRun(compile_program(source), "W")
    run.apply(Started())
    run.apply(Finished(run.row("W.e").id, {"deep": deep, "n": 2.0}))
    run.settle()
    assert run.outputs == {"x": 2}
    [entry] = run.logs
    assert "deep is nested too deeply to be checked" in (entry.warning or "")


def test_partial_results_are_checked_together_with_the_final_one() -> None:
    run = StoredRun(compile_program(RESULTS % "[Long]"), "W")
    run.apply(Started())
    step_id = run.row("W.e").id
    run.apply(Updated(step_id, {"v": [1.0], "other": 1}))
    run.apply(Finished(step_id))
    run.settle()
    assert (json.dumps(run.outputs), run.logs) == ('{"x": [1]}', [])
    run = StoredRun(compile_program(RESULTS % "[Long]"), "W")
    run.apply(Started())
    run.apply(Updated(step_id, {"v": ["1"]}))
    run.apply(Finished(step_id, {"other": 1}))
    run.settle()
    assert (run.outputs, [entry.warning for entry in run.logs]) == (
        {"x": ["1"]},
        ["the handler of `n.E` returned another result than declared: v[0] must be a Long, not a string"],
    )


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        ("Long", 3.0, 3),
        ("Int?", -0.0, 0),
        ("Double", 3.0, 3.0),
        ("Json", 3.0, 3.0),
        ("[Json]", [3.0], [3.0]),
        ("[[Long]]", [[1.0], [2]], [[1], [2]]),
        ("[Long]", [float(n) for n in range(5000)], list(range(5000))),
        ("Long", -(2.0**62), -(2**62)),
        ("[Point?]", [None, {"x": 1e3, "y": 2.0, "tags": [4.0], "z": 5.0}], [None, {"x": 1000, "y": 2.0, "tags": [4], "z": 5.0}]),
    ],
)
def test_integral_floats_become_integers_where_whole_numbers_are_declared(
    type_: str, value: object, expected: object, strict: bool
) -> None:
    run = StoredRun(compile_program(RESULTS % type_, strict=strict), "W")
    run.apply(Started())
    run.apply(Finished(run.row("W.e").id, {"v": value}))
    run.settle()
    assert (run.outputs, run.logs) == ({"x": expected}, [])
    assert json.dumps(run.outputs) == json.dumps({"x": expected})


@pytest.mark.parametrize(
    ("mixin", "expected"),
    [("minutes = 5", 300_000), ("seconds = 1.5, ms = 1", 1_501), ("hours = $.n", 3_600_000), ("days = 1", 86_400_000)],
)
def test_a_timeout_mixin_sets_the_tasks_timeout_and_is_not_a_parameter(mixin: str, expected: int) -> None:
    source = f"event facet E(a: Long)\nworkflow W(n: Long = 1) andThen {{ e = E(a = 1) with Timeout({mixin}) }}"
    run = StoredRun(compile_program(source), "W")
    run.apply(Started())
    [task] = run.tasks.values()
    assert (task.timeout_for, task.payload) == (expected, {"a": 1})


def test_a_timeout_of_the_signature_is_used_unless_the_call_has_one() -> None:
    source = """
    event facet E() with Timeout(minutes = 2)
    workflow W() andThen { a = E() b = E() with Timeout(seconds = 1) }
    """
    run = StoredRun(compile_program(source), "W")
    run.apply(Started())
    assert [task.timeout_for for task in run.tasks.values()] == [120_000, 1_000]


@pytest.mark.parametrize("mixin", ["minutes = 0", 'minutes = "x"', "fortnights = 1", "seconds = -1"])
def test_an_invalid_timeout_fails_the_step(mixin: str) -> None:
    with pytest.raises(WorkflowFailed, match=r"W\.e: .*Timeout"):
        run_workflow(f"event facet E()\nworkflow W() andThen {{ e = E() with Timeout({mixin}) }}", "W")


@pytest.mark.parametrize(
    ("mixin", "expected"),
    [
        ("maxAttempts = 3", RetryPolicy(2)),
        ("maxAttempts = $.n + 4, delay = 0.5, backoff = 3, maxDelay = 10, jitter = 0.1", RetryPolicy(4, 500, 3, 10_000, 0.1)),
        ("maxAttempts = 2, delay = 1000", RetryPolicy(1, 1_000_000, 2.0, 1_000_000)),
    ],
)
def test_a_retry_mixin_sets_the_tasks_policy_and_is_not_a_parameter(mixin: str, expected: RetryPolicy) -> None:
    source = f"event facet E(a: Long)\nworkflow W(n: Long = 1) andThen {{ e = E(a = 1) with Retry({mixin}) }}"
    run = StoredRun(compile_program(source), "W")
    run.apply(Started())
    [task] = run.tasks.values()
    assert task.policy is not None
    assert (read(RetryPolicy, task.policy), task.payload) == (expected, {"a": 1})


def test_a_retry_of_the_signature_is_used_unless_the_call_has_one() -> None:
    source = """
    event facet E() with Retry(maxAttempts = 2)
    workflow W() andThen { a = E() b = E() with Retry(maxAttempts = 4) with Timeout(seconds = 1) }
    """
    run = StoredRun(compile_program(source), "W")
    run.apply(Started())
    assert [read(RetryPolicy, task.policy or "").retries for task in run.tasks.values()] == [1, 3]
    assert [task.timeout_for for task in run.tasks.values()] == [None, 1_000]


@pytest.mark.parametrize("mixin", ["maxAttempts = 0", 'maxAttempts = "x"', "times = 1", "maxAttempts = 2, backoff = 0.5"])
def test_an_invalid_retry_fails_the_step(mixin: str) -> None:
    with pytest.raises(WorkflowFailed, match=r"W\.e: .*Retry"):
        run_workflow(f"event facet E()\nworkflow W() andThen {{ e = E() with Retry({mixin}) }}", "W")


def test_a_declared_retry_facet_and_an_alias_go_into_the_payload() -> None:
    source = """
    facet Retry(maxAttempts: Long)
    event facet E(a: Long)
    workflow W() andThen { e = E(a = 1) with Retry(maxAttempts = 3) f = E(a = 2) with Retry(maxAttempts = 4) as r }
    """
    run = StoredRun(compile_program(source), "W")
    run.apply(Started())
    assert [task.policy for task in run.tasks.values()] == [None, None]
    assert [task.payload for task in run.tasks.values()] == [{"a": 1, "maxAttempts": 3}, {"a": 2, "r": {"maxAttempts": 4}}]


@pytest.mark.parametrize("kind", ["Long?", "Long = 4", "Long = $.n"])
@pytest.mark.parametrize("read", ["$.a", "e.a"])
@pytest.mark.parametrize("result", [{}, {"a": 9}])
@pytest.mark.parametrize(
    "block",
    [
        "andThen when { case %s == null => { yield E(b = 0) } case _ => { yield E(b = %s) } }",
        "andThen { c = [%s, %s] yield E(b = c[0]) }",
    ],
)
def test_the_body_of_an_event_facet_reads_the_defaults_of_its_returns(
    kind: str, read: str, result: dict[str, int], block: str
) -> None:
    facet = f"event facet E(n: Long = 3) => (a: {kind}, b: Json = -1)"
    default = {"Long?": None, "Long = 4": 4, "Long = $.n": 3}[kind]
    wanted = {"x": result.get("a", default), "y": result.get("a", default)}
    if "when" in block and wanted["x"] is None:
        wanted["y"] = 0
    caller = "workflow W() => (x: Json, y: Json) andThen {{ e = E() {} yield W(x = e.a, y = e.b) }}"
    own = block.replace("%s", read)
    assert run_workflow(f"{facet}\n{caller.format(own)}", "W", handlers={"E": lambda p: result}) == wanted
    if read == "$.a":
        assert run_workflow(f"{facet} {own}\n{caller.format('')}", "W", handlers={"E": lambda p: result}) == wanted


def test_a_default_is_readable_in_scripts_and_catches_and_a_yield_replaces_it() -> None:
    source = """
    event facet E() => (a: Long = 4, b: Long) andThen script { result["b"] = params["a"] + 1 }
    event facet Bad() => (a: Long = 4)
    facet F() => (a: Long = 4)
    workflow W() => (a: Long, b: Long, c: Long, f: Long) andThen {
        e = E()
        bad = Bad() catch { yield Bad(a = bad.a + $.a) }
        f = F() andThen { yield F(a = $.a + 1) }
        yield W(a = e.a, b = e.b, c = bad.a, f = f.a)
    }
    """

    def fail(params: object) -> dict[str, object]:
        raise ValueError

    handlers = {"E": lambda p: {}, "Bad": fail}
    assert run_workflow(source, "W", handlers=handlers) == {"a": 4, "b": 5, "c": 8, "f": 5}


def test_a_default_without_a_value_fails_only_if_no_yield_has_one() -> None:
    source = """
    event facet E(n: Long = 0) => (a: Long = 1 %% $.n) andThen { %s }
    workflow W() => (x: Long) andThen { e = E() yield W(x = e.a) }
    """
    assert run_workflow(source % "yield E(a = 2)", "W", handlers={"E": lambda p: {}}) == {"x": 2}
    with pytest.raises(WorkflowFailed, match="default of `a`"):
        run_workflow(source % "", "W", handlers={"E": lambda p: {}})
