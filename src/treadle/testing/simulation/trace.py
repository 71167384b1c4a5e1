"""The events of a history in order: the same seed produces the same lines."""

from __future__ import annotations

import hashlib

LAST = 400
"""Maximum number of lines in a report, from the end of the history."""


class Trace:
    """Lines of (seconds, process, text)."""

    def __init__(self) -> None:
        self._lines: list[tuple[float, str, str]] = []
        self.counts: dict[str, int] = {}
        """Injected faults by kind."""

    def add(self, at: float, who: str, what: str) -> None:
        """Append a line."""
        self._lines.append((at, who, what))

    def count(self, fault: str) -> None:
        """Count an injected fault."""
        self.counts[fault] = self.counts.get(fault, 0) + 1

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def digest(self) -> str:
        """Return the digest of the whole history."""
        whole = hashlib.sha256()
        for at, who, what in self._lines:
            whole.update(f"{at:.9f} {who} {what}\n".encode())
        return whole.hexdigest()

    def lines(self, last: int | None = LAST, about: str = "") -> list[str]:
        """Return the last lines as text, or all; only those that contain `about`."""
        chosen = [line for line in self._lines if about in line[2] or about in line[1]]
        left_out = 0 if last is None else max(len(chosen) - last, 0)
        shown = [f"{at:10.3f}  {who:<10} {what}" for at, who, what in chosen[left_out:]]
        return [f"({left_out} lines before)", *shown] if left_out else shown
