"""Traces the coordinator's part of requests that a broker traces."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.model.trace_context import CallTracing, part_of
from tidelog.rpc.coordinator_session import ForwardedToShard
from tidelog.wire.api_keys import ApiKey


class RequestTracing:
    def __init__(self, tracing: CallTracing) -> None:
        self._tracing = tracing

    def traced(self, item: ForwardedToShard, decide: Callable[[], None]) -> None:
        """Runs `decide` within a span of the broker's trace.

        The span ends with the decision. The broker's own span covers the replication that follows.
        """
        shard = item.shard
        attributes: dict[str, str | int | float | bool] = {
            "messaging.system": "kafka",
            "messaging.operation.name": ApiKey(item.api_key).name_in_kafka,
            "messaging.message.body.size": len(item.body),
            "tidelog.shard.kind": shard.kind.value,
            "tidelog.shard": shard.partition,
        }
        if item.client_id is not None:
            attributes["messaging.client.id"] = item.client_id
        name = f"coordinator {ApiKey(item.api_key).name_in_kafka}"
        trace = self._tracing.go_on(item.traceparent, name, attributes)
        if trace is None:
            decide()
            return
        try:
            with part_of(trace):
                decide()
        finally:
            trace.end()
