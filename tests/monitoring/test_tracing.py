"""Spans lead from whoever enqueues to the settle, in one process and in several; unless the settings say so, there are none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry import trace as api
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from tests.commands import Treadle
from tests.limits import BOUND
from tests.receivers import Receiver
from tests.workers.harness import Events

from treadle import Engine, NonRetryable, RetryPolicy, TaskFailed
from treadle.kernel.telemetry.events import TaskSettled, TaskTaken
from treadle.model.errors import InvalidInput
from treadle.model.tasks import span_number, trace_number, traceparent
from treadle.settings import Settings, load_settings

SECRET = "sesame-4711"


class Scene:
    """An engine whose spans are kept in memory."""

    def __init__(self, **provider: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **provider)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.events = Events()
        self.engine = Engine("memory://", settings=Settings(), emit=self.events)
        self.engine.kernel.use_tracing(self.provider)
        self.tracer = self.provider.get_tracer("mine")

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        (found,) = self.spans(name)
        return found


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    async with made.engine:
        yield made
    made.provider.shutdown()


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def trace_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id


async def test_a_trace_leads_from_the_caller_through_handlers_to_the_settle(scene: Scene):
    engine = scene.engine

    @engine.handler("outer")
    async def outer(payload):
        with scene.tracer.start_as_current_span("in outer"):
            await engine.enqueue("inner")

    @engine.handler("inner")
    def inner(payload):
        with scene.tracer.start_as_current_span("in inner"):
            pass

    async with engine.worker():
        with scene.tracer.start_as_current_span("caller"):
            task = await engine.enqueue("outer", {"password": SECRET})
        await scene.events.heard(TaskSettled, name="inner")
        await scene.events.heard(TaskSettled, name="outer")
    spans = {span.name: span for span in scene.exporter.get_finished_spans() if "prune" not in span.name}
    chain = ["caller", "enqueue outer", "execute outer", "in outer", "enqueue inner", "execute inner", "in inner"]
    for above, below in pairwise(chain):
        assert parent_of(spans[below]) == id_of(spans[above]), (above, below)
    assert len({trace_of(spans[name]) for name in chain}) == 1
    assert (await engine.kernel.reads.get_task(task)).trace_id == format(trace_of(spans["caller"]), "032x")
    assert spans["enqueue outer"].kind is api.SpanKind.PRODUCER
    assert spans["execute outer"].kind is api.SpanKind.CONSUMER
    settles = {parent_of(span): span for span in scene.spans("settle")}
    for name in ("execute outer", "execute inner"):
        settle, execute = settles[id_of(spans[name])], spans[name]
        assert execute.attributes is not None
        assert execute.attributes["treadle.outcome"] == "succeeded"
        assert execute.start_time <= settle.start_time <= settle.end_time <= execute.end_time
    assert spans["execute outer"].attributes["treadle.task_id"] == task.id
    assert SECRET not in "".join(span.to_json() for span in scene.exporter.get_finished_spans())


async def test_retries_are_sibling_spans_with_their_error_type(scene: Scene):
    engine = scene.engine

    @engine.handler("flaky")
    async def flaky(payload, ctx):
        if ctx.attempt == 1:
            raise RuntimeError(SECRET)
        raise NonRetryable(SECRET, "spoiled")

    async with engine.worker():
        task = await engine.enqueue("flaky", retry=RetryPolicy(retries=3, first_for=0))
        with pytest.raises(TaskFailed):
            await engine.result(task, timeout=BOUND)
        await scene.events.heard(TaskSettled, transition="fail")
    first, second = scene.spans("execute flaky")
    assert parent_of(first) == parent_of(second) == id_of(scene.span("enqueue flaky")) == span_number(task.id)
    assert trace_of(first) == trace_of(second) == trace_number(task.id), "a task without a trace id is a trace of its own"
    facts = [
        (s.attributes["treadle.attempt"], s.attributes["treadle.outcome"], s.attributes["error.type"]) for s in (first, second)
    ]
    assert facts == [(1, "retry", "handler_error"), (2, "failed", "spoiled")]
    assert first.status.status_code is second.status.status_code is api.StatusCode.ERROR
    assert SECRET not in "".join(span.to_json() for span in scene.exporter.get_finished_spans())


async def test_a_lost_claim_is_recorded_in_its_span(scene: Scene):
    engine = scene.engine

    @engine.handler("endless")
    async def endless(payload):
        await asyncio.Event().wait()

    async with engine.worker():
        task = await engine.enqueue("endless")
        await scene.events.heard(TaskTaken, task_id=task.id)
        await engine.cancel(task)
    execute = scene.span("execute endless")
    assert execute.attributes["treadle.outcome"] == "stopped"
    assert execute.status.description == "claim_lost"


async def test_a_remote_worker_is_in_the_trace_and_can_continue_it(scene: Scene):
    outside = scene.engine.kernel.remote_workers
    await scene.engine.enqueue("ship")
    server = await outside.register("curl", handlers=["ship"])
    (claimed,) = await outside.claim(server.id)
    with scene.engine.kernel.telemetry.continuing({"traceparent": traceparent(claimed.task)}):
        here = api.get_current_span().get_span_context()
    await outside.fail(server.id, claimed.task.id, claimed.claim_version, SECRET, "sunk", retryable=False)
    enqueue, execute = scene.span("enqueue ship"), scene.span("execute ship")
    assert parent_of(execute) == id_of(enqueue) == here.span_id
    assert trace_of(execute) == trace_of(enqueue) == here.trace_id
    assert (execute.attributes["treadle.outcome"], execute.attributes["error.type"]) == ("failed", "sunk")


async def test_a_run_is_one_trace(scene: Scene):
    engine = scene.engine

    @engine.function("order")
    async def order(payload, ctx):
        return await ctx.call("pick", {})

    @engine.handler("pick")
    async def pick(payload):
        return {}

    async with engine.worker():
        run = await engine.start_function("order")
        await engine.run_result(run, timeout=BOUND)
    named = [span for span in scene.exporter.get_finished_spans() if "pick" in span.name or "order" in span.name]
    assert {span.name for span in named} == {"enqueue order@1", "execute order@1", "enqueue pick", "execute pick"}
    assert {trace_of(span) for span in named} == {trace_number(run.id)}
    assert scene.span("execute pick").attributes["treadle.run_id"] == run.id


async def test_a_given_trace_id_wins_and_the_callers_span_is_linked(scene: Scene):
    with scene.tracer.start_as_current_span("caller") as caller:
        await scene.engine.enqueue("x", trace_id="order 17")
    enqueue = scene.span("enqueue x")
    assert trace_of(enqueue) == trace_number("order 17")
    assert enqueue.parent is None
    (link,) = enqueue.links
    assert link.context.span_id == caller.get_span_context().span_id


async def test_a_request_that_brings_a_trace_is_continued(scene: Scene):
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with scene.engine.kernel.telemetry.continuing({"Traceparent": f"00-{trace_id}-{span_id}-01"}):
        task = await scene.engine.enqueue("x")
    assert (await scene.engine.kernel.reads.get_task(task)).trace_id == trace_id
    enqueue = scene.span("enqueue x")
    assert (trace_of(enqueue), parent_of(enqueue)) == (int(trace_id, 16), int(span_id, 16))
    with scene.engine.kernel.telemetry.continuing({"traceparent": "nonsense"}):
        assert scene.engine.kernel.telemetry.trace_id() is None


async def test_a_duplicate_enqueue_creates_no_span(scene: Scene):
    await scene.engine.enqueue("x", unique_key="one")
    await scene.engine.enqueue("x", unique_key="one")
    assert len(scene.spans("enqueue x")) == 1


async def test_all_processes_agree_on_sampling_a_trace():
    """Half of the traces are kept: of each task, all spans or none."""
    scene = Scene(sampler=ParentBased(TraceIdRatioBased(0.5)))
    engine = scene.engine

    @engine.handler("x")
    async def x(payload):
        return {}

    async with engine, engine.worker():
        for number in range(40):
            await engine.enqueue("x", trace_id=f"{number}")
        await scene.events.heard(TaskSettled, 40, name="x")
    enqueued, executed = ({trace_of(span) for span in scene.spans(f"{activity} x")} for activity in ("enqueue", "execute"))
    assert enqueued == executed
    assert 0 < len(enqueued) < 40
    scene.provider.shutdown()


def test_trace_ids_keep_valid_ids_and_hash_others():
    assert trace_number("0af7651916cd43dd8448eb211c80319c") == 0x0AF7651916CD43DD8448EB211C80319C
    assert trace_number("01920000-0000-7000-8000-000000000001") == 0x01920000000070008000000000000001
    assert 0 < trace_number("order 17") < 2**128
    assert trace_number("order 17") != trace_number("order 18")
    assert trace_number("00000000-0000-0000-0000-000000000000") != 0, "which no trace may have"
    assert 0 < span_number("01920000-0000-7000-8000-000000000001") < 2**64


async def test_a_provider_that_cannot_make_spans_is_refused():
    engine = Engine("memory://", settings=Settings())
    with pytest.raises(InvalidInput):
        engine.kernel.use_tracing(api.NoOpTracerProvider())
    with pytest.raises(InvalidInput, match="TREADLE_OTLP_ENDPOINT"):
        engine.kernel.use_tracing()


def test_the_span_exporter_is_a_setting(monkeypatch: pytest.MonkeyPatch):
    for name in ("TREADLE_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT", "TREADLE_SERVICE_NAME", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)
    assert (load_settings().otlp_endpoint, load_settings().service_name) == ("", "treadle")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders")
    assert (load_settings().otlp_endpoint, load_settings().service_name) == ("http://collector:4318", "orders")
    monkeypatch.setenv("TREADLE_OTLP_ENDPOINT", "off")
    assert load_settings().otlp_endpoint == ""
    monkeypatch.setenv("TREADLE_OTLP_ENDPOINT", "collector:4318")
    with pytest.raises(InvalidInput):
        load_settings()


# --- real processes ---


def received(receiver: Receiver) -> list[tuple[str, Any]]:
    """All spans that came by OTLP, each with the name of the service that sent it."""
    found = []
    for path, _, body in receiver.requests:
        assert path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            (service,) = [each.value.string_value for each in resource.resource.attributes if each.key == "service.name"]
            found += [(service, span) for scope in resource.scope_spans for span in scope.spans]
    return found


HANDLERS = """
from opentelemetry import trace

from treadle import Engine

engine = Engine()


@engine.handler("charge")
def charge(payload):
    with trace.get_tracer("shop").start_as_current_span("call the bank"):
        return {}
"""


def test_a_trace_goes_through_two_processes(treadle: Treadle):
    (treadle.folder / "shop.py").write_text(HANDLERS)
    with Receiver() as receiver:
        treadle.environment["TREADLE_OTLP_ENDPOINT"] = receiver.url
        task_id = treadle.json("enqueue", "charge", TREADLE_SERVICE_NAME="front")["id"]
        with treadle.started("worker", "--handlers", "shop", "--json", TREADLE_SERVICE_NAME="back") as worker:
            assert treadle("enqueue", "charge", "--wait", TREADLE_OTLP_ENDPOINT="off").code == 0
            assert worker.stop().code == 0
    ours = [(service, span) for service, span in received(receiver) if int.from_bytes(span.trace_id) == trace_number(task_id)]
    mine = {span.name: (service, span) for service, span in ours}
    assert {name: service for name, (service, _) in mine.items()} == {
        "enqueue charge": "front",
        "execute charge": "back",
        "call the bank": "back",
        "settle": "back",
    }
    spans = {name: span for name, (_, span) in mine.items()}
    assert spans["execute charge"].parent_span_id == spans["enqueue charge"].span_id
    assert spans["call the bank"].parent_span_id == spans["execute charge"].span_id
    assert spans["settle"].parent_span_id == spans["execute charge"].span_id
    assert json.loads(treadle("tasks", "show", task_id, "--json").out)["state"] == "completed"


def test_an_unreachable_trace_endpoint_does_not_block_commands(treadle: Treadle):
    ended = treadle("enqueue", "charge", "--json", TREADLE_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert ended.code == 0
    assert ended.value["id"]
