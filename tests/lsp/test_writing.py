"""Completion, signature help, code actions, and broken text through the protocol."""

from __future__ import annotations

import pytest
import pytest_asyncio
from lsprotocol import types
from tests.lsp.editor import Editor

pytestmark = [pytest.mark.xdist_group("lsp writing"), pytest.mark.asyncio(loop_scope="module")]

LIBRARY = """namespace bank {
    schema Money { amount: Long, currency: String }
    /** Charges a card. */
    event facet Charge(money: Money, card: String = "visa") => (receipt: String, paid: Money)
    event facet Limit(most: Long) => (left: Long)
    event facet Split(parts: Long) => (left: Long, failed: [Json])
}
namespace other.place {
    facet Refund(x: Long)
    facet Limit2(x: Long)
}
namespace third.place {
    facet Limit2(x: Long)
}
"""
HEAD = """namespace shop {
    use bank
    workflow Buy(items: [Money], card: String) => (receipts: [String], total: Long) with Limit(most = 3) as limit andThen {
        first = Charge(money = #{amount: 1, currency: "€ 💶"}, card = $.card)
"""
WHOLE = HEAD + "        yield Buy(total = 1)\n    }\n}\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop(editor: Editor) -> Editor:
    await editor.open("bank.afl", LIBRARY)
    await editor.open("shop.afl", WHOLE)
    return editor


async def completed(shop: Editor, text: str) -> list[str]:
    """Return the completions at the `|` of a text."""
    before, _, after = text.partition("|")
    await shop.change("shop.afl", WHOLE)
    await shop.change("shop.afl", before + after)
    asked = types.CompletionParams(**shop.place("shop.afl", before + after, len(before)))
    found = await shop.client.text_document_completion_async(asked)
    assert isinstance(found, list)
    return [each.label for each in found]


@pytest.mark.parametrize(
    ("line", "wanted", "unwanted"),
    [
        ("s = |", ["Charge", "Limit", "Money", "Buy", "Refund", "other.place.Limit2", "third.place.Limit2"], ["yield", "String"]),
        ("s = Ch|", ["Charge"], ["yield"]),
        ("s = bank.|", ["Charge", "Limit", "Money"], ["Buy"]),
        ("s = sys.|", ["approval"], ["log", "Buy"]),
        ("sys.|", ["log", "assert"], ["Buy"]),
        ("s = sys.approval(|", ["question", "deciders", "expires"], ["by"]),
        ("s = sys.approval()\n t = Charge(card = s.|", ["by", "reason", "context"], ["receipt"]),
        ("s = other.|", ["place"], ["Refund"]),
        ("s = Charge(|", ["money", "card"], ["receipt", "Charge"]),
        ('s = Charge(card = "x", |', ["money"], ["card"]),
        ("s = Charge(money = |", ["first", "$.items", "$.card", "null"], ["s", "money"]),
        ("s = Charge(money = $.|", ["items", "card", "limit"], ["first"]),
        ("s = Charge(money = $.limit.|", ["left", "most"], ["card"]),
        ("s = Charge(money = first.|", ["receipt", "paid", "money", "card"], ["items"]),
        ("s = Charge(money = first.paid.|", ["amount", "currency"], ["receipt"]),
        ("s = Charge(card = $.card ++ first.rec|", ["receipt"], []),
        ("s = Charge(card = ($.card ++ [first.paid.|", ["amount"], []),
        ("s = Charge(card = #{a: first.paid.|", ["amount"], []),
        ("s = Charge() with |", ["Limit", "Charge", "Timeout"], ["Money"]),
        ("s = Charge() with Limit(|", ["most"], ["left", "money"]),
        ("s = Charge() with Timeout(|", ["minutes", "seconds"], ["money"]),
        ("yield |", ["Buy", "limit"], ["Charge"]),
        ("yield Buy(|", ["receipts", "total"], ["items"]),
        ("yield Buy(total = 1, |", ["receipts"], ["total"]),
        ("s = Charge() after |", ["first"], ["s", "Charge", "yield"]),
        ("t = Charge()\n s = Charge() after first, |", ["t"], ["s", "Charge", "yield"]),
        ("s = Split() andThen foreach x in first.paid |", ["failFast", "collectErrors"], ["yield"]),
        ("s = Split() andThen foreach x in first.paid collectErrors(|", ["failed"], ["receipts", "parts", "yield"]),
        ("s = Charge() |", ["with", "after", "andThen", "catch", "yield"], ["Charge"]),
        ("|", ["yield", "sys.log"], ["Charge"]),
        ("s = Charge() andThen |", ["foreach", "when"], ["yield"]),
        ("s = Charge() andThen { yield |", ["Charge"], ["Buy", "Limit"]),
        ("s = Charge() andThen { yield Charge(|", ["receipt", "paid"], ["money"]),
        ("s = Charge() andThen { t = Limit(most = $.|", ["paid", "receipt", "items", "card"], ["s"]),
        ("s = Charge() andThen { t = Limit(most = s.|", ["paid", "receipt"], []),
        ("s = Limit() andThen foreach it in $.items { t = Limit(most = it.|", ["amount", "currency"], []),
        ("s = Limit() andThen foreach it in $.items { t = Limit(most = $.it.|", ["amount", "currency"], []),
        ("s = Limit() andThen when { |", ["case"], []),
        ("s = Limit() andThen when { case first.paid.amount |", ["in", "contains"], ["first"]),
        ("s = Limit() andThen when { case first.|", ["paid"], []),
        ('s = Charge(card = "$.|', [], ["items"]),
        ("// s = Charge(|", [], ["money"]),
        ("s = |\n        t = Limit(most = 3)\n        yield Buy(total = t.left)\n    }\n}\n", ["Charge"], ["t"]),
    ],
)
async def test_completion_in_a_block(shop: Editor, line: str, wanted: list[str], unwanted: list[str]) -> None:
    found = await completed(shop, f"{HEAD}        {line}")
    assert [each for each in wanted if each not in found] == [], found
    assert [each for each in unwanted if each in found] == [], found


@pytest.mark.parametrize(
    ("text", "wanted", "unwanted"),
    [
        ("|", ["namespace", "workflow", "event facet", "facet"], ["yield", "use"]),
        ("namespace n { |", ["use", "schema", "facet"], ["namespace", "yield"]),
        ("namespace n\n|", ["use", "schema", "facet"], ["yield"]),
        ("namespace n { use |", ["bank", "other.place"], ["facet"]),
        ("facet A(x: |", ["String", "Long", "Json", "Money"], ["Charge", "facet"]),
        ("facet A(x: [M|", ["Money"], []),
        ("facet A(x: bank.|", ["Money"], []),
        ("facet A(x: Long) => (y: |", ["Long", "Money"], []),
        ("facet A(|", [], ["Long", "facet"]),
        ("facet A(x: Long) |", ["andThen", "with", "script", "prompt"], []),
        ("facet A(x: Long) with |", ["Limit", "Timeout"], ["Long"]),
        ("facet A(x: [Long]) => (bad: [Json]) andThen foreach y in $.x |", ["failFast", "collectErrors"], ["facet"]),
        ("facet A(x: Long) andThen |", ["foreach", "when", "script"], ["facet"]),
        ("event facet A(x: Long) prompt { |", ["system", "template", "model"], ["yield"]),
        ("event |", ["facet"], ["event facet"]),
        ("implicit i = |", ["Limit"], ["yield"]),
        ("implicit i = Limit(|", ["most"], []),
        ('facet A(x: Long)\nscript { params["|', [], ["Long"]),
    ],
)
async def test_completion_of_declarations(shop: Editor, text: str, wanted: list[str], unwanted: list[str]) -> None:
    found = await completed(shop, text)
    assert [each for each in wanted if each not in found] == [], found
    assert [each for each in unwanted if each in found] == [], found


async def test_completion_uses_declarations_from_the_last_valid_text(shop: Editor) -> None:
    await shop.open("alone.afl", "facet First(aa: Long)\nfacet Second(bb: Long)\nworkflow W() andThen {\n}\n")
    text = "facet First(aa: Long)\nfacet Second(bb: Long)\nworkflow W() andThen {\n    s = Second("
    assert await shop.change("alone.afl", text)
    asked = types.CompletionParams(**shop.place("alone.afl", "Second(", 7, occurrence=1))
    found = await shop.client.text_document_completion_async(asked)
    assert isinstance(found, list)
    assert [each.label for each in found] == ["bb"]
    hover = await shop.client.text_document_hover_async(types.HoverParams(**shop.place("alone.afl", "First(", 1)))
    assert hover is not None


async def test_completion_offers_required_arguments_first_and_writes_the_sign(shop: Editor) -> None:
    text = f"{HEAD}        s = Charge("
    await shop.change("shop.afl", text)
    found = await shop.client.text_document_completion_async(types.CompletionParams(**shop.place("shop.afl", text, len(text))))
    assert isinstance(found, list)
    assert [(each.label, each.insert_text) for each in sorted(found, key=lambda each: each.sort_text or "")] == [
        ("money", "money = "),
        ("card", "card = "),
    ]


@pytest.mark.parametrize(
    ("line", "label", "active"),
    [
        ("s = Charge(", 'bank.Charge(money: Money, card: String = "visa") => (receipt: String, paid: Money)', "money: Money"),
        ("s = Charge(money = $.items, ", None, 'card: String = "visa"'),
        ("s = Charge(card = ", None, 'card: String = "visa"'),
        ("s = Charge(money = (1 + ", None, "money: Money"),
        ("s = Charge(c", None, 'card: String = "visa"'),
        ("s = Money(amount = 1, ", "bank.Money(amount: Long, currency: String)", "currency: String"),
        ("yield Buy(", "yield shop.Buy(receipts: [String], total: Long)", "receipts: [String]"),
        ("s = Charge(money = 1) with Limit(", "bank.Limit(most: Long) => (left: Long)", "most: Long"),
    ],
)
async def test_signature_help_follows_the_argument(shop: Editor, line: str, label: str | None, active: str) -> None:
    text = f"{HEAD}        {line}"
    await shop.change("shop.afl", WHOLE)
    await shop.change("shop.afl", text)
    found = await shop.client.text_document_signature_help_async(
        types.SignatureHelpParams(**shop.place("shop.afl", text, len(text)))
    )
    assert found is not None
    (signature,) = found.signatures
    if label is not None:
        assert signature.label == label
    assert found.active_parameter is not None
    assert (signature.parameters or ())[found.active_parameter].label == active


async def test_signature_help_ends_with_the_call(shop: Editor) -> None:
    text = f"{HEAD}        s = Charge(money = 1) "
    await shop.change("shop.afl", text)
    asked = types.SignatureHelpParams(**shop.place("shop.afl", text, len(text)))
    assert await shop.client.text_document_signature_help_async(asked) is None


async def test_code_actions_apply_the_fixes_of_diagnostics(shop: Editor) -> None:
    text = WHOLE.replace('"}, card = $.card', '"}, card = $.crad')
    (wrong,) = [each for each in await shop.change("shop.afl", text) if "crad" in each.message]
    asked = types.CodeActionParams(shop.document("shop.afl"), wrong.range, types.CodeActionContext([wrong]))
    found = await shop.client.text_document_code_action_async(asked) or []
    action = found[0]
    assert isinstance(action, types.CodeAction)
    assert action.kind == types.CodeActionKind.QuickFix
    assert action.is_preferred
    assert action.edit is not None
    ((uri, (edit,)),) = (action.edit.changes or {}).items()
    assert uri == shop.uri("shop.afl")
    assert (shop.text_of("shop.afl", edit.range), edit.new_text) == ("crad", "card")
    elsewhere = types.Range(types.Position(0, 0), types.Position(0, 1))
    asked = types.CodeActionParams(shop.document("shop.afl"), elsewhere, types.CodeActionContext([]))
    assert not await shop.client.text_document_code_action_async(asked)
