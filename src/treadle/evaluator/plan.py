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
    OptionalType,
    Param,
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
    records: set[str] = field(default_factory=set)
    """The steps that are values of a schema, or values as such, and call nothing."""


@dataclass(slots=True)
class FacetPlan:
    """The parts of a facet's signature by use."""

    facet: Facet
    is_event: bool
    aliases: tuple[tuple[int, Mixin], ...]
    """The mixins that run as steps of their own, with their numbers."""
    alias_names: frozenset[str]
    checked: tuple[Param, ...]
    """The returns whose values have a type; the others are steps."""
    required: tuple[str, ...]
    """The returns without a default that may not be missing."""
    defaults: tuple[Param, ...]
    """The returns with a default."""
    pool: dict[str, tuple[str, Expr]]
    """The values that the signature gives to missing parameters, by name, each with its origin."""
    has_implicits: bool
    has_options: bool
    """Whether a mixin of the signature is `Timeout` or `Retry`."""


@dataclass(slots=True)
class Plan:
    """Lookups in one program."""

    program: Program
    facets: dict[str | None, FacetPlan | None] = field(default_factory=lambda: {None: None})
    """The facets looked up so far (`facet`), by qualified name."""
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
            plan = self._blocks[block.id] = _plan_block(self, block)
        return plan

    def facet(self, name: str | None) -> FacetPlan | None:
        """Return the plan of the facet with this qualified name; None if it is not declared."""
        try:
            return self.facets[name]
        except KeyError:
            facet = self.program.find_facet(name or "")
            plan = self.facets[name] = None if facet is None else _plan_facet(self.program, facet)
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


def _plan_block(program: Plan, block: Block) -> BlockPlan:
    plan = BlockPlan(block, {step.name: index for index, step in enumerate(block.steps)})
    for step in block.steps:
        if step.call.is_value or isinstance(program.callee(step.call.name), Schema):
            plan.records.add(step.name)
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


def _plan_facet(program: Program, facet: Facet) -> FacetPlan:
    pool: dict[str, tuple[str, Expr]] = {}
    for mixin in facet.mixins:
        if mixin.alias is None and not is_built_in(mixin):
            for arg in mixin.args:
                pool.setdefault(arg.name, ("mixin argument", arg.value))
    for param in facet.params:
        if param.default is not None:
            pool.setdefault(param.name, ("default of", param.default))
    return FacetPlan(
        facet=facet,
        is_event=facet.is_event,
        aliases=tuple((n, mixin) for n, mixin in enumerate(facet.mixins) if mixin.alias is not None and not is_built_in(mixin)),
        alias_names=frozenset(mixin.alias for mixin in facet.mixins if mixin.alias),
        checked=tuple(each for each in facet.returns if not each.reference),
        required=tuple(each.name for each in facet.returns if each.default is None and not isinstance(each.type, OptionalType)),
        defaults=tuple(each for each in facet.returns if each.default is not None),
        pool=pool,
        has_implicits=bool(program.list_implicits(facet.qualified_name, None)),
        has_options=any(is_timeout(mixin) or is_retry(mixin) for mixin in facet.mixins),
    )


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
