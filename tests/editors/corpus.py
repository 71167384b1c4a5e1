"""The programs on which the editors' grammars must agree with the compiler."""

from __future__ import annotations

import re
from pathlib import Path

from treadle.interfaces.lsp.scan import Class
from treadle.lang.diagnostics import Reporter, Source
from treadle.lang.parse import parse
from treadle.lang.tokens import OPERATORS, TYPES, TokenRole

ROOT = Path(__file__).parents[2]
TRICKY = """\ufeff/** Doc @param x text */
/* comment "not a string" // */
namespace tricky.names {
    use other.event
    facet A(in: Long, with: Long, event: Long, null: Long, script: String = "s", model: [String] = ["a", "é 😀"])
    facet B(String: Long, x: Json = #{in: 1, "k": 2.5E-3, facet: [1.0e10, -007]})
    event facet C(text: String) => (out: String) prompt {
        system "be \\"brief\\" \\\\ \\u00e9 { }"
        template "line one
            line two {text} // not a comment"
        model "m"
    }
    workflow W(n: Long, xs: [[Long]]) => (a: Boolean) with B(x = $.n) as b
    script python {
        # } not the end
        x = {"}": '}', 'a': f"{params['n']}"}  // 2
        y = \"\"\" } \"\"\" + '''{'''
        result["m"] = {}
    }
    andThen foreach each in $.xs {
        with = A(in = $.each[0], with = $.n + 1, event = (2), null = 3) with B(x = 4) as c
        first = B(x = 1)
        after = B(x = 1) after first
        failFast = B(x = 1) with B(x = 4)
            after first, first andThen foreach each in $.xs collectErrors(some) { q = B(x = 1) after first }
        collectErrors = B(x = 2) after first andThen foreach each in $.xs failFast { after = B(x = 3) }
        s = B(x = with.with) catch when { case _ => { t = C(text = "x") } }
        sys.log(a = with.in, b = $.n in [1], c = $.n not in (s.x)) after s
        sys.assert(!(s.String == null) && s.x != true || $.n <= 2)
        yield W(a = (s.x contains "a") || s.x startsWith "b" || (s.x)endsWith"c")
    } andThen when { case ($.n > 1) => { } case $.n >= 2 => { yield W(a = false) } }
    andThen script "result['a'] = True"
    andThen script { result = { } }
    implicit i = A(in = 1 % 2 - 3 * 4 / 5 ++ "6")
    schema S { in: Long, facet: [String]
        use: Json }
}
"""


def programs() -> dict[str, str]:
    """Return valid programs by name: files of the repository, programs in the documentation, and one full of traps."""
    found = {"tricky": TRICKY}
    for folder in ("examples", "tests/golden"):
        for path in sorted((ROOT / folder).rglob("*.afl")):
            found[str(path.relative_to(ROOT))] = path.read_text(encoding="utf-8")
    for path in sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]):
        for number, block in enumerate(re.findall(r"```afl\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)):
            found[f"{path.relative_to(ROOT)}#{number}"] = block
    return {name: text for name, text in found.items() if accepts(text)}


def accepts(text: str) -> bool:
    """Return whether the compiler finds no syntax error."""
    return parse(Source("a", text), Reporter()).file is not None


def classes(text: str) -> list[str]:
    """Return for each character the class that the compiler's tokens give it: empty for blanks and the braces of scripts."""
    found = [""] * len(text)
    parsed = parse(Source("a", text), Reporter())
    tokens = parsed.lexed.tokens
    for comment in parsed.lexed.comments:
        _fill(found, comment.start, comment.end, Class.COMMENT)
    for number, token in enumerate(tokens):
        before = tokens[number - 1].kind if number else ""
        match token.kind:
            case "string":
                class_ = Class.STRING
            case "float" | "integer":
                class_ = Class.NUMBER
            case "input":
                class_ = Class.INPUT
            case "code":
                _fill(found, token.start + 1, token.end - 1, Class.CODE)
                continue
            case "name" | "dotted" if token.role is None:
                class_ = Class.TYPE if token.text in TYPES and before in (":", "[") else Class.NAME
            case "name" | "dotted":
                class_ = {TokenRole.CONSTANT: Class.CONSTANT, TokenRole.OPERATOR: Class.OPERATOR}.get(token.role, Class.KEYWORD)
            case sign:
                class_ = Class.OPERATOR if sign in OPERATORS else Class.PUNCTUATION
        _fill(found, token.start, token.end, class_)
    return ["" if char.isspace() or char == "\ufeff" else class_ for char, class_ in zip(text, found, strict=True)]


def _fill(found: list[str], start: int, end: int, class_: Class) -> None:
    found[start:end] = [class_] * (end - start)


def differences(text: str, theirs: list[str]) -> list[str]:
    """Return the places where another highlighter differs, with the text there."""
    ours = classes(text)
    wrong = [at for at, class_ in enumerate(ours) if class_ and class_ != theirs[at]]
    return [f"{at}: {text[max(0, at - 20) : at]}»{text[at : at + 15]}: {ours[at]}, not {theirs[at]}" for at in wrong[:5]]
