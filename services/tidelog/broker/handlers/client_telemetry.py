"""GetTelemetrySubscriptions v0 and PushTelemetry v0: the metrics that clients push (KIP-714).

Both are served only with `tidelog.client.metrics.enable`; otherwise the connection is closed, as for an API
that does not exist. Sums are requested as totals, not as differences, because Prometheus wants totals.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Final

from tidelog.broker.client_telemetry.receiver import COMPRESSION_TYPES, InvalidMetricsError, decode_push
from tidelog.broker.requests.request import NO_REPLY
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from tidelog.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tidelog.broker.client_telemetry.receiver import ClientInstance, ClientTelemetry
    from tidelog.broker.requests.request import Answer, RequestContext
    from tidelog.kernel.clock import Clock


MAX_CLIENT_ID_CHARS: Final = 200
"""The part of a client id that series show."""


class ClientTelemetryHandlers:
    """Answers GetTelemetrySubscriptions and PushTelemetry."""

    def __init__(self, telemetry: ClientTelemetry | None, clock: Clock, threads: Executor) -> None:
        self._telemetry = telemetry
        self._clock = clock
        self._threads = threads

    def subscriptions(self, request: GetTelemetrySubscriptionsRequest, context: RequestContext) -> Answer:
        telemetry = self._telemetry
        if telemetry is None:
            return _not_served(context)
        now_ms = self._clock.monotonic_ms()
        telemetry.forget_silent(now_ms)
        try:
            instance = telemetry.instances.ask(
                request.client_instance_id,
                uuid.uuid4(),
                context.connection.budget_key,
                _attributes(context),
                now_ms,
            )
        except KafkaError as error:
            return GetTelemetrySubscriptionsResponse(error_code=error.code)
        plan = instance.plan
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=instance.instance_id,
            subscription_id=plan.subscription_id,
            accepted_compression_types=list(COMPRESSION_TYPES),
            push_interval_ms=plan.interval_ms,
            telemetry_max_bytes=telemetry.instances.max_bytes,
            delta_temporality=False,
            requested_metrics=list(plan.metrics),
        )

    def push(self, request: PushTelemetryRequest, context: RequestContext) -> Answer:
        telemetry = self._telemetry
        if telemetry is None:
            return _not_served(context)
        client = context.connection.budget_key
        try:
            instance = telemetry.instances.take_push(
                request.client_instance_id,
                client,
                _attributes(context),
                request.subscription_id,
                request.compression_type,
                len(request.metrics),
                self._clock.monotonic_ms(),
                is_last=request.terminating,
            )
        except KafkaError as error:
            return PushTelemetryResponse(error_code=error.code)
        return self._keep(telemetry, request, instance, client)

    def _keep(
        self,
        telemetry: ClientTelemetry,
        request: PushTelemetryRequest,
        instance: ClientInstance,
        client: str,
    ) -> Coroutine[object, None, PushTelemetryResponse]:
        payload, max_bytes = bytes(request.metrics), telemetry.instances.max_bytes
        attributes = instance.attributes
        labels = {name: attributes[name] for name in ("client_id", "client_instance_id")}

        async def keep() -> PushTelemetryResponse:
            if payload:
                loop = asyncio.get_running_loop()
                decoding = loop.run_in_executor(
                    self._threads, decode_push, payload, request.compression_type, max_bytes, labels
                )
                try:
                    telemetry.keep(instance, client, await decoding, self._clock.monotonic_ms())
                except InvalidMetricsError:
                    return PushTelemetryResponse(error_code=ErrorCode.INVALID_RECORD)
            return PushTelemetryResponse()

        return keep()


def _attributes(context: RequestContext) -> dict[str, str]:
    """Returns the attributes of a client that subscriptions can select (KIP-714)."""
    name, version = context.connection.client_software
    return {
        "client_id": (context.client_id or "")[:MAX_CLIENT_ID_CHARS],
        "client_software_name": name,
        "client_software_version": version,
        "client_source_address": context.host,
        "client_source_port": str(getattr(context.connection, "peer_port", "")),
    }


def _not_served(context: RequestContext) -> Answer:
    context.connection.refuse(f"{context.route.api_key.name} needs tidelog.client.metrics.enable")
    return NO_REPLY
