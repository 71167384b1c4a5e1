"""Hover, definition, references, rename, tokens and hints through the protocol."""

from __future__ import annotations

import pytest
import pytest_asyncio
from lsprotocol import types
from pygls.exceptions import JsonRpcException
from tests.lsp.editor import Editor, offset_of

pytestmark = [pytest.mark.xdist_group("lsp names"), pytest.mark.asyncio(loop_scope="module")]

LIBRARY = """/** Money of a customer. */
namespace bank {
    /** An amount with its currency. */
    schema Money { amount: Long, currency: String }

    /**
     * Charges a card.
     * @param money how much 💶
     * @return receipt the number of the receipt
     */
    event facet Charge(money: Money, card: String = "visa") => (receipt: String, paid: Money)

    event facet Limit(most: Long) => (left: Long)
}
"""
CHARGE = 'money: Money, card: String = "visa") => (receipt: String, paid: Money)'
MAIN = """namespace shop {
    use bank

    event facet Ask(text: String) => (answer: String) prompt {
        system "Be brief."
        template "Answer 🙂: {text}"
    }

    workflow Buy(items: [Money], card: String) => (receipts: [String], total: Long) with Limit(most = 3) as limit
    andThen foreach item in $.items {
        bill = Money(amount = item.amount + 1, currency = $.item.currency)
        paid = bank.Charge(money = #{amount: bill.amount, currency: bill.currency}, card = $.card) andThen {
            yield Charge(receipt = paid.paid.currency ++ $.limit.left)
        }
        yield Buy(receipts = [paid.receipt])
    }
    andThen script {
        result["total"] = len(params["items"])
    }
}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop(editor: Editor) -> Editor:
    assert not await editor.open("bank.afl", LIBRARY)
    found = await editor.open("shop.afl", MAIN)
    assert not [each.message for each in found if each.severity is types.DiagnosticSeverity.Error]
    return editor


async def hover(shop: Editor, marker: str, offset: int = 0, *, name: str = "shop.afl", occurrence: int = 0) -> str:
    place = shop.place(name, marker, offset, occurrence=occurrence)
    found = await shop.client.text_document_hover_async(types.HoverParams(**place))
    if found is None:
        return ""
    assert isinstance(found.contents, types.MarkupContent)
    return found.contents.value


@pytest.mark.parametrize(
    ("marker", "offset", "parts"),
    [
        (
            "bank.Charge",
            6,
            [f"event facet bank.Charge({CHARGE}", "Charges a card.", "how much 💶"],
        ),
        ("bank.Charge", 1, ["namespace", "bank", "`Charge`"]),
        ("use bank", 5, ["(namespace) bank"]),
        ("money = #", 0, ["(parameter) money: Money", "how much 💶", "of `bank.Charge`"]),
        ("bill.amount", 0, ["(step) bill = schema bank.Money", "An amount with its currency."]),
        ("item.amount", 0, ["(loop variable) item: bank.Money"]),
        ("item.amount", 5, ["(field) amount: Long", "of `bank.Money`"]),
        ("$.item.currency", 8, ["(field) currency: String"]),
        ("paid.paid.currency", 5, ["(return) paid: Money"]),
        ("paid.paid.currency", 10, ["(field) currency: String"]),
        ("limit.left", 0, ["(alias) limit = event facet bank.Limit"]),
        ("limit.left", 6, ["(return) left: Long"]),
        ("receipts = [", 0, ["(return) receipts: [String]"]),
        ("yield Buy", 6, ["workflow shop.Buy"]),
        ("{text}", 1, ["(parameter) text: String"]),
        ('params["items"]', 9, ["(parameter) items: [Money]"]),
        ('result["total"]', 9, ["(return) total: Long"]),
        ("card: String", 6, ["(type) String", "Text."]),
        ("most = 3", 0, ["(parameter) most: Long"]),
    ],
)
async def test_hover_shows_docs_and_types(shop: Editor, marker: str, offset: int, parts: list[str]) -> None:
    text = await hover(shop, marker, offset)
    assert [part for part in parts if part not in text] == [], text


async def test_hover_over_whitespace_is_empty(shop: Editor) -> None:
    assert await hover(shop, "    use") == ""
    assert await hover(shop, "Be brief") == ""


async def definition(shop: Editor, marker: str, offset: int = 0) -> list[tuple[str, str, int]]:
    asked = types.DefinitionParams(**shop.place("shop.afl", marker, offset))
    found = await shop.client.text_document_definition_async(asked)
    assert isinstance(found, list)
    places = []
    for each in found:
        assert isinstance(each, types.Location)
        name = each.uri.rpartition("/")[2]
        places.append((name, shop.text_of(name, each.range), each.range.start.line))
    return places


async def test_definitions_are_found_across_files(shop: Editor) -> None:
    assert await definition(shop, "bank.Charge", 6) == [("bank.afl", "Charge", 10)]
    assert await definition(shop, "money = #") == [("bank.afl", "money", 10)]
    assert await definition(shop, "item.amount", 5) == [("bank.afl", "amount", 3)]
    assert await definition(shop, "bill.amount") == [("shop.afl", "bill", 10)]
    assert await definition(shop, "$.item.currency", 2) == [("shop.afl", "item", 9)]
    assert await definition(shop, "use bank", 4) == [("bank.afl", "bank", 1)]
    assert await definition(shop, "namespace shop") == []


async def places(shop: Editor, name: str, marker: str, offset: int = 0, *, declaration: bool = True) -> list[tuple[str, int]]:
    asked = types.ReferenceParams(types.ReferenceContext(declaration), **shop.place(name, marker, offset))
    found = await shop.client.text_document_references_async(asked) or []
    words = {shop.text_of(each.uri.rpartition("/")[2], each.range) for each in found}
    assert len(words) <= 1
    return [(each.uri.rpartition("/")[2], each.range.start.line) for each in found]


async def test_references_are_found_across_files(shop: Editor) -> None:
    assert await places(shop, "bank.afl", "Charge(") == [("bank.afl", 10), ("shop.afl", 11), ("shop.afl", 12)]
    assert await places(shop, "bank.afl", "amount:", declaration=False) == [("shop.afl", line) for line in (10, 10, 11, 11)]
    assert await places(shop, "shop.afl", "items: ") == [("shop.afl", 8), ("shop.afl", 9), ("shop.afl", 17)]
    assert await places(shop, "shop.afl", "text: ") == [("shop.afl", 3), ("shop.afl", 5)]
    assert await places(shop, "shop.afl", "use bank", 4) == [("bank.afl", 1), ("shop.afl", 1), ("shop.afl", 11)]


async def test_highlights_are_those_of_the_file(shop: Editor) -> None:
    asked = types.DocumentHighlightParams(**shop.place("shop.afl", "paid.receipt"))
    found = await shop.client.text_document_document_highlight_async(asked) or []
    assert [(each.range.start.line, each.kind) for each in found] == [
        (11, types.DocumentHighlightKind.Write),
        (12, types.DocumentHighlightKind.Read),
        (14, types.DocumentHighlightKind.Read),
    ]


async def renamed(shop: Editor, marker: str, offset: int, name: str) -> dict[str, str]:
    """Return the texts of all files after a rename."""
    asked = types.RenameParams(new_name=name, **shop.place("shop.afl", marker, offset))
    edit = await shop.client.text_document_rename_async(asked)
    assert edit is not None
    texts = {}
    for uri, edits in (edit.changes or {}).items():
        file = uri.rpartition("/")[2]
        text = shop.texts[file]
        starts = [offset_of(text, each.range.start) for each in edits]
        for start, each in sorted(zip(starts, edits, strict=True), key=lambda pair: -pair[0]):
            text = text[:start] + each.new_text + text[offset_of(text, each.range.end) :]
        texts[file] = text
    return texts


async def test_rename_changes_all_files_and_their_meaning_stays(shop: Editor) -> None:
    texts = await renamed(shop, "bank.Charge", 6, "Bill_Card")
    assert "event facet Bill_Card(" in texts["bank.afl"]
    assert "bank.Bill_Card(money = #{" in texts["shop.afl"]
    assert "yield Bill_Card(receipt" in texts["shop.afl"]
    assert "Charge(" not in texts["shop.afl"]
    texts = await renamed(shop, "item.amount", 5, "cents")
    assert "schema Money { cents: Long" in texts["bank.afl"]
    assert "Money(cents = item.cents + 1" in texts["shop.afl"]
    assert "#{cents: bill.cents" in texts["shop.afl"]
    texts = await renamed(shop, "text: String", 0, "question")
    assert "Ask(question: String)" in texts["shop.afl"]
    assert 'template "Answer 🙂: {question}"' in texts["shop.afl"]
    texts = await renamed(shop, "total: Long", 0, "count")
    assert 'result["count"] = len(params["items"])' in texts["shop.afl"]
    texts = await renamed(shop, "namespace shop", 12, "store.front")
    assert texts == {"shop.afl": MAIN.replace("namespace shop", "namespace store.front")}
    texts = await renamed(shop, "foreach item", 9, "each")
    assert "foreach each in $.items" in texts["shop.afl"]
    assert "each.amount + 1, currency = $.each.currency" in texts["shop.afl"]


@pytest.mark.parametrize(
    ("marker", "offset", "name"),
    [
        ("bill =", 0, "2x"),
        ("bill =", 0, "a.b"),
        ("bill =", 0, ""),
        ("bill =", 0, "größe"),
        ("bill =", 0, "yield"),
        ("bill =", 0, "paid"),
        ("bill =", 0, "item"),
        ("workflow Buy", 10, "Ask"),
        ("items: ", 0, "card"),
        ("items: ", 0, "_items"),
        ("item.amount", 5, "currency"),
        ("card: String", 7, "Text"),
    ],
)
async def test_rename_refuses_names_that_are_invalid_or_taken(shop: Editor, marker: str, offset: int, name: str) -> None:
    asked = types.RenameParams(new_name=name, **shop.place("shop.afl", marker, offset))
    with pytest.raises(JsonRpcException, match=r"\w+"):
        await shop.client.text_document_rename_async(asked)


async def test_a_built_in_type_cannot_be_renamed(shop: Editor) -> None:
    prepared = await shop.client.text_document_prepare_rename_async(types.PrepareRenameParams(**shop.place("shop.afl", "bill =")))
    assert isinstance(prepared, types.Range)
    assert shop.text_of("shop.afl", prepared) == "bill"
    with pytest.raises(JsonRpcException, match="built in"):
        await shop.client.text_document_prepare_rename_async(types.PrepareRenameParams(**shop.place("shop.afl", "String", 2)))


async def test_semantic_tokens_have_the_kind_of_every_name(shop: Editor) -> None:
    found = await shop.client.text_document_semantic_tokens_full_async(types.SemanticTokensParams(shop.document("shop.afl")))
    assert found is not None
    legend = shop.capabilities.semantic_tokens_provider
    assert legend is not None
    names = legend.legend.token_types
    line = column = 0
    told: dict[str, set[str]] = {}
    lines = MAIN.split("\n")
    for at in range(0, len(found.data), 5):
        more, over, length, kind, _ = found.data[at : at + 5]
        line, column = line + more, over if more else column + over
        raw = lines[line].encode("utf-16-le")[2 * column : 2 * (column + length)].decode("utf-16-le")
        told.setdefault(raw, set()).add(names[kind])
    assert told["Buy"] == {"function"}
    assert told["Charge"] == {"event"}
    assert told["Money"] == {"struct"}
    assert told["bank"] == {"namespace"}
    assert told["item"] == {"variable"}
    assert told["amount"] == {"property"}
    assert told["andThen"] == {"keyword"}
    assert told["++"] == {"operator"}
    assert told["String"] == {"type"}
    assert told['"Be brief."'] == {"string"}
    assert told["text"] == {"parameter"}


async def test_inlay_hints_show_the_types_of_steps_and_loop_variables(shop: Editor) -> None:
    whole = types.Range(types.Position(0, 0), types.Position(99, 0))
    found = await shop.client.text_document_inlay_hint_async(types.InlayHintParams(shop.document("shop.afl"), whole)) or []
    assert [(each.position.line, each.label) for each in found] == [
        (9, ": bank.Money"),
        (10, ": bank.Money"),
        (11, ": (receipt: String, paid: Money)"),
    ]


VALUES = """namespace values {
    schema Line { sku: String, qty: Long? }
    event facet Load() => (lines: [Line])
    workflow Sum() => (n: Long, sku: String?) andThen {
        load = Load()
        total = count(load.lines) + 1
        line = load.lines[0]
        twice = total * 2
        yield Sum(n = twice + total, sku = line.sku)
    }
}
"""


async def test_values_functions_and_optional_types_have_meanings_and_types(shop: Editor) -> None:
    assert await shop.open("values.afl", VALUES) == []
    for marker, offset, part in [
        ("total *", 0, "(value) total: Long"),
        ("line.sku", 0, "(value) line: values.Line"),
        ("line.sku", 5, "(field) sku: String"),
        ("count(", 0, "The number of elements of a list."),
        ("qty: Long?", 0, "(field) qty: Long?"),
    ]:
        assert part in await hover(shop, marker, offset, name="values.afl"), marker
    assert await places(shop, "values.afl", "total =") == [("values.afl", line) for line in (5, 7, 8)]
    whole = types.Range(types.Position(0, 0), types.Position(99, 0))
    hints = await shop.client.text_document_inlay_hint_async(types.InlayHintParams(shop.document("values.afl"), whole)) or []
    assert [each.label for each in hints] == [": (lines: [Line])", ": Long", ": values.Line", ": Long"]
    renamed = await shop.client.text_document_rename_async(
        types.RenameParams(new_name="all", **shop.place("values.afl", "total *"))
    )
    assert renamed is not None
    assert [len(edits) for edits in (renamed.changes or {}).values()] == [3]
    with pytest.raises(JsonRpcException, match="built in"):
        await shop.client.text_document_rename_async(types.RenameParams(new_name="n", **shop.place("values.afl", "count(")))
    text = VALUES.replace("yield Sum(n = twice + total, sku = line.sku)", "yield Sum(n = twice + ")
    await shop.change("values.afl", text)
    asked = types.CompletionParams(**shop.place("values.afl", "twice + ", 8))
    offered = await shop.client.text_document_completion_async(asked)
    assert isinstance(offered, list)
    assert {"total", "twice", "line", "load", "count", "flatten"} <= {each.label for each in offered}
    await shop.change("values.afl", VALUES.replace("line.sku)", "line.)"))
    asked = types.CompletionParams(**shop.place("values.afl", "line.)", 5))
    offered = await shop.client.text_document_completion_async(asked)
    assert isinstance(offered, list)
    assert {each.label for each in offered} == {"sku", "qty"}
    await shop.close("values.afl")
