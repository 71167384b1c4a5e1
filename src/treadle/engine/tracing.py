"""OpenTelemetry spans from the enqueue of a task to its settle, across processes. Needs the extra `otel`.

Nothing is stored for traces: `model.traces` derives the ids of traces and of enqueue spans from the task ids, so every process that
executes a task knows its parent span:

    enqueue NAME            id derived from the task's id; below the span that was current at the call
      execute NAME          one per attempt, in any process; current while the handler runs
        settle              until the store has answered
        enqueue NEXT        a task that followed from it

Spans carry names, ids, outcomes and error codes; never payloads, results or messages.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from weakref import WeakKeyDictionary

from treadle.engine.metric_table import outcome_of
from treadle.kernel.telemetry.events import LeaseLost, ResultDropped, TaskSettled, TelemetryEvent
from treadle.kernel.telemetry.observer import EventEmitter, Measure, SettleAnswered, TasksStored
from treadle.model.clock import Clock
from treadle.model.errors import InvalidInput, MissingDependency
from treadle.model.states import TaskState
from treadle.model.tasks import NewTask, Task, span_number, trace_number, trace_of
from treadle.model.values import decode

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace as api
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Tracer, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.sdk.trace.sampling import Decision
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    raise MissingDependency(
        "Traces need OpenTelemetry: pip install 'treadle[otel]', or set TREADLE_OTLP_ENDPOINT=off to disable them."
    ) from None

SCOPE = "treadle"
FLUSH_WITHIN = 2.0
"""Seconds that a closing engine waits for spans in flight."""

_propagator = TraceContextTextMapPropagator()


class _Ids(IdGenerator):
    """Generates ids: the preset ones for the next span, else those of another generator."""

    def __init__(self, others: IdGenerator) -> None:
        self._others = others
        self._next = threading.local()

    def preset(self, trace_id: int, span_id: int) -> None:
        """Set the ids of the next span in this thread."""
        self._next.ids = (trace_id, span_id)

    def clear(self) -> None:
        """Clear the preset ids."""
        self._next.ids = None

    def generate_trace_id(self) -> int:
        preset = getattr(self._next, "ids", None)
        return preset[0] if preset else self._others.generate_trace_id()

    def generate_span_id(self) -> int:
        preset = getattr(self._next, "ids", None)
        return preset[1] if preset else self._others.generate_span_id()


class _Instants:
    """Nanoseconds since 1970: the engine's clock in milliseconds, refined by its monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._anchor()

    def _anchor(self) -> None:
        self._wall_ms, self._since = self._clock.now(), self._clock.monotonic()

    def now(self) -> int:
        """Return the current time; follows the wall clock when that is set."""
        passed = self._clock.monotonic() - self._since
        if abs(self._clock.now() - self._wall_ms - passed * 1000) > 100:
            self._anchor()
            passed = 0.0
        return self._wall_ms * 1_000_000 + int(passed * 1e9)


class Tracing:
    """The spans of one engine."""

    def __init__(self, provider: TracerProvider, clock: Clock, namespace: str) -> None:
        tracer = provider.get_tracer(SCOPE) if isinstance(provider, TracerProvider) else None
        if not isinstance(tracer, Tracer):
            raise InvalidInput("Tracing needs a TracerProvider of opentelemetry-sdk that is not disabled.")
        if not isinstance(tracer.id_generator, _Ids):
            tracer.id_generator = _Ids(tracer.id_generator)
        self.provider = provider
        self._tracer = tracer
        self._ids = tracer.id_generator
        self._instants = _Instants(clock)
        self._namespace = namespace
        self._live: dict[str, api.Span] = {}
        """Spans of the attempts in progress, by task."""

    # called by the engine

    def trace_id(self) -> str | None:
        """Return the current trace id."""
        here = api.get_current_span().get_span_context()
        return format(here.trace_id, "032x") if here.is_valid else None

    def origin(self) -> object:
        """Return the current span."""
        return api.get_current_span().get_span_context()

    @contextmanager
    def continuing(self, headers: Mapping[str, str]) -> Iterator[None]:
        """Continue the trace of the `traceparent` header, if there is one, inside the context."""
        carried = {name.lower(): value for name, value in headers.items() if name.lower() in ("traceparent", "tracestate")}
        token = contexts.attach(_propagator.extract(carried))
        try:
            yield
        finally:
            contexts.detach(token)

    @contextmanager
    def executing(self, task: Task) -> Iterator[Callable[[], None]]:
        """Start the span of one attempt, current inside; it ends when the yielded function is called. Its parent is the enqueue
        span."""
        activity = "poll" if task.state == TaskState.AWAITING_EXTERNAL else "execute"
        facts = self._facts(task.id, task.kind, task.task_list, task.name, task.run_id, task.step_id)
        span = self._tracer.start_span(
            f"{activity} {task.name}",
            context=self._below(api.SpanContext(trace_of(task), span_number(task.id), True, self._flags(trace_of(task)))),
            kind=api.SpanKind.CONSUMER,
            attributes=facts | {"treadle.attempt": task.attempt, "treadle.claim_version": task.claim_version},
            start_time=self._instants.now(),
        )
        self._live[task.id] = span

        def end() -> None:
            if self._live.get(task.id) is span:
                del self._live[task.id]
            span.end(self._instants.now())

        token = contexts.attach(api.set_span_in_context(span))
        try:
            yield end
        finally:
            contexts.detach(token)

    def observe(self, event: TelemetryEvent | Measure) -> None:
        """Record an event or a measurement in spans."""
        match event:
            case TasksStored(tasks, took, origin):
                self._enqueued(tasks, took, origin if isinstance(origin, api.SpanContext) else api.INVALID_SPAN_CONTEXT)
            case SettleAnswered(task_id, transition, done, took) if (span := self._live.get(task_id)) is not None:
                now = self._instants.now()
                settle = self._tracer.start_span(
                    "settle",
                    context=api.set_span_in_context(span),
                    attributes={"treadle.outcome": outcome_of(transition) if done else "dropped"},
                    start_time=now - int(took * 1e9),
                )
                settle.end(now)
            case TaskSettled() if (span := self._live.get(event.task_id)) is not None:
                _set_outcome(span, event)
            case TaskSettled():
                self._settled_outside(event)
            case ResultDropped(task_id) if (span := self._live.get(task_id)) is not None:
                span.set_attribute("treadle.outcome", "dropped")
                span.set_status(api.Status(api.StatusCode.ERROR, "claim_lost"))
            case LeaseLost(task_id) if (span := self._live.get(task_id)) is not None:
                span.set_attribute("treadle.outcome", outcome_of(None))
                span.set_status(api.Status(api.StatusCode.ERROR, "claim_lost"))
            case _:
                pass

    # internal

    def _enqueued(self, tasks: Sequence[NewTask], took: float, origin: api.SpanContext) -> None:
        now = self._instants.now()
        for task in tasks:
            number = trace_of(task)
            below = origin.is_valid and origin.trace_id == number
            links = [api.Link(origin)] if origin.is_valid and not below else None
            self._ids.preset(number, span_number(task.id))
            try:
                span = self._tracer.start_span(
                    f"enqueue {task.queue.name}",
                    context=self._below(origin if below else api.INVALID_SPAN_CONTEXT),
                    kind=api.SpanKind.PRODUCER,
                    attributes=self._facts(
                        task.id, task.queue.kind, task.queue.task_list, task.queue.name, task.run_id, task.step_id
                    ),
                    links=links,
                    start_time=now - int(took * 1e9),
                )
            finally:
                self._ids.clear()
            span.end(now)

    def _settled_outside(self, event: TaskSettled) -> None:
        """Record the span of a remote worker's attempt, which this process only sees when it ends."""
        number = trace_number(event.trace_id or event.task_id)
        now = self._instants.now()
        span = self._tracer.start_span(
            f"execute {event.name}",
            context=self._below(api.SpanContext(number, span_number(event.task_id), True, self._flags(number))),
            kind=api.SpanKind.CONSUMER,
            attributes=self._facts(event.task_id, event.kind, event.task_list, event.name, None, None)
            | {"treadle.attempt": event.attempt, "treadle.outside": True},
            start_time=now - int(event.took_ms * 1e6),
        )
        _set_outcome(span, event)
        span.end(now)

    @staticmethod
    def _below(parent: api.SpanContext) -> contexts.Context:
        """Return a context that holds only that span."""
        return api.set_span_in_context(api.NonRecordingSpan(parent), contexts.Context())

    def _flags(self, trace: int) -> api.TraceFlags:
        """Whether the trace is sampled: a sampler by trace id decides the same in the process that stored the task."""
        decision = self.provider.sampler.should_sample(contexts.Context(), trace, SCOPE).decision
        return api.TraceFlags(api.TraceFlags.SAMPLED if decision is Decision.RECORD_AND_SAMPLE else api.TraceFlags.DEFAULT)

    def _facts(
        self, task_id: str, kind: str, task_list: str, name: str, run_id: str | None, step_id: str | None
    ) -> dict[str, str | int]:
        facts: dict[str, str | int] = {
            "treadle.task_id": task_id,
            "treadle.kind": kind,
            "treadle.name": name,
            "treadle.task_list": task_list,
            "treadle.namespace": self._namespace,
        }
        if run_id is not None:
            facts["treadle.run_id"] = run_id
        if step_id is not None:
            facts["treadle.step_id"] = step_id
        return facts

    def flush(self) -> bool:
        """Send the spans in flight, within a time limit; blocks."""
        return _flush(self.provider)


def _set_outcome(span: api.Span, event: TaskSettled) -> None:
    span.set_attribute("treadle.outcome", outcome_of(event.transition))
    if event.error is not None and event.transition in ("fail", "retry"):
        code = str((decode(event.error) or {}).get("code", "failed"))
        span.set_attribute("error.type", code)
        span.set_status(api.Status(api.StatusCode.ERROR, code))


def trace(telemetry: EventEmitter, clock: Clock, namespace: str, provider: TracerProvider) -> None:
    """Create spans for an engine's work from now on, in place of those of an earlier provider."""
    tracing = Tracing(provider, clock, namespace)
    if isinstance(before := telemetry.spans, Tracing):
        telemetry.remove(before.observe)
    telemetry.spans = tracing
    telemetry.add(tracing.observe)


@cache
def make_provider(endpoint: str, service_name: str) -> TracerProvider:
    """Create a provider that sends spans by OTLP over HTTP; all engines of a process share it."""
    if not endpoint:
        raise InvalidInput("There is no endpoint for spans: set TREADLE_OTLP_ENDPOINT, or pass a TracerProvider to `use_tracing`.")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise MissingDependency("Sending traces needs the OTLP exporter: pip install 'treadle[otel]'.") from None
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    provider = TracerProvider(resource=Resource.create({"service.name": service_name}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))

    def leave() -> None:
        _flush(provider)
        exporter.shutdown()  # type: ignore[no-untyped-call]  # its retries must not keep the process

    atexit.register(leave)
    return provider


_flushing: WeakKeyDictionary[TracerProvider, threading.Thread] = WeakKeyDictionary()


def _flush(provider: TracerProvider) -> bool:
    """Run `force_flush` within a real time limit: the SDK's own limit does not include the exporter's retries."""
    before = _flushing.get(provider)
    if before is not None and before.is_alive():
        return False  # the endpoint does not answer; one attempt is enough
    _flushing[provider] = thread = threading.Thread(target=provider.force_flush, name="treadle-spans", daemon=True)
    thread.start()
    thread.join(FLUSH_WITHIN)
    return not thread.is_alive()


def share(tracing: Tracing) -> None:
    """Make the provider global, unless the program has set one, so that spans of handlers go the same way."""
    if isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        api.set_tracer_provider(tracing.provider)
