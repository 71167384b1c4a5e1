"""Snippets for VS Code, Vim (SnipMate format) and Emacs (YASnippet), from one list."""

from __future__ import annotations

import json

from build_tools.editors.words import MARK

_SNIPPETS = {
    "namespace": ("Namespace", "namespace ${1:name} {\n    $0\n}"),
    "facet": (
        "Facet with a block",
        "facet ${1:Name}(${2:value}: ${3:Long}) => (${4:result}: ${5:Long}) andThen {\n    yield ${1:Name}(${4:result} = $0)\n}",
    ),
    "event": ("Event facet: work of a handler", "event facet ${1:Name}(${2:value}: ${3:String}) => (${4:result}: ${5:String})$0"),
    "prompt": (
        "Event facet that a model answers",
        "event facet ${1:Name}(${2:text}: String) => (${3:answer}: String) prompt {\n"
        '    system "${4:Be brief.}"\n    template "${5:Question}: {$2}"\n}$0',
    ),
    "workflow": (
        "Workflow",
        "workflow ${1:Name}(${2:input}: ${3:String}) => (${4:output}: ${5:String}) andThen {\n"
        "    ${6:step} = ${7:Facet}(${8:value} = \\$.${2:input})\n    yield ${1:Name}(${4:output} = ${6:step}.$0)\n}",
    ),
    "schema": ("Schema", "schema ${1:Name} {\n    ${2:field}: ${3:String}$0\n}"),
    "foreach": ("Block for each element", "andThen foreach ${1:item} in \\$.${2:items} {\n    $0\n}"),
    "when": (
        "Block with cases",
        "andThen when {\n    case ${1:condition} => {\n        $2\n    }\n    case _ => {\n        $0\n    }\n}",
    ),
    "script": ("Script", 'script {\n    result["${1:name}"] = params["${2:name}"]$0\n}'),
    "catch": ("Handle an error", "catch {\n    $0\n}"),
    "doc": ("Doc comment", "/**\n * ${1:Description.}\n * @param ${2:name} ${3:text}\n * @return ${4:name} ${5:text}\n */$0"),
}


def files() -> dict[str, str]:
    """Return the snippets of each editor."""
    code = {title: {"prefix": word, "body": body.split("\n"), "description": title} for word, (title, body) in _SNIPPETS.items()}
    vim = [f"# {MARK}"]
    for word, (title, body) in _SNIPPETS.items():
        vim += [f"snippet {word} {title}", *(f"\t{line.replace('    ', chr(9))}".rstrip() for line in body.split("\n"))]
    made = {
        "vscode/snippets/afl.json": json.dumps(code, indent=2) + "\n",
        "vim/snippets/afl.snippets": "\n".join(vim) + "\n",
    }
    for word, (title, body) in _SNIPPETS.items():
        made[f"emacs/snippets/afl-mode/{word}"] = (
            f"# -*- mode: snippet -*-\n# {MARK}\n# name: {title}\n# key: {word}\n# --\n{body}\n"
        )
    return made
