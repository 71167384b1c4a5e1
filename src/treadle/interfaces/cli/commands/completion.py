"""`treadle completion`: the script that a shell loads, and the words that this script asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import click
from click.shell_completion import ShellComplete

from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.format import plain
from treadle.interfaces.cli.session import CommandSession, common_of, make_session
from treadle.model.errors import TreadleError

_ENTITIES = {"tasks": "task", "runs": "run", "approvals": "approval"}
"""The entity whose states `STATE` stands for, by group; for `runs steps` it is the step."""

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


_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_HOMES = {
    "bash": (".local/share/bash-completion/completions/treadle", "Open a new shell; it needs the package bash-completion."),
    "zsh": (".zfunc/_treadle", "Add to ~/.zshrc if missing: fpath+=(~/.zfunc); autoload -Uz compinit; compinit"),
    "fish": (".config/fish/completions/treadle.fish", "Open a new shell."),
}


def completion(
    session: CommandSession,
    shell: Annotated[str, argument(metavar="bash|zsh|fish", choices=tuple(_SCRIPTS), help="The shell")],
    words: Annotated[
        list[str] | None, argument(metavar="[WORD]...", help="Words typed so far, after --; passed by the script")
    ] = None,
    install: Annotated[bool, option("--install", help="Write the script to the shell's completion folder")] = False,
) -> None:
    """Print the script that completes commands, options, states and names in a shell: `source <(treadle completion bash)`."""
    if words:
        for value, meaning in possible(words):
            click.echo(f"{value}\t{meaning}" if meaning and shell != "bash" else value)
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


def possible(words: Sequence[str]) -> list[tuple[str, str]]:
    """Complete the last word, which may be empty, after the others; returns words with their meaning."""
    from treadle.interfaces.cli.app import make_app

    typed = [*words, ""] if words[-1] == "=" else words
    *before, begun = [word for word in typed if word != "="]  # bash splits --state=failed into three words
    joined = f"{begun.partition('=')[0]}=" if begun.startswith("--") and "=" in begun else ""
    completions = ShellComplete(make_app(), {}, "treadle", "").get_completions(before, begun)
    return [(f"{joined}{completion.value}", _first(completion.help)) for completion in completions if completion.type == "plain"]


def _first(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


# --- values ---


def values(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The values of an argument or option: the words of its metavar (`wait|ignore`), states, or names in the store."""
    path = ctx.command_path.split()[1:]
    return [value for value in _values(ctx, path, param) if value.startswith(incomplete)]


def _values(ctx: click.Context, path: Sequence[str], param: click.Parameter) -> Iterable[str]:
    if isinstance(param.type, click.Choice):
        return [str(choice) for choice in param.type.choices]
    metavar = (param.metavar or "").strip("[].")
    if metavar == "STATE":
        from treadle.model.states import MACHINES, TaskState

        entity = "step" if path[-1] == "steps" else _ENTITIES.get(path[0], "task")
        return TaskState if entity == "task" else map(str, MACHINES[entity].states)
    if metavar == "SCOPE":
        from treadle.model.access import Scope

        return Scope
    if "|" in metavar and metavar.islower():
        return metavar.split("|")
    listed = _NAMES.get(metavar) or _NAMES.get(f"{path[0]} {metavar}" if isinstance(param, click.Argument) else "")
    return [] if listed is None else asyncio.run(_ask(ctx, *listed))


async def _ask(ctx: click.Context, group: str, name: str) -> list[str]:
    """The names of the records that a group lists."""
    from treadle.api.view import rows_of

    try:
        async with make_session(common_of(ctx)).api() as api:
            page = await getattr(api, group).list()
    except TreadleError:
        return []  # a shell cannot show errors during completion
    rows, _ = rows_of(type(page))
    return [getattr(record, name) for record in getattr(page, rows)]


_NAMES = {
    "LIST": ("lists", "task_list"),
    "FLOW": ("flows", "name"),
    "FILE...|FLOW": ("flows", "name"),
    "FACET": ("handlers", "facet_name"),
    "ID|NAME": ("tokens", "name"),
    "flows NAME": ("flows", "name"),
    "schedules NAME": ("schedules", "name"),
    "watchers NAME": ("watchers", "name"),
}
"""The group of calls, and the field of its records, for the values of a metavar, or of an argument of a group of commands."""
