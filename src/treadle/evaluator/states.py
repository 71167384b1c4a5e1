"""The states of an AFL step and the kinds of rows, with the language's names.

A step moves through its states until it has to wait; only states in which it can wait are stored:

| state | waits for |
|---|---|
| facet.scripts.Begin | the result of its facet's pre-script |
| mixin.blocks.Continue | the sub-step of a signature alias |
| EventTransmit | the result of its handler |
| statement.blocks.Continue | its blocks |
| block.execution.Begin | (block) the result of its script, or, without a script, its turn: the row limit of a call was reached |
| block.execution.Continue | (block) its statements, items or cases |
| catch.Continue | the block that handles its error |
| statement.Complete, statement.Error | nothing: terminal |
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """All values start with `state.`; those that are never stored are defined for readers of histories."""

    CREATED = "state.statement.Created"
    FACET_INIT_BEGIN = "state.facet.initialization.Begin"
    FACET_INIT_END = "state.facet.initialization.End"
    FACET_SCRIPTS_BEGIN = "state.facet.scripts.Begin"
    FACET_SCRIPTS_END = "state.facet.scripts.End"
    STATEMENT_SCRIPTS_BEGIN = "state.statement.scripts.Begin"
    STATEMENT_SCRIPTS_END = "state.statement.scripts.End"
    MIXIN_BLOCKS_BEGIN = "state.mixin.blocks.Begin"
    MIXIN_BLOCKS_CONTINUE = "state.mixin.blocks.Continue"
    MIXIN_BLOCKS_END = "state.mixin.blocks.End"
    MIXIN_CAPTURE_BEGIN = "state.mixin.capture.Begin"
    MIXIN_CAPTURE_END = "state.mixin.capture.End"
    EVENT_TRANSMIT = "state.EventTransmit"
    STATEMENT_BLOCKS_BEGIN = "state.statement.blocks.Begin"
    STATEMENT_BLOCKS_CONTINUE = "state.statement.blocks.Continue"
    STATEMENT_BLOCKS_END = "state.statement.blocks.End"
    STATEMENT_CAPTURE_BEGIN = "state.statement.capture.Begin"
    STATEMENT_CAPTURE_END = "state.statement.capture.End"
    BLOCK_EXECUTION_BEGIN = "state.block.execution.Begin"
    BLOCK_EXECUTION_CONTINUE = "state.block.execution.Continue"
    BLOCK_EXECUTION_END = "state.block.execution.End"
    CATCH_BEGIN = "state.catch.Begin"
    CATCH_CONTINUE = "state.catch.Continue"
    CATCH_END = "state.catch.End"
    STATEMENT_END = "state.statement.End"
    STATEMENT_COMPLETE = "state.statement.Complete"
    STATEMENT_ERROR = "state.statement.Error"


RESTING = frozenset(
    {
        State.FACET_SCRIPTS_BEGIN,
        State.MIXIN_BLOCKS_CONTINUE,
        State.EVENT_TRANSMIT,
        State.STATEMENT_BLOCKS_CONTINUE,
        State.BLOCK_EXECUTION_BEGIN,
        State.BLOCK_EXECUTION_CONTINUE,
        State.CATCH_CONTINUE,
        State.STATEMENT_COMPLETE,
        State.STATEMENT_ERROR,
    }
)
"""The only states that are stored."""

TERMINAL = frozenset({State.STATEMENT_COMPLETE, State.STATEMENT_ERROR})


class StepKind(StrEnum):
    """The kinds of rows. The first four are steps, which have a facet; the others are blocks, which hold steps."""

    WORKFLOW = "workflow"
    STEP = "step"
    SCHEMA = "schema"
    MIXIN = "mixin"
    """The sub-step of `with Facet(...) as alias` in a signature."""
    BLOCK = "block"
    ITEM = "item"
    """One element of a foreach block."""
    CASE = "case"
    """One case of `when`."""
    CATCH = "catch"


STEP_KINDS = frozenset({StepKind.WORKFLOW, StepKind.STEP, StepKind.SCHEMA, StepKind.MIXIN})

# The members as names of this module: the evaluator compares them for every row, and access through the class takes ten times
# as long.
CREATED = State.CREATED
FACET_INIT_BEGIN = State.FACET_INIT_BEGIN
FACET_SCRIPTS_BEGIN = State.FACET_SCRIPTS_BEGIN
MIXIN_BLOCKS_CONTINUE = State.MIXIN_BLOCKS_CONTINUE
EVENT_TRANSMIT = State.EVENT_TRANSMIT
STATEMENT_BLOCKS_CONTINUE = State.STATEMENT_BLOCKS_CONTINUE
STATEMENT_CAPTURE_BEGIN = State.STATEMENT_CAPTURE_BEGIN
BLOCK_EXECUTION_BEGIN = State.BLOCK_EXECUTION_BEGIN
BLOCK_EXECUTION_CONTINUE = State.BLOCK_EXECUTION_CONTINUE
CATCH_CONTINUE = State.CATCH_CONTINUE
STATEMENT_COMPLETE = State.STATEMENT_COMPLETE
STATEMENT_ERROR = State.STATEMENT_ERROR
WORKFLOW = StepKind.WORKFLOW
STEP = StepKind.STEP
SCHEMA = StepKind.SCHEMA
MIXIN = StepKind.MIXIN
BLOCK = StepKind.BLOCK
ITEM = StepKind.ITEM
CASE = StepKind.CASE
CATCH = StepKind.CATCH
