"""Click commands built from annotated functions: each parameter defines its type, default and help once, in the signature.

    async def show(session: Session, task_id: Annotated[str, argument(metavar="ID", help="The task's id")]) -> None: ...

A command's module is imported when the command is used, so commands start fast.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import click
from click.exceptions import Exit

from treadle.interfaces.cli.messages import BAD_INPUT

COMMON = "Common options"
_EMPTY = inspect.Parameter.empty


# --- parameters ---


@dataclass(frozen=True, slots=True)
class CliParameter:
    """The command-line side of a function's parameter, for its `Annotated`."""

    names: tuple[str, ...]
    help: str
    metavar: str | None = None
    panel: str = ""
    min: float | None = None
    max: float | None = None
    choices: tuple[str, ...] = ()
    """The accepted values; empty: any."""
    hidden: bool = False
    positional: bool = False
    former: tuple[str, ...] = ()
    """Further names that are accepted but not shown."""


def option(
    *names: str,
    help: str,  # noqa: A002 (Click's own names)
    metavar: str | None = None,
    panel: str = "",
    min: float | None = None,  # noqa: A002
    max: float | None = None,  # noqa: A002
    choices: tuple[str, ...] = (),
    hidden: bool = False,
    former: tuple[str, ...] = (),
) -> CliParameter:
    """An option; without names, the flag is derived from the parameter. `panel` is the help section that lists it."""
    return CliParameter(names, help, metavar, panel, min, max, choices, hidden, former=former)


def argument(*, help: str, metavar: str | None = None, choices: tuple[str, ...] = ()) -> CliParameter:  # noqa: A002
    """A positional argument; a list takes all remaining ones."""
    return CliParameter((), help, metavar, choices=choices, positional=True)


class Option(click.Option):
    """A Click option that belongs to a help section, and may have former names."""

    panel = ""
    former: tuple[str, ...] = ()

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Accept the former names, too, which the help does not show."""
        visible_names = self.opts
        self.opts = [*visible_names, *self.former]
        super().add_to_parser(parser, ctx)
        self.opts = visible_names


class Argument(click.Argument):
    """A Click argument with a help text."""

    help: str


def make_param(name: str, hint: Any, default: Any = _EMPTY) -> click.Parameter:
    """Build the Click parameter for `name: Annotated[kind, option(...)] = default`."""
    kind, spec = get_args(hint)
    if isinstance(kind, UnionType):
        kind = next(member for member in get_args(kind) if member is not NoneType)
    several = get_origin(kind) is list
    inner = get_args(kind)[0] if several else kind
    settings: dict[str, Any] = {"type": _click_type(inner, spec), "metavar": spec.metavar, "required": default is _EMPTY}
    if default is not _EMPTY and not several:
        settings["default"] = default

    def convert(_: click.Context, __: click.Parameter, value: Any) -> Any:
        return (list(value or ()) or (None if default is _EMPTY else default)) if several else value

    settings |= {"callback": convert, "shell_complete": _complete}
    if spec.positional:
        positional = Argument([name], nargs=-1 if several else 1, **settings)
        positional.help = spec.help
        return positional
    if inner is bool:
        settings |= {"is_flag": True, "type": None}
    names = spec.names or (f"--{name.replace('_', '-')}",)
    click_option = Option([*names, name], help=spec.help, multiple=several, hidden=spec.hidden, **settings)
    click_option.panel, click_option.former = spec.panel, spec.former
    return click_option


def _click_type(kind: Any, spec: CliParameter) -> Any:
    if spec.choices:
        return click.Choice(spec.choices)
    if spec.min is not None or spec.max is not None:
        bounded: Any = click.IntRange if kind is int else click.FloatRange
        return bounded(spec.min, spec.max)
    return click.Path(path_type=Path) if kind is Path else kind


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from treadle.interfaces.cli.commands.completion import values

    return values(ctx, param, incomplete)


_COMMON: dict[str, tuple[str, str | None]] = {
    "--store": ("sqlite:///path, postgresql://... or memory://; default sqlite:///treadle.db", "URL"),
    "--namespace": ("Namespace of the store; default: default", "NAME"),
    "--json": ("Print JSON, also for errors", None),
    "--verbose": ("Log more; print tracebacks of errors", None),
    "--server": ("Send the command to this server, e.g. http://127.0.0.1:8787, instead of opening a store", "URL"),
    "--token": ("Token for the server; prefer TREADLE_TOKEN, because other users can see command lines", "SECRET"),
}


def common_options(*, environment: bool = False) -> list[click.Parameter]:
    """Build the options of every command and of `treadle` itself.

    Only those of `treadle` read the environment, so that an option before the command's name wins over a variable.
    """
    options: list[click.Parameter] = []
    for flag, (text, metavar) in _COMMON.items():
        names = [flag, *(["-v"] if flag == "--verbose" else []), f"common_{flag[2:]}"]
        variable = f"TREADLE_{flag[2:].upper()}" if environment and metavar else None
        click_option = Option(
            names,
            help=text,
            metavar=metavar,
            is_flag=metavar is None or None,
            envvar=variable,
            show_envvar=True,
            shell_complete=_complete,
        )
        click_option.panel = "" if environment else COMMON
        options.append(click_option)
    return options


# --- commands ---


class Command(click.Command):
    """A command whose help has a section for the arguments and for each panel of options."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write usage, text and sections."""
        if isinstance(self, Group) and self.overview:
            formatter.write(self.overview)
            return
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            if isinstance(param, Argument):
                sections["Arguments"].append((param.make_metavar(ctx), param.help))
            elif (record := param.get_help_record(ctx)) is not None:
                sections.setdefault(getattr(param, "panel", "") or "Options", []).append(record)
        if isinstance(self, Group):
            sections["Commands"] = list(self.summaries())
            sections["Which one"] = list(self.guide)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A command."""

    name: str
    place: str
    """The call that it makes, such as `schedules.pause`; or `module:function` of its body, below `treadle.interfaces.cli`."""
    help: str = ""
    """The first paragraph of its help, for lists that do not import it."""
    quiet: bool = True
    """Whether it logs only errors, because its output is its message."""
    store_only: str = ""
    """The reason why it refuses `--server`; empty: it works on a store and on a server alike."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A group of commands."""

    name: str
    help: str
    below: tuple[Leaf | Branch, ...]
    guide: tuple[tuple[str, str], ...] = ()
    """Commands with the situations that they are for; shown below the list of commands."""


def leaves(table: Sequence[Leaf | Branch], before: str = "") -> Iterator[tuple[str, Leaf]]:
    """Yield all commands with their full names, those of groups after the others."""
    for entry in table:
        if isinstance(entry, Leaf):
            yield f"{before}{entry.name}", entry
    for entry in table:
        if isinstance(entry, Branch):
            yield from leaves(entry.below, f"{before}{entry.name} ")


class Group(Command, click.Group):
    """A group that imports only the chosen command."""

    def __init__(
        self, table: Sequence[Leaf | Branch], guide: Sequence[tuple[str, str]] = (), overview: str = "", **settings: Any
    ) -> None:
        """`overview` is the whole help, in place of one made from the table."""
        super().__init__(**settings)
        self.guide, self.overview = guide, overview
        self.table = {entry.name: entry for entry in table}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command."""
        entry = self.table.get(cmd_name)
        return None if entry is None else make(entry)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help if no command is named."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            raise Exit(BAD_INPUT)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; suggest similar names for an unknown one."""
        name = args[0]
        if name not in self.table and not ctx.resilient_parsing:
            import difflib

            close = ", ".join(repr(similar) for similar in difflib.get_close_matches(name, self.table))
            ctx.fail(f"No such command {name!r}.{f' Did you mean {close}?' if close else ''}")
        ctx.meta["treadle.unknown"] = name not in self.table
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete the names of commands; nothing after an unknown name."""
        from click.shell_completion import CompletionItem

        if ctx.meta.get("treadle.unknown"):
            return []
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [CompletionItem(name, help=text) for name, text in self.summaries() if name.startswith(incomplete)]

    def summaries(self) -> Iterator[tuple[str, str]]:
        """Yield the names of the commands with the first paragraphs of their help."""
        for name, entry in self.table.items():
            yield name, " ".join((entry.help or make(entry).help or "").split("\n\n")[0].split())


@cache
def make(entry: Leaf | Branch) -> click.Command:
    """Build the command or group, importing its module."""
    if isinstance(entry, Branch):
        return Group(entry.below, entry.guide, name=entry.name, help=entry.help)
    body, params, parse = _body_of(entry.place)

    def run(**values: Any) -> None:
        from treadle.interfaces.cli.session import run_command

        own_values = {name: value for name, value in values.items() if not name.startswith("common_")}
        run_command(body, parse(own_values), quiet=entry.quiet, store_only=entry.store_only)

    return Command(
        entry.name,
        callback=run,
        params=[*params, *common_options()],
        help=(":" not in entry.place and entry.help) or inspect.getdoc(body),
    )


def _body_of(place: str) -> tuple[Callable[..., Any], list[click.Parameter], Callable[[ParamValues], ParamValues]]:
    """The body of a command with its Click parameters, and the conversion of their values to its arguments."""
    module, _, function = place.partition(":")
    if not function:
        from treadle.interfaces.cli.calls import CallCommand

        command = CallCommand(place)
        return command, command.params(), lambda values: values
    body = getattr(import_module(f"treadle.interfaces.cli.{module}"), function)
    return body, *_params_of(body)


ParamValues = dict[str, Any]


def _params_of(body: Callable[..., Any]) -> tuple[list[click.Parameter], Callable[[ParamValues], ParamValues]]:
    """The Click parameters of the body after its session, and the conversion of their values to the body's arguments.

    The fields of `**options: Unpack[SomeTypedDict]` are parameters too: annotated like those of the body, or API options.
    """
    params: list[click.Parameter] = []
    parse: Callable[[ParamValues], ParamValues] = lambda values: values  # noqa: E731
    for parameter in list(inspect.signature(body, eval_str=True).parameters.values())[1:]:
        if parameter.kind is not parameter.VAR_KEYWORD:
            params.append(make_param(parameter.name, parameter.annotation, parameter.default))
            continue
        table = get_args(parameter.annotation)[0]
        hints = get_type_hints(table, include_extras=True)
        if all(isinstance(get_args(hint)[1], CliParameter) for hint in hints.values()):
            params += [make_param(name, hint, False if get_args(hint)[0] is bool else None) for name, hint in hints.items()]
            continue
        from treadle.interfaces.cli.flags import flags

        parse = partial(_with_options, table, {str(param.name) for param in params})
        names = {str(param.name) for param in params}
        params += [param for param in flags(table) if param.name not in names]
    return params, parse


def _with_options(table: type, names: Collection[str], values: ParamValues) -> ParamValues:
    from treadle.api.contract import option_fields
    from treadle.interfaces.cli.flags import parse

    return {name: values[name] for name in names} | parse(option_fields(table), values)
