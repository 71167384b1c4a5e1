"""The words of the Emacs mode, whose rules are in editors/emacs/afl-mode.el."""

from __future__ import annotations

from build_tools.editors.words import MARK, by_role, types
from treadle.interfaces.lsp.scan import CALLED


def files() -> dict[str, str]:
    """Return the file with the word lists."""
    lines = [";;; afl-words.el --- Words of AFL  -*- lexical-binding: t; -*-", f";; {MARK}", ""]
    lists = {f"{role.value}s": words for role, words in by_role().items()} | {"types": types(), "called": sorted(CALLED)}
    for name, words in lists.items():
        lines.append(f"(defconst afl-words-{name} '({' '.join(f'{chr(34)}{word}{chr(34)}' for word in words)}))")
    lines += ["", "(provide 'afl-words)", ";;; afl-words.el ends here"]
    return {"emacs/afl-words.el": "\n".join(lines) + "\n"}
