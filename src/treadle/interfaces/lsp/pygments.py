"""A Pygments lexer for AFL, for documentation tools; Pygments finds it by the entry point in pyproject.toml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from pygments.lexer import Lexer
from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

from treadle.interfaces.lsp.scan import Class, scan

_TYPES = {
    Class.COMMENT: Comment,
    Class.STRING: String,
    Class.NUMBER: Number,
    Class.KEYWORD: Keyword,
    Class.CONSTANT: Keyword.Constant,
    Class.TYPE: Keyword.Type,
    Class.INPUT: Name.Variable,
    Class.NAME: Name,
    Class.OPERATOR: Operator,
    Class.PUNCTUATION: Punctuation,
}


class AflLexer(Lexer):  # type: ignore[misc]  # Pygments has no types
    """Colours AFL; scripts are coloured as Python."""

    name = "AFL"
    aliases: ClassVar[list[str]] = ["afl"]
    filenames: ClassVar[list[str]] = ["*.afl"]
    mimetypes: ClassVar[list[str]] = ["text/x-afl"]

    def get_tokens_unprocessed(self, text: str) -> Iterator[tuple[int, Any, str]]:
        """Yield offsets, token types and texts, which together are the whole text."""
        at = 0
        for token in scan(text):
            if token.start > at:
                yield at, Text.Whitespace, text[at : token.start]
            if token.class_ is Class.CODE:
                yield from _script(token.start, token.text)
            else:
                yield token.start, Comment.Special if token.kind == "doc" else _TYPES[token.class_], token.text
            at = token.end
        if at < len(text):
            yield at, Text.Whitespace, text[at:]


def _script(start: int, text: str) -> Iterator[tuple[int, Any, str]]:
    closed = len(text) > 1 and text.endswith("}")
    yield start, Punctuation, "{"
    for offset, type_, part in PythonLexer().get_tokens_unprocessed(text[1 : len(text) - closed]):
        yield start + 1 + offset, type_, part
    if closed:
        yield start + len(text) - 1, Punctuation, "}"
