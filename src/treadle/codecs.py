"""Codecs that come with Treadle: `Engine(..., codec=Zlib())`. One of your own needs a name, `encode` and `decode`."""

from __future__ import annotations

import base64
import zlib


class Zlib:
    """Compresses texts that get smaller by it; JSON of some kilobytes takes about a third. It hides nothing."""

    name = "zlib"

    def __init__(self, level: int = 6, from_size: int = 512) -> None:
        self._level = level
        self._from_size = from_size

    def encode(self, text: str) -> str:
        """The text as it is stored: `=` and itself, or `z` and what it was compressed to."""
        if len(text) >= self._from_size:
            packed = base64.b85encode(zlib.compress(text.encode(), self._level)).decode()
            if len(packed) < len(text):
                return f"z{packed}"
        return f"={text}"

    def decode(self, stored: str) -> str:
        """The text that was given to `encode`; raises for anything else."""
        match stored[:1]:
            case "=":
                return stored[1:]
            case "z":
                return zlib.decompress(base64.b85decode(stored[1:])).decode()
            case _:
                raise ValueError("this is nothing that zlib has packed")
