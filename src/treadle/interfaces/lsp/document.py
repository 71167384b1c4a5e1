"""A text and its positions: the protocol counts lines from 0 and columns in UTF-16 units, AFL counts both from 1 in characters.

Everything in between uses offsets. The two also disagree about lines: the protocol ends one at LF, CRLF and CR, AFL at LF.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property

from lsprotocol import types

from treadle.lang.nodes import Span

_END = re.compile(r"\r\n|\n|\r")


class Document:
    """An immutable version of a file's text. Positions outside it are moved to its nearest end."""

    def __init__(self, text: str, version: int | None = None, encoding: str = "utf-16") -> None:
        self.text = text
        self.version = version
        self.encoding = encoding

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(match.end() for match in _END.finditer(self.text))]

    @cached_property
    def _source_starts(self) -> list[int]:
        starts = [0, *(match.end() for match in re.finditer("\n", self.text))]
        if self.text.startswith("\ufeff"):
            starts[0] = 1
        return starts

    def _line(self, number: int) -> str:
        ends = self._starts[number + 1] if number + 1 < len(self._starts) else len(self.text)
        return self.text[self._starts[number] : ends].rstrip("\r\n")

    def _units(self, text: str) -> int:
        if text.isascii() or self.encoding == "utf-32":
            return len(text)
        if self.encoding == "utf-8":
            return len(text.encode("utf-8", "surrogatepass"))
        return len(text.encode("utf-16-le", "surrogatepass")) // 2

    def offset(self, position: types.Position) -> int:
        """Return the offset of a position of the protocol."""
        if position.line >= len(self._starts):
            return len(self.text)
        line = self._line(position.line)
        if line.isascii():
            return self._starts[position.line] + min(position.character, len(line))
        units = 0
        for index, char in enumerate(line):
            if units >= position.character:
                return self._starts[position.line] + index
            units += self._units(char)
        return self._starts[position.line] + len(line)

    def position(self, offset: int) -> types.Position:
        """Return the protocol's position of an offset."""
        offset = max(0, min(offset, len(self.text)))
        line = bisect_right(self._starts, offset) - 1
        return types.Position(line, self._units(self.text[self._starts[line] : offset]))

    def range(self, start: int, end: int) -> types.Range:
        return types.Range(self.position(start), self.position(end))

    def source_offset(self, line: int, column: int) -> int:
        """Return the offset of a line and a column of AFL."""
        if line > len(self._source_starts):
            return len(self.text)
        return min(self._source_starts[line - 1] + column - 1, len(self.text))

    def offsets(self, span: Span) -> tuple[int, int]:
        return self.source_offset(span.line, span.column), self.source_offset(span.end_line, span.end_column)

    def range_offsets(self, range_: types.Range) -> tuple[int, int]:
        return self.offset(range_.start), self.offset(range_.end)

    def span_range(self, span: Span) -> types.Range:
        return self.range(*self.offsets(span))

    def changed(self, changes: list[types.TextDocumentContentChangeEvent], version: int | None) -> Document:
        """Return the next version, after the changes of one notification, each on top of the last."""
        document = self
        for change in changes:
            text = change.text
            if isinstance(change, types.TextDocumentContentChangePartial):
                start, end = document.range_offsets(change.range)
                text = document.text[:start] + text + document.text[max(start, end) :]
            document = Document(text, version, self.encoding)
        return document
