"""Every request on every example, and the time that an edit takes."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from lsprotocol import types
from tests.lsp.editor import Editor, edited, position_of

pytestmark = [pytest.mark.xdist_group("lsp examples"), pytest.mark.asyncio(loop_scope="module")]
ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    str(path.relative_to(ROOT)) for folder in ("examples", "tests/golden/lang") for path in (ROOT / folder).rglob("*.afl")
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def editor(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Editor]:
    folder = tmp_path_factory.mktemp("workspace")
    for name in EXAMPLES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    async with edited(folder) as session:
        yield session


@pytest.mark.parametrize("name", EXAMPLES)
async def test_every_request_on_every_example(editor: Editor, name: str) -> None:
    found = await editor.open(name)
    assert [each.message for each in found if each.severity is types.DiagnosticSeverity.Error] == []
    client, document, text = editor.client, editor.document(name), editor.texts[name]
    whole = types.Range(types.Position(0, 0), position_of(text, len(text)))
    assert await client.text_document_document_symbol_async(types.DocumentSymbolParams(document))
    assert await client.text_document_folding_range_async(types.FoldingRangeParams(document)) is not None
    tokens = await client.text_document_semantic_tokens_full_async(types.SemanticTokensParams(document))
    assert tokens is not None
    assert tokens.data
    assert await client.text_document_inlay_hint_async(types.InlayHintParams(document, whole)) is not None
    assert (
        await client.text_document_code_action_async(types.CodeActionParams(document, whole, types.CodeActionContext([])))
        is not None
    )
    formatting = types.DocumentFormattingParams(document, types.FormattingOptions(4, True))
    assert await client.text_document_formatting_async(formatting) is not None
    words = list(re.finditer(r"[A-Za-z_]+|[.$(,=:{]", text))
    named = 0
    for number, match in enumerate(words):
        if number % max(1, len(words) // 25):
            continue
        place = {"text_document": document, "position": position_of(text, match.end())}
        hover = await client.text_document_hover_async(types.HoverParams(**place))
        definitions = await client.text_document_definition_async(types.DefinitionParams(**place))
        references = await client.text_document_references_async(types.ReferenceParams(types.ReferenceContext(True), **place))
        assert (hover is None) == (not references)
        assert not definitions or references
        named += hover is not None
        await client.text_document_document_highlight_async(types.DocumentHighlightParams(**place))
        await client.text_document_completion_async(types.CompletionParams(**place))
        await client.text_document_signature_help_async(types.SignatureHelpParams(**place))
    assert named


@pytest.mark.parametrize("name", EXAMPLES[::4])
async def test_text_that_ends_anywhere_answers_every_request(editor: Editor, name: str) -> None:
    text = (ROOT / name).read_text()
    await editor.open(name, text)
    for cut in range(1, 10):
        short = text[: len(text) * cut // 10]
        await editor.change(name, short)
        place = {"text_document": editor.document(name), "position": position_of(short, len(short))}
        assert await editor.client.text_document_completion_async(types.CompletionParams(**place)) is not None
        await editor.client.text_document_signature_help_async(types.SignatureHelpParams(**place))
        await editor.client.text_document_hover_async(types.HoverParams(**place))
        symbols = await editor.client.text_document_document_symbol_async(types.DocumentSymbolParams(editor.document(name)))
        assert symbols is not None
        await editor.client.text_document_semantic_tokens_full_async(types.SemanticTokensParams(editor.document(name)))
    await editor.change(name, text)
