"""Texts, positions and diagnostics through the protocol."""

from __future__ import annotations

import pytest
from lsprotocol import types
from tests.lsp.editor import Editor, position_of

pytestmark = [pytest.mark.xdist_group("lsp documents"), pytest.mark.asyncio(loop_scope="module")]

GREETING = """facet Say(text: String) => (said: String)
workflow Hello(name: String) => (greeting: String) andThen {
    s = Say(text = "👋🏽 " ++ $.nmae)
    yield Hello(greeting = s.said)
}
"""
OUTLINE = """// one
// two
namespace n {
    schema S {
        a: Long
    }
    workflow W(x: Long) andThen {
        s = S(
            a = $.x
        )
    }
}
"""


async def test_diagnostics_have_utf_16_columns_rules_and_hints(editor: Editor) -> None:
    found = await editor.open("utf16.afl", GREETING)
    wrong = next(each for each in found if "nmae" in each.message)
    assert editor.text_of("utf16.afl", wrong.range) in ("$.nmae", "nmae")
    assert wrong.range.end.character == GREETING.splitlines()[2].index("nmae") + len("nmae") + 2  # two surrogate pairs
    assert wrong.severity is types.DiagnosticSeverity.Error
    assert wrong.source == "afl"
    assert wrong.code
    assert "did you mean `name`?" in wrong.message


async def test_diagnostics_follow_every_edit(editor: Editor) -> None:
    await editor.open("edit.afl", GREETING.replace("nmae", "name"))
    assert not [each for each in await editor.diagnostics("edit.afl") if each.severity is types.DiagnosticSeverity.Error]
    start = editor.at("edit.afl", "$.name", 2)
    whole = types.Range(start, types.Position(start.line, start.character + 4))
    assert any("$.x" in each.message for each in await editor.change("edit.afl", (whole, "x")))
    fixed = types.Range(start, types.Position(start.line, start.character + 1))
    found = await editor.change(
        "edit.afl", (fixed, "na"), (types.Range(*[types.Position(start.line, start.character + 2)] * 2), "me")
    )
    assert not [each for each in found if each.severity is types.DiagnosticSeverity.Error]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r\n\ufeff"])
async def test_every_line_end_and_a_byte_order_mark_keep_positions(editor: Editor, end: str) -> None:
    mark = "\ufeff" if "\ufeff" in end else ""
    text = mark + "// ✓ 😀\nfacet A(x: Lnog)\n/* \u2028 \x0c */ facet B(y: Strnig)".replace("\n", end.strip("\ufeff"))
    found = await editor.open(f"ends{len(end)}.afl", text)
    assert {editor.text_of(f"ends{len(end)}.afl", each.range) for each in found} >= {"Lnog", "Strnig"}


async def test_an_edit_after_astral_characters_and_odd_line_separators_lands_where_it_should(editor: Editor) -> None:
    text = 'facet A(x: String = "😀\u2028\x0b\x1c😀", y: Long)\r\nfacet B(z: Long)\r\n'
    await editor.open("odd.afl", text)
    for wrong in ("y: Lonk", "z: Lonk"):
        start = position_of(text, text.index(wrong[:2]) + 6)
        there = types.Range(start, types.Position(start.line, start.character + 1))
        found = await editor.change("odd.afl", (there, "k"))
        assert any("Lonk" in each.message for each in found), wrong
        await editor.change("odd.afl", text)


async def test_positions_beyond_the_text_are_clamped(editor: Editor) -> None:
    await editor.open("beyond.afl", "facet A()\n")
    far = types.Range(types.Position(7, 99), types.Position(9, 0))
    assert await editor.change("beyond.afl", (far, "facet B(x: Nowhere)\n"))
    beyond = types.Range(types.Position(0, 99), types.Position(0, 120))
    assert await editor.change("beyond.afl", (beyond, " => (y: Elsewhere)"))
    assert {"Nowhere", "Elsewhere"} <= {word for each in await editor.diagnostics("beyond.afl") for word in each.message.split("`")}


async def test_files_of_a_folder_are_checked_together(editor: Editor) -> None:
    await editor.open("lib.afl", "namespace tools {\n    facet Twice(n: Long) => (m: Long)\n}\n")
    found = await editor.open("main.afl", "namespace app {\n    use tools\n    workflow W() andThen { t = Twice(k = 1) }\n}\n")
    assert any("`k`" in each.message for each in found)
    found = await editor.open("lonely.afl", "namespace app2 {\n    use nowhere\n}\n")
    assert any("nowhere" in each.message for each in found)


async def test_a_library_in_another_folder_is_found_by_its_namespace(editor: Editor) -> None:
    await editor.open("library/far.afl", "namespace far.away { facet Go(n: Long) => (m: Long) }\n")
    text = "namespace trip { use far.away\n workflow W() => (m: Long) andThen { g = Go(k = 1)\n yield W(m = g.m) } }\n"
    found = await editor.open("trips/trip.afl", text)
    assert any("`k`" in each.message for each in found)
    assert not any("no source declares" in each.message for each in found)


async def test_formatting_replaces_the_text_and_leaves_broken_text_alone(editor: Editor) -> None:
    await editor.open("format.afl", "facet   A( x :Long )\n")
    options = types.FormattingOptions(4, True)
    asked = types.DocumentFormattingParams(editor.document("format.afl"), options)
    edits = await editor.client.text_document_formatting_async(asked)
    assert [each.new_text for each in edits or ()] == ["facet A(x: Long)\n"]
    await editor.change("format.afl", "facet A(x: Long)\n")
    assert not await editor.client.text_document_formatting_async(asked)
    await editor.change("format.afl", "facet A(x: \n")
    assert await editor.client.text_document_formatting_async(asked) is None


async def test_symbols_and_folding(editor: Editor) -> None:
    await editor.open("symbols.afl", OUTLINE)
    symbols = await editor.client.text_document_document_symbol_async(types.DocumentSymbolParams(editor.document("symbols.afl")))
    (outer,) = symbols or ()
    assert isinstance(outer, types.DocumentSymbol)
    assert [(each.name, each.kind, [inner.name for inner in each.children or ()]) for each in outer.children or ()] == [
        ("S", types.SymbolKind.Struct, ["a"]),
        ("W", types.SymbolKind.Function, ["x", "s"]),
    ]
    found = await editor.client.workspace_symbol_async(types.WorkspaceSymbolParams("s"))
    assert ("S", "n") in {(each.name, each.container_name) for each in found or ()}
    folds = await editor.client.text_document_folding_range_async(types.FoldingRangeParams(editor.document("symbols.afl")))
    lines = {(each.start_line, each.end_line) for each in folds or ()}
    assert lines == {(0, 1), (2, 10), (3, 4), (6, 9), (7, 8)}


async def test_symbols_of_the_last_good_text_stay_while_it_is_broken(editor: Editor) -> None:
    await editor.open("broken.afl", "facet A(x: Long)\nfacet B(y: Long)\n")
    found = await editor.change("broken.afl", "facet A(x: Long)\nfacet B(y: \n")
    assert found
    symbols = await editor.client.text_document_document_symbol_async(types.DocumentSymbolParams(editor.document("broken.afl")))
    assert [each.name for each in symbols or ()] == ["A", "B"]


async def test_closing_a_file_clears_its_diagnostics(editor: Editor) -> None:
    await editor.open("closed.afl", "facet A(x: Lnog)\n")
    assert editor.client.published[editor.uri("closed.afl")].diagnostics
    await editor.close("closed.afl")
    async with editor.client.news:
        await editor.client.news.wait_for(lambda: not editor.client.published[editor.uri("closed.afl")].diagnostics)
