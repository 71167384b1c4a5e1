"""Codecs included in Treadle: `Engine(..., codec=Zlib())`. Your own codec needs a `name`, `encode` and `decode`."""

from __future__ import annotations

import base64
import zlib


class Zlib:
    """Compresses texts where that saves space; JSON of some kilobytes shrinks to about a third. It encrypts nothing."""

    name = "zlib"

    def __init__(self, level: int = 6, from_size: int = 512) -> None:
        self._level = level
        self._from_size = from_size

    def encode(self, text: str) -> str:
        """Return the stored text: `=` and the text itself, or `z` and the compressed text."""
        if len(text) >= self._from_size:
            packed = base64.b85encode(zlib.compress(text.encode(), self._level)).decode()
            if len(packed) < len(text):
                return f"z{packed}"
        return f"={text}"

    def decode(self, stored: str) -> str:
        """Return the text that was passed to `encode`; raise for anything else."""
        match stored[:1]:
            case "=":
                return stored[1:]
            case "z":
                return zlib.decompress(base64.b85decode(stored[1:])).decode()
            case _:
                raise ValueError("not a text that this codec has encoded")
