"""Clients' metrics on their way to a collector: a gRPC server that takes what OTLP's clients send."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tidelog.broker.client_telemetry import forwarder as module
from tidelog.broker.client_telemetry.forwarder import OtlpMetricsForwarder
from tidelog.metrics.generated.metrics_pb2 import MetricsData
from tidelog.settings.broker_settings import BrokerSettings

TIMEOUT_S = 20


class Collector(grpc.GenericRpcHandler):
    """Keeps the requests of `MetricsService/Export`."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[bytes] = asyncio.Queue()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if handler_call_details.method != "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export":
            return None

        async def export(request: bytes, context: object) -> bytes:
            await self.received.put(request)
            return b""

        return grpc.unary_unary_rpc_method_handler(export)


def settings(port: int) -> BrokerSettings:
    endpoint = f"http://127.0.0.1:{port}"
    return BrokerSettings.parse({"node.id": "1", "tidelog.tracing.otlp.endpoint": endpoint})


def metrics(name: str) -> MetricsData:
    data = MetricsData()
    data.resource_metrics.add().scope_metrics.add().metrics.add(name=name).gauge.data_points.add(as_double=1)
    return data


def test_the_collector_receives_the_metrics_with_the_client() -> None:
    async def run() -> None:
        collector, server = Collector(), grpc.aio.server()
        server.add_generic_rpc_handlers((collector,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        forwarder = OtlpMetricsForwarder(settings(port))
        forwarder.forward(metrics("a"), {"client_id": "app"})
        async with asyncio.timeout(TIMEOUT_S):
            (resource,) = MetricsData.FromString(await collector.received.get()).resource_metrics
        assert [(each.key, each.value.string_value) for each in resource.resource.attributes] == [
            ("client_id", "app")
        ]
        assert resource.scope_metrics[0].metrics[0].name == "a"
        await forwarder.close()
        await server.stop(0)

    asyncio.run(run())


def test_metrics_above_the_bound_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        forwarder = OtlpMetricsForwarder(settings(1))
        monkeypatch.setattr(module, "MAX_QUEUED_BYTES", 60)
        for _ in range(5):
            forwarder.forward(metrics("a" * 20), {})
        assert forwarder.dropped_total == 4
        await forwarder.close()

    asyncio.run(run())
