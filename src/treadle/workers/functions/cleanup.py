"""Cleanup of canceled functions: whether code may have any, and the exception at the operation at which it is.

`Canceled` is raised in each branch once, at the first operation without a recorded end; the row of that operation records it, so
that every replay raises it at the same place. Operations after it execute normally.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle.kernel.functions.steps import Recorded
from treadle.model.states import StepState

if TYPE_CHECKING:
    from treadle.workers.functions.branches import Branch
    from treadle.workers.functions.driver import Driver

_HANDLERS = (ast.Try, ast.TryStar, ast.With, ast.AsyncWith)


def may_clean_up(call: Callable[..., Any]) -> bool:
    """Return whether the function may execute code after `Canceled`: it has `try` or `with`, or passes its `ctx` on.

    Without its source the answer is yes, because a cleanup must never be skipped.
    """
    if inspect.unwrap(call) is not call:
        return True
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(call)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return True
    function = next((node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)), None)
    if function is None or any(isinstance(node, _HANDLERS) for node in ast.walk(function)):
        return True
    parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    contexts = {each.arg for each in parameters if each.arg == "ctx" or "Context" in ast.unparse(each.annotation or each)}
    if not contexts:
        return len(parameters) > 1
    fields = {id(node.value) for node in ast.walk(function) if isinstance(node, ast.Attribute)}
    return any(isinstance(node, ast.Name) and node.id in contexts and id(node) not in fields for node in ast.walk(function))


def is_interrupted(driver: Driver, branch: Branch, recorded: Recorded | None) -> bool:
    """Return whether `Canceled` is raised at the operation with this step, and note it in the branch."""
    if recorded is not None and recorded.state == StepState.CANCELED:
        branch.tell()
        return True
    ended = recorded is not None and recorded.state in (StepState.COMPLETED, StepState.FAILED)
    if driver.execution.cancel is None or branch.told or ended:
        return False
    branch.tell()
    return True


def interrupted(driver: Driver, branch: Branch, recorded: Recorded) -> Recorded:
    """Record that `Canceled` is raised at the operation with this step."""
    if recorded.state != StepState.CANCELED:
        assert driver.execution.cancel is not None
        recorded.state, recorded.wake_at, recorded.ended_at = StepState.CANCELED, None, driver.execution.now()
        recorded.error = {"code": driver.execution.cancel.code, "message": driver.execution.cancel.message}
        driver.journal.write(recorded, branch.next_unit())
    return recorded
