"""The part of `Engine` that is about being observed: metrics and traces, loaded when they are first used."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from treadle.kernel.telemetry.observer import Telemetry
from treadle.settings import Settings

if TYPE_CHECKING:
    from treadle.kernel.reads.throughput import Pace
    from treadle.kernel.telemetry.call_times import CallTimer
    from treadle.wiring.engine import Engine
    from treadle.wiring.metrics import Metrics


class ObservedFace:
    """Metrics need the extra `metrics`, traces the extra `otel`; an engine that is asked for neither pays for neither."""

    settings: Settings
    telemetry: Telemetry
    _metrics: Metrics | None = None
    _pace: Pace | None = None
    _call_timer: CallTimer | None = None

    @property
    def metrics(self) -> Metrics:
        """Prometheus metrics of this engine, counted from the first time that this is asked for."""
        if self._metrics is None:
            from treadle.wiring.metrics import Metrics

            self._metrics = Metrics(cast("Engine", self))
        return self._metrics

    @property
    def call_timer(self) -> CallTimer:
        """How long calls of the store take, measured from the first time that this is asked for."""
        if self._call_timer is None:
            from treadle.kernel.telemetry.call_times import CallTimer

            self._call_timer = CallTimer(cast("Engine", self).clock)
            self.telemetry.add(self._call_timer.observe)
        return self._call_timer

    @property
    def pace(self) -> Pace:
        """What tasks came to in each minute of the last hour."""
        if self._pace is None:
            from treadle.kernel.reads.throughput import Pace

            engine = cast("Engine", self)
            self._pace = Pace(engine.store, engine.clock, namespace=self.settings.namespace)
        return self._pace

    def use_tracing(self, provider: Any = None) -> None:
        """Make OpenTelemetry spans with that `TracerProvider`; without one, send them to `TREADLE_OTLP_ENDPOINT`."""
        from treadle.wiring.tracing import make_provider, trace

        trace(cast("Engine", self), provider or make_provider(self.settings.otlp_endpoint, self.settings.service_name))

    def share_tracing(self) -> None:
        """Let spans that handlers make go where the engine's go: for processes in which nobody else says where that is."""
        if self.telemetry.spans is not None:
            from treadle.wiring.tracing import Tracing, share

            if isinstance(self.telemetry.spans, Tracing):
                share(self.telemetry.spans)

    def _begin_to_observe(self) -> None:
        """Begin what the settings say."""
        if self.settings.otlp_endpoint and self.telemetry.spans is None:
            self.use_tracing()

    async def _send_spans(self) -> None:
        """Give the spans on their way a moment; the process may end at once after this."""
        if self.telemetry.spans is not None:
            await asyncio.to_thread(self.telemetry.spans.flush)
