"""`treadle completion`: the script that a shell loads, and the words that it then asks for."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.format import plain
from treadle.cli.session import Session

_BASH = """\
_treadle_completion() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("${line%%$'\\t'*}")
    done < <("${COMP_WORDS[0]}" completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _treadle_completion treadle
"""

_ZSH = """\
#compdef treadle
_treadle() {
    local line
    local -a found
    while IFS= read -r line; do
        line=${line//:/\\\\:}
        found+=("${line/$'\\t'/:}")
    done < <("${words[1]}" completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)
    if (( $#found )); then
        _describe treadle found
    else
        _files
    fi
}
if [ "${funcstack[1]}" = _treadle ]; then
    _treadle "$@"
else
    compdef _treadle treadle
fi
"""

_FISH = """\
function __treadle_complete
    set -l words (commandline -opc) (commandline -ct)
    $words[1] completion fish -- $words[2..-1] 2>/dev/null
end
complete -c treadle -f -a '(__treadle_complete)'
complete -c treadle -F -n 'test -z "$(__treadle_complete)"'
"""


class Shell(StrEnum):
    """The shells that can be helped."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


_SCRIPTS = {Shell.BASH: _BASH, Shell.ZSH: _ZSH, Shell.FISH: _FISH}
_HOMES = {
    Shell.BASH: (".local/share/bash-completion/completions/treadle", "Open a new shell; it needs the package bash-completion."),
    Shell.ZSH: (".zfunc/_treadle", "In ~/.zshrc, if it is not there yet: fpath+=(~/.zfunc); autoload -Uz compinit; compinit"),
    Shell.FISH: (".config/fish/completions/treadle.fish", "Open a new shell."),
}


async def completion(
    session: Session,
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="The shell")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[WORD]...", help="What is typed so far, after --; asked by the script")
    ] = None,
    install: Annotated[bool, typer.Option("--install", help="Write the script to where the shell looks for it")] = False,
) -> None:
    """Print the script that completes commands, options, states and names in a shell: `source <(treadle completion bash)`."""
    if words:
        from treadle.cli.completion_words import possible

        for value, meaning in await possible(session, words):
            typer.echo(f"{value}\t{meaning}" if meaning and shell is not Shell.BASH else value)
        return
    script = _SCRIPTS[shell]
    if not install:
        session.show({"shell": shell, "script": script}, lambda: plain(script.rstrip()))
        return
    place, next_step = _HOMES[shell]
    path = Path.home() / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    session.show({"shell": shell, "path": str(path), "next": next_step}, lambda: plain(f"Written to {path}. {next_step}"))
