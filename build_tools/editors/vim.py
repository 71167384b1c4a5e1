"""The syntax file of Vim."""

from __future__ import annotations

from build_tools.editors.words import MARK, by_role, types
from treadle.interfaces.lsp.scan import CALLED
from treadle.lang.tokens import IDENTIFIER, TokenRole

_GROUPS = {
    TokenRole.DECLARATION: "Structure",
    TokenRole.CONTROL: "Statement",
    TokenRole.MODIFIER: "Keyword",
    TokenRole.DIRECTIVE: "Keyword",
    TokenRole.OPERATOR: "Operator",
    TokenRole.CONSTANT: "Constant",
    TokenRole.STATEMENT: "Function",
}
_HEAD = f"""" Vim syntax file of AFL.
" {MARK}
if exists("b:current_syntax")
  finish
endif
syntax case match
syntax sync fromstart
syntax include @aflPython syntax/python.vim
unlet! b:current_syntax

syntax match aflName "\\v{IDENTIFIER}(\\.{IDENTIFIER})*"
syntax match aflInput "\\v\\$(\\.{IDENTIFIER})*"
syntax match aflNumber "\\v<[0-9]+(\\.[0-9]+([eE][+-]?[0-9]+)?)?"
syntax match aflOperator "\\v\\+\\+|\\=\\>|\\=\\=|!\\=|\\<\\=|\\>\\=|\\&\\&|\\|\\||[-+*/%<>!=?]"
syntax region aflString start=+"+ skip=+\\\\\\\\\\|\\\\"+ end=+"+ contains=aflEscape
syntax match aflEscape contained "\\v\\\\(u[0-9A-Fa-f]{{4}}|.)"
syntax match aflComment "//.*$" contains=aflTodo
syntax region aflComment start="/\\*" end="\\*/" contains=aflTodo
syntax region aflDoc start="/\\*\\*/\\@!" end="\\*/" contains=aflTag
syntax match aflTag contained "\\v\\@(param|return)s?"
syntax keyword aflTodo contained TODO FIXME
"""
_SCRIPT = f"""
syntax region aflPyString contained start=+\\z(["']\\)+ skip=+\\\\.+ end=+\\z1\\|$+ oneline
syntax region aflPyString contained start=+\\z(\"\"\"\\|'''\\)+ skip=+\\\\.+ end=+\\z1+
syntax match aflPyComment contained "#.*$"
syntax cluster aflCode contains=aflBraces,aflPyString,aflPyComment,@aflPython
syntax region aflBraces contained matchgroup=aflBrace start="{{" end="}}" contains=@aflCode
syntax region aflScript matchgroup=aflBrace start="\\v(<script>(\\s+{IDENTIFIER})?\\s*)@80<=\\{{" end="}}" contains=@aflCode
"""
_TAIL = """
highlight default link aflName Identifier
highlight default link aflInput Special
highlight default link aflNumber Number
highlight default link aflOperator Operator
highlight default link aflString String
highlight default link aflEscape SpecialChar
highlight default link aflComment Comment
highlight default link aflDoc SpecialComment
highlight default link aflTag Tag
highlight default link aflTodo Todo
highlight default link aflType Type
highlight default link aflPyString String
highlight default link aflPyComment Comment
"""


def _match(group: str, words: list[str]) -> list[str]:
    """Return matches of words that do not name anything: before `:`, `=` or, for most, `(`."""
    lines = []
    for some, signs in (([w for w in words if w in CALLED], ":"), ([w for w in words if w not in CALLED], ":(")):
        if some:
            either = "|".join(word.replace(".", r"\.") for word in some)
            lines.append(f'syntax match {group} "\\v[A-Za-z0-9_.$]@1<!({either})[A-Za-z0-9_.]@!(\\s*[{signs}]|\\s*\\=[^=>])@!"')
    return lines


def files() -> dict[str, str]:
    """Return the syntax and the detection of the file type."""
    lines = [_HEAD]
    for role, words in by_role().items():
        lines += _match(f"afl{role.value.title()}", words)
    lines.append(f'syntax match aflType "\\v[A-Za-z0-9_.$]@1<!({"|".join(types())})[A-Za-z0-9_.]@!(\\s*[:(])@!"')
    links = "".join(f"highlight default link afl{role.value.title()} {group}\n" for role, group in _GROUPS.items())
    text = "\n".join(lines) + "\n" + _SCRIPT + _TAIL + links + '\nlet b:current_syntax = "afl"\n'
    return {"vim/syntax/afl.vim": text}
