"""Warns about declarations that call themselves in every run, directly or through others: such a run never ends."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.lang import tree
from treadle.lang.bindings import Context
from treadle.lang.diagnostics import Source

_Edge = tuple[str, tree.Call]
_SHOWN = 5


def check_recursion(context: Context) -> None:
    """Report each call that closes a circle of calls; those in `when`, `foreach` and `catch`, or caught, may not happen or end."""
    graph: dict[str, tuple[Source, list[_Edge]]] = {}
    for opening in context.symbols.openings:
        for item in opening.items:
            if isinstance(item, tree.Facet) and item.blocks and item.catch is None:
                graph.setdefault(opening.qualify(item.name.text), (opening.source, list(_certain(item.blocks, context))))
    done: set[str] = set()
    for start in graph:
        if start not in done:
            _follow(start, graph, done, context)


def _follow(start: str, graph: dict[str, tuple[Source, list[_Edge]]], done: set[str], context: Context) -> None:
    path = {start: iter(graph[start][1])}  # the calls from the start to here, with the remaining calls of each
    while path:
        name = next(reversed(path))
        edge = next(path[name], None)
        if edge is None:
            done.add(name)
            del path[name]
        elif edge[0] in path:
            circle = [*path][[*path].index(edge[0]) :]
            _warn(edge[1], circle, graph[name][0], context)
        elif edge[0] in graph and edge[0] not in done:
            path[edge[0]] = iter(graph[edge[0]][1])


def _certain(blocks: tuple[tree.Block | tree.TooDeep, ...], context: Context) -> Iterator[_Edge]:
    """Yield the calls that run whenever these blocks run, with their qualified callees."""
    left = list(blocks)
    while left:
        block = left.pop()
        if not isinstance(block, tree.Block) or block.foreach is not None:
            continue
        for statement in block.statements:
            if isinstance(statement, tree.Step) and statement.catch is None:
                callee = context.bindings.callees.get(id(statement.call))
                if statement.body is not None:
                    left.append(statement.body)  # in place of the callee's own blocks
                elif callee is not None:
                    yield callee, statement.call


def _warn(call: tree.Call, circle: list[str], source: Source, context: Context) -> None:
    if len(circle) == 1:
        message = f"`{circle[0]}` calls itself in every run, so that it never ends"
    else:
        shown = [*circle[:_SHOWN], "..."] if len(circle) > _SHOWN else circle
        message = f"this call closes a circle that every run follows, so that it never ends: {' -> '.join([*shown, circle[0]])}"
    hint = "call it only in a case of `andThen when { case condition => { ... } case _ => { ... } }`"
    context.reporter.warn("endless-recursion", source, call.target.span, message, hint=hint)
