" Vim syntax file of AFL.
" Derived from src/treadle/lang/tokens.py by `python -m build_tools.editors`; do not edit.
if exists("b:current_syntax")
  finish
endif
syntax case match
syntax sync fromstart
syntax include @aflPython syntax/python.vim
unlet! b:current_syntax

syntax match aflName "\v[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
syntax match aflInput "\v\$(\.[A-Za-z_][A-Za-z0-9_]*)*"
syntax match aflNumber "\v<[0-9]+(\.[0-9]+([eE][+-]?[0-9]+)?)?"
syntax match aflOperator "\v\+\+|\=\>|\=\=|!\=|\<\=|\>\=|\&\&|\|\||[-+*/%<>!=?]"
syntax region aflString start=+"+ skip=+\\\\\|\\"+ end=+"+ contains=aflEscape
syntax match aflEscape contained "\v\\(u[0-9A-Fa-f]{4}|.)"
syntax match aflComment "//.*$" contains=aflTodo
syntax region aflComment start="/\*" end="\*/" contains=aflTodo
syntax region aflDoc start="/\*\*/\@!" end="\*/" contains=aflTag
syntax match aflTag contained "\v\@(param|return)s?"
syntax keyword aflTodo contained TODO FIXME

syntax match aflConstant "\v[A-Za-z0-9_.$]@1<!(false|null|true)[A-Za-z0-9_.]@!(\s*[:(]|\s*\=[^=>])@!"
syntax match aflControl "\v[A-Za-z0-9_.$]@1<!(collectErrors|failFast|andThen|foreach|prompt|script|catch|yield|case|when)[A-Za-z0-9_.]@!(\s*[:]|\s*\=[^=>])@!"
syntax match aflDeclaration "\v[A-Za-z0-9_.$]@1<!(namespace|implicit|workflow|schema|event|facet|uses|use)[A-Za-z0-9_.]@!(\s*[:(]|\s*\=[^=>])@!"
syntax match aflDirective "\v[A-Za-z0-9_.$]@1<!(template|system|model)[A-Za-z0-9_.]@!(\s*[:(]|\s*\=[^=>])@!"
syntax match aflModifier "\v[A-Za-z0-9_.$]@1<!(after|with|as)[A-Za-z0-9_.]@!(\s*[:(]|\s*\=[^=>])@!"
syntax match aflOperator "\v[A-Za-z0-9_.$]@1<!(startsWith|contains|endsWith|not|in)[A-Za-z0-9_.]@!(\s*[:]|\s*\=[^=>])@!"
syntax match aflStatement "\v[A-Za-z0-9_.$]@1<!(sys\.assert|sys\.log)[A-Za-z0-9_.]@!(\s*[:]|\s*\=[^=>])@!"
syntax match aflType "\v[A-Za-z0-9_.$]@1<!(Boolean|Double|Int|Json|Long|String)[A-Za-z0-9_.]@!(\s*[:(])@!"

syntax region aflPyString contained start=+\z(["']\)+ skip=+\\.+ end=+\z1\|$+ oneline
syntax region aflPyString contained start=+\z("""\|'''\)+ skip=+\\.+ end=+\z1+
syntax match aflPyComment contained "#.*$"
syntax cluster aflCode contains=aflBraces,aflPyString,aflPyComment,@aflPython
syntax region aflBraces contained matchgroup=aflBrace start="{" end="}" contains=@aflCode
syntax region aflScript matchgroup=aflBrace start="\v(<script>(\s+[A-Za-z_][A-Za-z0-9_]*)?\s*)@80<=\{" end="}" contains=@aflCode

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
highlight default link aflDeclaration Structure
highlight default link aflControl Statement
highlight default link aflModifier Keyword
highlight default link aflDirective Keyword
highlight default link aflOperator Operator
highlight default link aflConstant Constant
highlight default link aflStatement Function

let b:current_syntax = "afl"
