"""Values between steps, list functions and optional types: what they mean, as JSON and when a program runs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.errors import raises_code
from tests.lang.programs import compiled

from treadle.evaluator import Limits
from treadle.evaluator.operators import EvaluationError, Sizes, call
from treadle.kernel.runs.flows import check_inputs
from treadle.lang import Program, compile_sources, format_source
from treadle.lang.compiler import EXTENSIONS
from treadle.lang.graphs import graph
from treadle.llm.tools import check_object, object_schema
from treadle.testing.workflows import WorkflowFailed, run_workflow

PEOPLE = """namespace people {
    schema Address { street: String, city: String? }
    schema Person { name: String, age: Long?, home: Address?, tags: [String]?, marks: [Long?] }
    event facet Load(id: Long) => (person: Person)
    workflow Show(person: Person, note: String?) => (city: Json, age: Long?, tags: Long, note: String?, never: Long?) andThen {
        load = Load(id = 1)
        made = Person(name = "Ada", marks = [null])
        home = #{street: "Main", city: null}
        text = join([$.person.age, load.person.age, load.person["age"], made.age, $.note, home.city], "|")
        yield Show(city = text, age = $.person.age, tags = count(load.person.tags) + count(made.tags))
    }
}
"""


def load(text: str) -> Program:
    result = compiled(text)
    assert result.diagnostics == (), result.render()
    return Program.load(result.program)


def run(text: str, inputs: dict[str, Any] | None = None, **handlers: Any) -> dict[str, Any]:
    load(text)
    workflow = load(text).workflows[-1].qualified_name
    return run_workflow(text, workflow, inputs or {}, {f"{name.replace('__', '.')}": each for name, each in handlers.items()})


# --- values


def test_a_value_is_a_step_that_calls_a_built_in_record() -> None:
    program = load(
        "event facet A() => (y: Json) workflow W() => (n: Json) andThen { a = A() d = a.y e = [d, d.f] yield W(n = e[0]) }"
    )
    first, d, e = program.workflows[0].blocks[0].steps
    assert (d.call.target, d.call.resolved, d.depends) == ("sys.value", None, ("a",))
    assert program.dump() == Program.load(program.dump()).dump()
    assert first.call.is_value is False
    assert e.call.is_value is True
    (given,) = e.call.args
    assert program.dump()["declarations"][1]["body"]["steps"][2]["call"]["args"][0]["value"]["elements"] == [
        {"type": "StepRef", "path": ["d", "value"]},
        {"type": "StepRef", "path": ["d", "value", "f"]},
    ]
    assert given.name == "value"


def test_a_value_waits_for_its_references_and_its_readers_wait_for_it() -> None:
    text = """event facet A(x: Long) => (y: Long)
    workflow W(n: Long) => (out: Long, all: [Long]) andThen {
        base = $.n * 10
        a = A(x = base)
        d = a.y + base
        b = A(x = d)
        all = [base, a.y, d, b.y]
        yield W(out = b.y, all = all)
    }"""
    assert run(text, {"n": 2}, A=lambda given: {"y": given["x"] + 1}) == {"out": 42, "all": [20, 21, 41, 42]}


def test_a_value_without_a_value_fails_the_step_that_it_is() -> None:
    with pytest.raises(WorkflowFailed) as failed:
        run("workflow W(n: Long) => (out: Json) andThen { half = 1 / $.n yield W(out = half) }", {"n": 0})
    assert "W.half: division by zero: 1 / 0" in str(failed.value)
    assert failed.value.error.type == "evaluation_error"


def test_a_large_value_is_stored_once_and_read_in_parts() -> None:
    text = """workflow W(n: Long) => (k: Long, last: String) andThen {
        long = ["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]
        a = flatten([long, long, long, long, long, long, long, long, long, long])
        b = flatten([a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, ["z"]])
        yield W(k = count(b), last = b[200])
    }"""
    assert run(text, {"n": 1}) == {"k": 201, "last": "z"}


def test_the_graph_shows_values() -> None:
    made = graph(load("facet F(x: Long) workflow W(n: Long) andThen { d = $.n + 1 f = F(x = d) }"))
    assert [(node.label, str(node.kind)) for node in made.nodes[1:]] == [("d", "value"), ("f = F", "facet")]
    assert ("W/block-0/d", "W/block-0/f", "needs") in {(edge.source, edge.target, edge.kind) for edge in made.edges}


def test_the_formatter_keeps_values_functions_and_optional_types() -> None:
    text = 'facet F(x:Long ?,y:[Long?] ?=[ ])=>(z:String? ) andThen{ d=count( $.y )*-2\n e=d [0]\nyield F(z=join([d],",")) }'
    once = format_source(text)
    assert once == (
        "facet F(x: Long?, y: [Long?]? = []) => (z: String?) andThen { d = count($.y) * -2\n"
        '    e = d[0]\n    yield F(z = join([d], ",")) }\n'
    )
    assert format_source(once) == once


# --- functions

LISTS: list[tuple[str, list[Any], Any]] = [
    ("count", [[1, None, "a"]], 3), ("count", [[]], 0), ("count", [None], 0),
    ("sum", [[1, 2, 3]], 6), ("sum", [[1, 2.5]], 3.5), ("sum", [[]], 0), ("sum", [None], 0), ("sum", [[2**70, 1]], 2**70 + 1),
    ("first", [[None, 1]], None), ("first", [[[1], 2]], [1]), ("first", [[]], None), ("first", [None], None),
    ("join", [["a", 1, 2.5, None, True, [1], {"k": 1}], "-"], 'a-1-2.5--true-[1]-{"k": 1}'),
    ("join", [None, ","], ""), ("join", [[1], ","], "1"),
    ("flatten", [[[1], [], [2, [3]]]], [1, 2, [3]]), ("flatten", [[None, [1]]], [1]), ("flatten", [None], []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "result"), LISTS)
def test_a_function_of_a_list(name: str, args: list[Any], result: Any) -> None:
    found = call(name, args, Sizes(Limits()))
    assert found == result
    assert type(found) is type(result)


@pytest.mark.parametrize(
    ("name", "args", "part"),
    [
        ("count", ["abc"], "`count` needs a list, this is a text"),
        ("count", [{"a": 1}], "this is a map"),
        ("sum", [[1, "2"]], "in this one an element is a text"),
        ("sum", [[1, True]], "an element is a Boolean"),
        ("sum", [[1, None]], "an element is null"),
        ("sum", [[1e308, 1e308]], "too large"),
        ("sum", [[10**400, 1.5]], "too large"),
        ("first", [3], "this is a number"),
        ("join", [["a"], 1], "a text as separator, this is a number"),
        ("join", [["a"]], "takes two arguments"),
        ("flatten", [[[1], 2]], "in this one an element is a number"),
        ("nope", [[]], "unknown function `nope`"),
    ],
)
def test_arguments_that_do_not_fit_have_no_value(name: str, args: list[Any], part: str) -> None:
    with pytest.raises(EvaluationError, match=None) as failed:
        call(name, args, Sizes(Limits()))
    assert part in failed.value.message
    assert failed.value.type == "evaluation_error"


@pytest.mark.parametrize(
    ("name", "args"), [("join", [["x" * 100] * 50, ""]), ("join", [[1] * 50, "x" * 100]), ("flatten", [[[1] * 100] * 9])]
)
def test_results_of_functions_are_bounded(name: str, args: list[Any]) -> None:
    with pytest.raises(EvaluationError) as failed:
        call(name, args, Sizes(Limits(value_bytes=2_000)))
    assert failed.value.type == "value_too_large"


def test_a_function_survives_json() -> None:
    program = load('workflow W(xs: [Long], s: String = join([1], ",")) => (n: Long) andThen { yield W(n = count($.xs)) }')
    (statement,) = program.workflows[0].blocks[0].yields
    assert program.dump()["declarations"][0]["body"]["yield"]["call"]["args"][0]["value"] == {
        "type": "FunctionExpr", "name": "count", "args": [{"type": "InputRef", "path": ["xs"]}],
    }  # fmt: skip
    assert Program.load(program.dump()) == program
    assert statement.call.args[0].name == "n"


# --- optional types


def test_an_omitted_optional_value_is_null() -> None:
    text = """facet F(a: Long?, b: Long? = 3) => (c: Long?, d: Json) andThen { yield F(d = [$.a, $.b]) }
    workflow W(x: String?) => (out: Json, c: Long?, x: String?) andThen {
        f = F()
        g = F(b = null)
        yield W(out = [f.d, g.d], c = f.c)
    }"""
    assert run(text) == {"out": [[None, 3], [None, None]], "c": None, "x": None}


def test_missing_fields_of_a_value_read_as_null() -> None:
    person = {"name": "Bob", "marks": [1, None]}
    found = run(PEOPLE, {"person": person}, people__Load=lambda _: {"person": {"name": "Eve", "marks": []}})
    assert found == {"city": "|||||", "age": None, "tags": 0, "note": None, "never": None}
    rich = {"name": "Bob", "marks": [], "age": 7, "tags": ["a"], "home": {"street": "s"}}
    found = run(PEOPLE, {"person": rich, "note": "n"}, people__Load=lambda _: {"person": rich})
    assert found == {"city": "7|7|7||n|", "age": 7, "tags": 1, "note": None, "never": None}


@pytest.mark.parametrize(
    ("person", "problem"),
    [
        ({"name": "a", "marks": []}, None),
        ({"name": "a", "marks": [None, 1], "age": None, "home": {"street": "s", "city": None}, "tags": None}, None),
        ({"marks": []}, "person.name is missing"),
        ({"name": "a", "marks": [], "age": "7"}, "person.age must be a Long, not a string"),
        ({"name": None, "marks": []}, "person.name must be a String, not null"),
        ({"name": "a", "marks": [], "home": {}}, "person.home.street is missing"),
        ({"name": "a", "marks": [], "tags": [None]}, "person.tags[0] must be a String, not null"),
        ({"name": "a", "marks": None}, "person.marks must be a list, not null"),
    ],
)
def test_inputs_and_answers_are_checked_against_optional_types(person: dict[str, Any], problem: str | None) -> None:
    program = load(PEOPLE)
    workflow = program.workflows[0]
    _, problems = check_object(program, workflow.params, {"person": person})
    assert bool(problems) is (problem is not None)
    if problem is None:
        check_inputs(program, workflow, {"person": person})
        return
    with raises_code("invalid_inputs") as failed:
        check_inputs(program, workflow, {"person": person})
    assert problem in str(failed.value)
    assert "It takes person: people.Person, note: String?" in str(failed.value)


def test_the_json_schema_of_an_optional_type() -> None:
    program = load(PEOPLE)
    made = object_schema(program, program.workflows[0].params)
    assert made["required"] == ["person"]
    assert made["properties"]["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    person = made["$defs"]["people__Person"]
    assert person["required"] == ["name", "marks"]
    assert person["properties"]["marks"] == {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}


def test_optional_types_survive_json() -> None:
    program = load(PEOPLE)
    assert Program.load(program.dump()) == program
    workflow = program.dump()["declarations"][0]["declarations"][1]
    assert workflow["params"][1] == {
        "name": "note", "type": {"type": "OptionalType", "elementType": "String"}, "default": {"type": "Null"},
    }  # fmt: skip


def test_an_optional_step_reference_may_be_left_out() -> None:
    text = """event facet Pay() => (receipt: String)
    facet Show(of: Pay?) => (paid: Boolean) andThen { yield Show(paid = $.of != null) }
    workflow W() => (a: Boolean, b: Boolean) andThen {
        pay = Pay()
        with_it = Show(of = pay)
        without = Show()
        yield W(a = with_it.paid, b = without.paid)
    }"""
    assert run(text, Pay=lambda _: {"receipt": "r"}) == {"a": True, "b": False}


# --- the reference

USES = {
    "retry": "event facet E() workflow W() andThen { s = E() with Retry(maxAttempts = 3) }",
    "value": "workflow W(n: Long) => (m: Long) andThen { d = $.n * 2 yield W(m = d) }",
    "function": "workflow W(n: [Long]) => (m: Long) andThen { yield W(m = count($.n)) }",
    "optional": "facet F(x: [Long?])",
}


@pytest.mark.parametrize("name", USES)
def test_the_reference_rejects_each_extension(name: str) -> None:
    assert compile_sources([("a.afl", USES[name])]).diagnostics == ()
    (found,) = compile_sources([("a.afl", USES[name])], reference=True).diagnostics
    assert found.rule == "reference-extension"
    assert found.message.startswith(EXTENSIONS[name][0])
    assert found.help is not None
    assert "--reference" in found.help


def test_errors_are_collected_from_a_list_that_is_null_and_a_list_gets_an_empty_default() -> None:
    text = "event facet A(x: Long) => (y: Long) workflow W(xs: [Long]?) => (bad: [Json], ys: [Long]%s) "
    text += "andThen foreach x in $.xs collectErrors(bad) { a = A(x = x) yield W(ys = [a.y]) }"
    assert run(text % " = []", {"xs": None}) == {"bad": [], "ys": []}
    [warning] = compiled(text % "").diagnostics
    assert "return `ys` of `W` gets no value if the list of `foreach` is null" in warning.message
    assert "`ys: ... = []`" in (warning.help or "")


def test_the_optional_comment_of_an_approval_is_not_an_extension_of_the_program() -> None:
    text = 'workflow W() => (why: Json) andThen { a = sys.approval(question = "?") yield W(why = a.reason) }'
    assert len(compile_sources([("a.afl", text)], reference=True).diagnostics) == 1
