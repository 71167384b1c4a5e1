"""The trial of a workflow by `treadle run flow.afl --trial` and `--answer`."""

from __future__ import annotations

from collections.abc import Sequence

from click.exceptions import Exit

from treadle.api.flows import FlowTrial, SourceText, TrialCall
from treadle.engine import Engine
from treadle.interfaces.cli.exits import FAILED
from treadle.interfaces.cli.format import pretty
from treadle.interfaces.cli.messages import tell_error, tell_note
from treadle.interfaces.cli.plan import Wanted, texts_of
from treadle.interfaces.cli.session import Session
from treadle.interfaces.cli.sources import flow_name, read_sources
from treadle.interfaces.cli.values import workflow_inputs
from treadle.model.values import encode


async def try_workflow(session: Session, wanted: Wanted, answers: Sequence[str]) -> None:
    """Run a trial with the answers and print its outputs; exit 1 if it failed or needs more answers."""
    given = workflow_inputs({}, None, answers, "answers")
    name = flow_name(wanted.places)
    if name is None:
        inputs = wanted.plan_files(session, Engine("memory://", settings=session.settings)).inputs
        sources = [SourceText(*each) for each in read_sources(wanted.places)]
    async with session.api(scratch=name is None) as api:
        if name is not None:
            flow = await api.flows.get(name)
            sources, inputs = flow.sources, workflow_inputs(texts_of(flow, wanted.workflow), wanted.whole, wanted.pairs)
        ended = await api.flows.trial(sources, wanted.workflow, inputs, answers=given, lenient=wanted.lenient)
    _show(session, ended)


def _show(session: Session, ended: FlowTrial) -> None:
    if not session.json:
        for call in ended.calls:
            tell_note(f"{_words(call)} = {encode(call.result) if call.error is None else f'failed: {call.error}'}")
        if ended.unused:
            tell_note(f"Unused answers: {', '.join(ended.unused)}")
    if session.json or ended.state == "completed":
        session.show(ended, lambda: pretty(ended.outputs))
    if ended.state == "completed":
        return
    lines = [f"{_words(call)} returns {', '.join(f'{name}: {kind}' for name, kind in call.expects.items()) or 'nothing'}"
             for call in ended.waiting]  # fmt: skip
    needed = "\n  ".join(["The trial needs more answers (--answer FACET=JSON):", *lines])
    tell_error(f"trial_{ended.state}", ended.error or needed, as_json=session.json)
    raise Exit(FAILED)


def _words(call: TrialCall) -> str:
    return f"{call.path}: {call.facet}({encode(call.params)})"
