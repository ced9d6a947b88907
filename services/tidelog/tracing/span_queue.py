"""The queue of spans for the exporter. It is bounded, and a thread empties it.

The SDK's BatchSpanProcessor drops spans silently and may take long to shut down. This queue counts the spans
that it drops, and it shuts down within `CLOSE_TIMEOUT_S`, with or without a collector.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

import structlog
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

EXPORT_INTERVAL_S: Final = 1.0
MAX_SPANS_AT_A_TIME: Final = 512
CLOSE_TIMEOUT_S: Final = 1.0

_log = structlog.get_logger(__name__)


class SpanQueue(SpanProcessor):
    def __init__(self, exporter: SpanExporter, max_queued: int) -> None:
        self.ended_total = 0
        self.dropped_total = 0
        self._exporter = exporter
        self._max_queued = max_queued
        self._queue: deque[ReadableSpan] = deque()
        self._wake = threading.Event()
        self._is_closing = False
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Does nothing."""

    def on_end(self, span: ReadableSpan) -> None:
        self.ended_total += 1
        if len(self._queue) >= self._max_queued:
            self.dropped_total += 1
            return
        self._queue.append(span)
        if len(self._queue) == MAX_SPANS_AT_A_TIME:
            self._wake.set()

    def shutdown(self) -> None:
        """Exports the queued spans once more, and drops those that are not sent in time."""
        if self._is_closing:
            return
        self._is_closing = True
        self._wake.set()
        self._thread.join(CLOSE_TIMEOUT_S)
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Does nothing, because `shutdown` exports the queued spans."""
        return True

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.wait(EXPORT_INTERVAL_S)
            self._wake.clear()
            self._export_all()

    def _export_all(self) -> None:
        while self._queue:
            spans = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_SPANS_AT_A_TIME))]
            try:
                is_sent = self._exporter.export(spans) is SpanExportResult.SUCCESS
            except Exception as error:  # noqa: BLE001 - an exporter's bug must not end the thread
                _log.error("cannot export spans", reason=repr(error))
                is_sent = False
            if not is_sent:
                self.dropped_total += len(spans)
            if is_sent == self._is_failing:
                self._is_failing = not is_sent
                _log.warning("spans are exported again" if is_sent else "cannot send spans; they are dropped")
            if not is_sent:
                return
