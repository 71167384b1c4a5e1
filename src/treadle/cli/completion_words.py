"""What could be typed next: commands from the table, options of the chosen command, and values where they are known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from treadle.cli.app import COMMANDS, make_app
from treadle.cli.session import Common, Session
from treadle.cli.table import Branch, Leaf, make
from treadle.model.errors import TreadleError

if TYPE_CHECKING:
    from treadle.api.face import Api

Possible = list[tuple[str, str]]
"""Words and what they mean."""

_ENTITIES = {"tasks": "task", "runs": "run", "approvals": "approval"}
"""Whose states `STATE` means, by group; `runs steps` means those of steps."""


async def possible(session: Session, words: Sequence[str]) -> Possible:
    """What the last of the words, which may be empty, can become after the others; none where the shell knows better."""
    said = [*words, ""] if words[-1] == "=" else words
    *before, begun = [word for word in said if word != "="]  # bash makes three words of --state=failed
    option, equals, part = begun.partition("=") if begun.startswith("--") else ("", "", "")
    if equals:
        found = await _possible(session, [*before, option], part)
        return [(f"{option}={value}", meaning) for value, meaning in found if value.startswith(part)]
    return [each for each in await _possible(session, before, begun) if each[0].startswith(begun)]


async def _possible(session: Session, before: Sequence[str], begun: str) -> Possible:
    root: Any = make_app()
    path, entry, params, given, wants = list[str](), None, _options(root.params), dict[str, str](), None
    places: list[Any] = []
    level: tuple[Leaf | Branch, ...] = COMMANDS
    for word in before:
        if wants is not None:
            given[wants.opts[0]], wants = word, None
        elif word.startswith("-") and word != "-":
            name, equals, value = word.partition("=")
            option = params.get(name)
            if option is not None and equals:
                given[option.opts[0]] = value
            elif option is not None and not option.is_flag:
                wants = option
        elif level:
            entry = next((each for each in level if each.name == word), None)
            if entry is None:
                return []
            path.append(word)
            level = entry.below if isinstance(entry, Branch) else ()
            if isinstance(entry, Leaf):
                own = make(entry).params
                params, places = _options(own), [each for each in own if each.param_type_name == "argument"]
        elif places and places[0].nargs != -1:
            places.pop(0)
    if wants is not None:
        return await _values(session, path, wants, given)
    if begun.startswith("-"):
        return _named(params) if not level or entry is None else []
    if level:
        return [(each.name, each.help or _first(make(each).help)) for each in level]
    return await _values(session, path, places[0], given) if places else []


def _options(params: Sequence[Any]) -> dict[str, Any]:
    return {name: each for each in params if each.param_type_name == "option" for name in each.opts}


def _named(params: dict[str, Any]) -> Possible:
    return [(name, _first(each.help)) for name, each in params.items() if name.startswith("--") and not each.hidden] + [
        ("--help", "Show what it does and takes")
    ]


def _first(text: str | None) -> str:
    return (text or "").split("\n\n")[0].replace("\n", " ")


async def _values(session: Session, path: Sequence[str], param: Any, given: dict[str, str]) -> Possible:
    """What the argument or option can be: from its own words (`wait|ignore`), the states, or what there is."""
    metavar = (param.metavar or "").strip("[].")
    if metavar == "STATE":
        return [(value, "") for value in _states(path)]
    if metavar == "SCOPE":
        from treadle.model.access import Scope

        return [(value, "") for value in Scope]
    if "|" in metavar and metavar.islower():
        return [(value, "") for value in metavar.split("|")]
    ask = _NAMES.get(metavar) or _NAMES.get(f"{path[0]} {metavar}" if path and param.param_type_name == "argument" else "")
    if ask is None:
        return []
    names = ("store", "namespace", "server", "token")
    chosen = Common(**{name: given.get(f"--{name}") for name in names})  # type: ignore[arg-type]
    try:
        async with replace(session, chosen=chosen.over(session.chosen), settings=_settings(session, chosen)).api() as api:
            return [(name, "") for name in await ask(api)]
    except TreadleError:
        return []  # who completes wants no errors between the words


def _settings(session: Session, chosen: Common) -> Any:
    settings = session.settings
    return replace(settings, store=chosen.store or settings.store, namespace=chosen.namespace or settings.namespace)


def _states(path: Sequence[str]) -> Iterator[str]:
    from treadle.model.states import MACHINES, TaskState

    entity = "step" if path[-1] == "steps" else _ENTITIES.get(path[0], "task")
    yield from TaskState if entity == "task" else map(str, MACHINES[entity].states)


async def _lists(api: Api) -> list[str]:
    return [each.task_list for each in (await api.lists.list()).lists]


async def _flows(api: Api) -> list[str]:
    return [each.name for each in (await api.flows.list()).flows]


async def _schedules(api: Api) -> list[str]:
    return [each.name for each in (await api.schedules.list()).schedules]


async def _watchers(api: Api) -> list[str]:
    return [each.name for each in (await api.watchers.list()).watchers]


async def _facets(api: Api) -> list[str]:
    return [each.facet_name for each in (await api.handlers.list()).handlers]


async def _tokens(api: Api) -> list[str]:
    return [each.name for each in (await api.tokens.list()).tokens]


_NAMES: dict[str, Callable[[Api], Awaitable[list[str]]]] = {
    "LIST": _lists,
    "FLOW": _flows,
    "FILE...|FLOW": _flows,
    "FACET": _facets,
    "ID|NAME": _tokens,
    "flows NAME": _flows,
    "schedules NAME": _schedules,
    "watchers NAME": _watchers,
}
