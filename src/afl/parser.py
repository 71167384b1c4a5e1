"""`AFLParser`: AFL text to a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from treadle.lang import Diagnostic, compile_sources

_SYNTAX = frozenset({"syntax-error", "bad-escape", "bad-character", "number-too-large", "unbalanced-script", "too-deep"})


class ParseError(ValueError):
    """The text does not follow the grammar; `line` and `column` count from 1."""

    def __init__(self, first: Diagnostic) -> None:
        super().__init__(first.render())
        self.message, self.line, self.column = first.message, first.line, first.column


class Ast(dict[str, Any]):
    """A program as JSON objects, with the `errors` that `afl.validator.validate` reports; with errors it is empty."""

    errors: tuple[Diagnostic, ...] = ()


class AFLParser:
    """Parses AFL text."""

    def parse(self, source: str, filename: str = "<string>") -> Ast:
        """Return the program; raise `ParseError` for text that does not follow the grammar."""
        compiled = compile_sources([(filename, source)])
        for error in compiled.errors:
            if error.rule in _SYNTAX:
                raise ParseError(error)
        ast = Ast(compiled.program)
        ast.errors = compiled.errors
        return ast

    def parse_file(self, path: str | Path) -> Ast:
        """Parse the text of a file."""
        return self.parse(Path(path).read_text("utf-8"), str(path))


def parse(source: str, filename: str = "<string>") -> Ast:
    """Return the program; raise `ValueError` with all problems."""
    ast = AFLParser().parse(source, filename)
    if ast.errors:
        raise ValueError("\n".join(error.render() for error in ast.errors))
    return ast
