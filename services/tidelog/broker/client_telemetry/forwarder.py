"""Sends the metrics that clients push to the OpenTelemetry collector of the traces, over OTLP with gRPC.

The queue is bounded: while the collector is away, metrics are dropped and counted. Metrics say how things are
now, so late ones are worth little.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import grpc
import structlog

from tidelog.metrics.generated.metrics_pb2 import AnyValue, KeyValue

if TYPE_CHECKING:
    from tidelog.metrics.generated.metrics_pb2 import MetricsData
    from tidelog.settings.cluster_settings import TracingSettings

MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024
EXPORT_TIMEOUT_S: Final = 10
CLOSE_TIMEOUT_S: Final = 1
_EXPORT: Final = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"

_log = structlog.get_logger(__name__)


class OtlpMetricsForwarder:
    """The queue of metrics for the collector. Its task starts with the first ones. The caller closes it."""

    def __init__(self, settings: TracingSettings) -> None:
        """Raises OSError if the file of the collector's certificate authority cannot be read."""
        url = urlsplit(settings.tidelog_tracing_otlp_endpoint)
        self.dropped_total = 0
        self.sent_total = 0
        self._target = url.netloc
        self._credentials: grpc.ChannelCredentials | None = None
        if url.scheme == "https":
            ca_file = settings.tidelog_tracing_otlp_ca_file
            authority = None if ca_file is None else Path(ca_file).read_bytes()
            self._credentials = grpc.ssl_channel_credentials(authority)
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False

    def forward(self, data: MetricsData, attributes: Mapping[str, str]) -> None:
        """Queues the metrics of one push, with the client's attributes at each resource."""
        told = [KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in attributes.items()]
        for resource in data.resource_metrics:
            resource.resource.attributes.extend(told)
        body = data.SerializeToString()
        if self._queued_bytes + len(body) > MAX_QUEUED_BYTES:
            self.dropped_total += 1
            return
        self._queue.append(body)
        self._queued_bytes += len(body)
        self._arrived.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="client-metrics")

    async def close(self) -> None:
        """Drops what is queued."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT_S)

    async def _run(self) -> None:
        channel = (
            grpc.aio.insecure_channel(self._target)
            if self._credentials is None
            else grpc.aio.secure_channel(self._target, self._credentials)
        )
        async with channel:
            # Without a serializer, bytes go in and come out.
            export: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_EXPORT)
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while self._queue:
                    body = self._queue.popleft()
                    self._queued_bytes -= len(body)
                    try:
                        await export(body, timeout=EXPORT_TIMEOUT_S)
                    except grpc.aio.AioRpcError as error:
                        self.dropped_total += 1
                        self._note(is_failing=True, reason=error.code().name)
                    else:
                        self.sent_total += 1
                        self._note(is_failing=False)

    def _note(self, *, is_failing: bool, reason: str = "") -> None:
        """Logs when the collector goes away or returns, but not each attempt."""
        if is_failing and not self._is_failing:
            _log.warning("cannot send clients' metrics; they are dropped", reason=reason)
        elif self._is_failing and not is_failing:
            _log.info("clients' metrics are sent again")
        self._is_failing = is_failing
