"""Queries about a program: types, meanings of names, visible names."""

from __future__ import annotations

from treadle.lang import nodes
from treadle.lang.analysis import NameUse, list_uses
from treadle.lang.check import check
from treadle.lang.declare import declare
from treadle.lang.diagnostics import Reporter, Source
from treadle.lang.names import Definition, Kind
from treadle.lang.parse import parse
from treadle.lang.scope import CheckContext
from treadle.lang.types import words

LIBRARY = """\
namespace shop {
    schema Line { sku: String, qty: Long }
    event facet Price(line: Line, factor: Double = 1.0) => (net: Double, lines: [Line])
}
"""
MAIN = """\
namespace app {
    use shop
    workflow Order(lines: [Line]) => (total: [Double]) andThen foreach line in $.lines {
        price = Price(line = line, factor = line.qty * 1.5)
        note = Price(line = #{sku: "x" ++ price.net, qty: 1}) andThen {
            yield Price(net = $.factor + price.net)
        }
        yield Order(total = [note.net])
    }
}
"""


def analysed(*texts: str) -> tuple[CheckContext, list[nodes.File]]:
    reporter, files = Reporter(), []
    for name, text in zip(("lib.afl", "main.afl"), texts, strict=True):
        source = Source(name, text)
        file = parse(source, reporter).file
        assert file is not None
        files.append((source, file))
    found = check(declare(files, reporter), reporter)
    assert reporter.found == [], [each.render() for _, each in reporter.found]
    return found, [file for _, file in files]


def place(text: str, mark: str, offset: int = 0) -> tuple[int, int]:
    """The line and column of a text."""
    before = text[: text.index(mark) + offset]
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def at(found: CheckContext, mark: str, offset: int = 0) -> NameUse:
    line, column = place(MAIN, mark, offset)
    uses = list_uses(found)["main.afl"]
    return next(use for use in uses if use.span.line == line and use.span.column <= column <= use.span.end_column)


def references(found: CheckContext, definition: Definition) -> list[NameUse]:
    uses = list_uses(found)
    return [use for source in ("lib.afl", "main.afl") for use in uses[source] if use.definition.node is definition.node]


def test_every_name_leads_to_its_definition_with_its_type() -> None:
    found, _ = analysed(LIBRARY, MAIN)
    for mark, offset, kind, name, type_, source in (
        ("shop\n", 0, Kind.NAMESPACE, "shop", "?", "lib.afl"),
        ("Line]", 1, Kind.SCHEMA, "Line", "shop.Line", "lib.afl"),
        ("$.lines", 3, Kind.PARAMETER, "lines", "[shop.Line]", "main.afl"),
        ("Price(line = line, f", 0, Kind.EVENT, "Price", "shop.Price", "lib.afl"),
        ("line = line, f", 0, Kind.PARAMETER, "line", "shop.Line", "lib.afl"),
        ("line, factor", 0, Kind.LOOP, "line", "shop.Line", "main.afl"),
        ("line.qty", 5, Kind.FIELD, "qty", "Long", "lib.afl"),
        ('sku: "x"', 0, Kind.FIELD, "sku", "String", "lib.afl"),
        ("price.net, qty", 0, Kind.STEP, "price", "shop.Price", "main.afl"),
        ("price.net, qty", 6, Kind.RETURN, "net", "Double", "lib.afl"),
        ("$.factor", 2, Kind.PARAMETER, "factor", "Double", "lib.afl"),
        ("Order(total = ", 0, Kind.WORKFLOW, "Order", "app.Order", "main.afl"),
        ("total = [", 0, Kind.RETURN, "total", "[Double]", "main.afl"),
    ):
        meaning = at(found, mark, offset).definition
        assert (meaning.kind, meaning.name.text, words(meaning.type), meaning.source.name) == (kind, name, type_, source), mark


def test_references_include_the_place_of_the_declaration_and_other_files() -> None:
    found, _ = analysed(LIBRARY, MAIN)
    net = references(found, at(found, "price.net, qty", 6).definition)
    assert [(use.source.name, use.span.line) for use in net] == [
        ("lib.afl", 3), ("main.afl", 5), ("main.afl", 6), ("main.afl", 6), ("main.afl", 8),
    ]  # fmt: skip
    for use in net:
        assert use.source.line(use.span.line)[use.span.column - 1 : use.span.end_column - 1] == "net"


def test_every_expression_has_a_type() -> None:
    found, files = analysed(LIBRARY, MAIN)
    namespace = files[1].items[0]
    assert isinstance(namespace, nodes.Namespace)
    workflow = namespace.items[1]
    assert isinstance(workflow, nodes.Facet)
    block = workflow.blocks[0]
    assert isinstance(block, nodes.Block)
    price, note, result = block.statements
    assert isinstance(price, nodes.Step)
    assert isinstance(note, nodes.Step)
    assert isinstance(result, nodes.Yield)
    assert [words(found.bindings.types[id(arg.value)]) for arg in price.call.args] == ["shop.Line", "Double"]
    assert [words(found.bindings.types[id(arg.value)]) for arg in (*note.call.args, *result.call.args)] == ["shop.Line", "[Double]"]
    callee = found.symbols.taken[found.bindings.callees[id(note.call)]]
    assert (list(found.tables.params(callee)), list(found.tables.returns(callee))) == (["line", "factor"], ["net", "lines"])
