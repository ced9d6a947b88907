"""DescribeClusterRequest and DescribeClusterResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool = False
    endpoint_type: int = 1
    include_fenced_brokers: bool = False

    API_KEY: ClassVar[int] = 60
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("include_cluster_authorized_operations", "bool", "0+"),
        F("endpoint_type", "int8", "1+"),
        F("include_fenced_brokers", "bool", "2+"),
    )


@dataclass(slots=True)
class DescribeClusterBroker:
    broker_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None
    is_fenced: bool = False

    FIELDS: ClassVar[Fields] = (
        F("broker_id", "int32", "0+"),
        F("host", "string", "0+"),
        F("port", "int32", "0+"),
        F("rack", "string", "0+", nullable="0+"),
        F("is_fenced", "bool", "2+"),
    )


@dataclass(slots=True)
class DescribeClusterResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    endpoint_type: int = 1
    cluster_id: str = ""
    controller_id: int = -1
    brokers: list[DescribeClusterBroker] = field(default_factory=list)
    cluster_authorized_operations: int = -2147483648

    API_KEY: ClassVar[int] = 60
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("endpoint_type", "int8", "1+"),
        F("cluster_id", "string", "0+"),
        F("controller_id", "int32", "0+"),
        F("brokers", (DescribeClusterBroker,), "0+"),
        F("cluster_authorized_operations", "int32", "0+"),
    )
