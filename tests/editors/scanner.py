"""The scanner of the tree-sitter grammar, compiled and driven through the interface that tree-sitter gives it."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

_HEADER = """#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
typedef uint16_t TSSymbol;
typedef struct TSLexer TSLexer;
struct TSLexer {
  int32_t lookahead;
  TSSymbol result_symbol;
  void (*advance)(TSLexer *, bool);
  void (*mark_end)(TSLexer *);
  uint32_t (*get_column)(TSLexer *);
  bool (*is_at_included_range_start)(const TSLexer *);
  bool (*eof)(const TSLexer *);
};
"""
KINDS = ["code", "_joined", "_joined_equals", "_operand_end", "_line_end", "_field_break", "_never"]
_ADVANCE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_bool)
_MARK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_COLUMN = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p)
_ASK = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)


class _Lexer(ctypes.Structure):
    _fields_ = (
        ("lookahead", ctypes.c_int32),
        ("result_symbol", ctypes.c_uint16),
        ("advance", _ADVANCE),
        ("mark_end", _MARK),
        ("get_column", _COLUMN),
        ("is_at_included_range_start", _ASK),
        ("eof", _ASK),
    )


class Scanner:
    """The compiled scanner."""

    def __init__(self, folder: Path, source: Path) -> None:
        header = folder / "tree_sitter" / "parser.h"
        header.parent.mkdir(parents=True)
        header.write_text(_HEADER)
        library = folder / "scanner.so"
        flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared"]
        subprocess.run(["gcc", *flags, f"-I{folder}", "-o", str(library), str(source)], check=True)
        self._scan = ctypes.CDLL(str(library)).tree_sitter_afl_external_scanner_scan
        self._scan.restype = ctypes.c_bool

    def scan(self, text: str, at: int, valid: set[str]) -> tuple[str, int] | None:
        """Return the token that the scanner makes at an offset, and its end; None if it makes none."""
        place, end = at, at
        lexer = _Lexer()

        def look() -> None:
            lexer.lookahead = ord(text[place]) if place < len(text) else 0

        def advance(_: int, __: bool) -> None:
            nonlocal place
            place += place < len(text)
            look()

        def mark(_: int) -> None:
            nonlocal end
            end = place

        lexer.advance, lexer.mark_end = _ADVANCE(advance), _MARK(mark)
        lexer.get_column, lexer.is_at_included_range_start = _COLUMN(lambda _: 0), _ASK(lambda _: False)
        lexer.eof = _ASK(lambda _: place >= len(text))
        look()
        flags = (ctypes.c_bool * len(KINDS))(*(kind in valid for kind in KINDS))
        if not self._scan(None, ctypes.byref(lexer), flags):
            return None
        return KINDS[lexer.result_symbol], end
