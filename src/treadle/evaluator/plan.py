"""Facts about a program that do not depend on a run, computed once: dependents within blocks, and names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass

from treadle.lang.program import (
    ArrayLiteral,
    Binary,
    Block,
    Boolean,
    Chain,
    Concat,
    Double,
    Expr,
    Facet,
    Function,
    Index,
    InputRef,
    Int,
    LoopRef,
    MapLiteral,
    Mixin,
    Null,
    Program,
    Schema,
    Step,
    StepRef,
    String,
    Sys,
    SysKind,
    Unary,
)
from treadle.model.names import short_name

_REMEMBERED = 64


@dataclass(slots=True)
class BlockPlan:
    """A block's statements by dependency. `aliases`: the signature aliases to which its yields write."""

    block: Block
    order: dict[str, int] = field(default_factory=dict)
    first: list[Step | Sys] = field(default_factory=list)
    after: dict[str, list[Step | Sys]] = field(default_factory=dict)
    asserts: list[Sys] = field(default_factory=list)
    aliases: frozenset[str] = frozenset()


@dataclass(slots=True)
class Plan:
    """Lookups in one program."""

    program: Program
    _blocks: dict[str, BlockPlan] = field(default_factory=dict)
    _fails_fast: bool | None = None
    _reads: frozenset[tuple[str, ...]] | None = None

    def reads(self, step: str, attribute: str) -> bool:
        """Whether an expression of the program reads the attribute of a step of that name."""
        if self._reads is None:
            self._reads = frozenset(_step_reads(self.program))
        return (step, attribute) in self._reads

    @property
    def fails_fast(self) -> bool:
        """Whether the program has a foreach with `failFast`."""
        if self._fails_fast is None:
            nodes = self.program.nodes.values()
            self._fails_fast = any(isinstance(node, Block) and is_fail_fast(node) for node in nodes)
        return self._fails_fast

    def block(self, block: Block) -> BlockPlan:
        """Return the plan of a block."""
        plan = self._blocks.get(block.id)
        if plan is None or plan.block is not block:
            plan = self._blocks[block.id] = _plan_block(block)
        return plan

    def callee(self, name: str | None) -> Facet | Schema | None:
        """Return the facet or schema of this qualified name; None for an external facet."""
        return None if name is None else self.program.find_facet(name) or self.program.find_schema(name)


_plans: dict[int, Plan] = {}


def plan_of(program: Program) -> Plan:
    """Return the plan of a program; the latest plans are cached, which affects only speed."""
    plan = _plans.get(id(program))
    if plan is None or plan.program is not program:
        for oldest in list(_plans)[: len(_plans) - _REMEMBERED + 1]:
            _plans.pop(oldest, None)
        plan = _plans[id(program)] = Plan(program)
    return plan


def _step_reads(program: Program) -> Iterator[tuple[str, ...]]:
    left: list[object] = [program.declarations]
    while left:
        each = left.pop()
        if isinstance(each, StepRef):
            yield each.path[:2]
        elif isinstance(each, tuple | list):
            left.extend(each)
        elif is_dataclass(each) and not (isinstance(each, Sys) and each.kind is SysKind.LOG):  # which never does harm
            left.extend(getattr(each, part.name) for part in fields(each))


def _plan_block(block: Block) -> BlockPlan:
    plan = BlockPlan(block, {step.name: index for index, step in enumerate(block.steps)})
    statements: list[Step | Sys] = [*block.steps, *block.sys]
    for statement in statements:
        if isinstance(statement, Sys) and statement.kind is SysKind.ASSERT:
            plan.asserts.append(statement)
        elif not statement.depends:
            plan.first.append(statement)
        else:
            for name in statement.depends:
                plan.after.setdefault(name, []).append(statement)
    plan.aliases = frozenset(_aliases(block))
    return plan


def is_fail_fast(block: Block) -> bool:
    return block.foreach is not None and block.foreach.mode == "failFast"


def _aliases(block: Block) -> Iterator[str]:
    left = [block]
    while left:
        each = left.pop()
        left.extend(case.block for case in each.when)
        for statement in each.yields:
            if statement.into is not None:
                yield statement.into
            yield from (mixin.into for mixin in statement.call.mixins if mixin.into is not None)


def is_timeout(mixin: Mixin) -> bool:
    """Return whether a mixin is the built-in `Timeout`, or a declared facet of that name."""
    return short_name(mixin.name) == "Timeout"


def is_built_in(mixin: Mixin) -> bool:
    """Return whether a mixin only configures the engine, so that its arguments are not attributes."""
    return mixin.resolved is None and (is_timeout(mixin) or is_retry(mixin))


def is_retry(mixin: Mixin) -> bool:
    """Return whether a mixin is the built-in `Retry`; a declared facet of that name, or an alias, means what it says."""
    return mixin.resolved is None and mixin.alias is None and mixin.target == "Retry"


def inputs_in(expr: Expr) -> Iterator[str]:
    """Yield the names that an expression reads as `$.name`."""
    left: list[Expr] = [expr]
    while left:
        match left.pop():
            case InputRef(path):
                yield path[0]
            case Concat(operands) | Chain(operands):
                left.extend(operands)
            case Binary(_, one, other):
                left += [one, other]
            case Unary(_, operand):
                left.append(operand)
            case ArrayLiteral(elements):
                left.extend(elements)
            case MapLiteral(entries):
                left.extend(value for _, value in entries)
            case Index(target, key):
                left += [target, key]
            case Function(_, args):
                left.extend(args)
            case String() | Int() | Double() | Boolean() | Null() | StepRef() | LoopRef():
                pass
