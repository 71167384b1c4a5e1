"""Every declared operation is performed by a service whose method has the declared parameters."""

from __future__ import annotations

import inspect

import pytest

from treadle.api.contract import Call
from treadle.api.facade import all_calls
from treadle.engine import Engine
from treadle.engine.kernel import APPLICATIONS
from treadle.engine.operations import make_service

CALLS = [call for call in all_calls() if call.group not in APPLICATIONS]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.id)
def test_an_operation_is_performed_with_its_declared_parameters(call: Call) -> None:
    method = getattr(make_service(Engine("memory://").kernel, call.group), call.name)
    assert inspect.iscoroutinefunction(method)
    performed = dict(inspect.signature(method).parameters)
    takes_options = [performed.pop(name) for name, each in list(performed.items()) if each.kind is each.VAR_KEYWORD]
    assert bool(takes_options) == bool(call.options)
    declared = [each for each in list(call.signature.parameters.values())[1:] if each.name not in call.options]
    for name in performed.keys() - {each.name for each in declared}:  # added by the guard, or for programs alone
        assert performed.pop(name).default is not inspect.Parameter.empty
    assert [each.name for each in declared] == list(performed)
    for each in declared:
        assert performed[each.name].default == each.default
        assert each.kind in (performed[each.name].kind, inspect.Parameter.KEYWORD_ONLY)
