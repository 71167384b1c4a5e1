"""The words and signs of the CodeMirror mode, whose rules are in editors/codemirror/afl.js."""

from __future__ import annotations

import json

from build_tools.editors.words import MARK, NOT_CALLED, by_role, types
from treadle.interfaces.lsp.scan import CALLED, NAMING, NAMING_LIKE_TYPE
from treadle.lang.tokens import IDENTIFIER, OPERATORS, PATTERNS


def files() -> dict[str, str]:
    """Return the module with the data."""
    data = {
        "keywords": {word: role.value for role, words in by_role().items() for word in words},
        "types": types(),
        "called": sorted(CALLED),
        "operators": list(OPERATORS),
    }
    patterns = {
        "identifier": IDENTIFIER,
        "word": PATTERNS["word"],
        "input": rf"\$(?:\.{IDENTIFIER})*",
        "number": f"{PATTERNS['float']}|{PATTERNS['integer']}",
        "sign": PATTERNS["sign"],
        "naming": NAMING,
        "namingOfCalled": NOT_CALLED,
        "namingLikeType": NAMING_LIKE_TYPE,
    }
    lines = [f"// {MARK}"]
    lines += [f"export const {name} = {json.dumps(value, indent=2)};" for name, value in data.items()]
    lines += [f"export const {name} = /^(?:{pattern.replace('/', chr(92) + '/')})/;" for name, pattern in patterns.items()]
    return {"codemirror/tokens.js": "\n".join(lines) + "\n"}
