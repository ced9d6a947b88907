"""A scripted release: StatefulSets, pods, Deployments, metadata and metrics."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from brokerlab.scripted_broker import ScriptedBroker
from kuberneteslab.scripted_api_server import Object, ScriptedApiServer
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tidelog.wire.messages.elect_leaders import ElectLeadersResponse
from tidelog.wire.messages.list_partition_reassignments import ListPartitionReassignmentsResponse
from tidelog.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

NAMESPACE = "/namespaces/n"
PODS = f"/api/v1{NAMESPACE}/pods"
CLAIMS = f"/api/v1{NAMESPACE}/persistentvolumeclaims"
STATEFUL_SETS = f"/apis/apps/v1{NAMESPACE}/statefulsets"
DEPLOYMENTS = f"/apis/apps/v1{NAMESPACE}/deployments"
JOBS = f"/apis/batch/v1{NAMESPACE}/jobs"
READY = {"type": "Ready", "status": "True"}


class ScriptedRelease:
    """The release `r` in namespace `n`, with a topic `t` that has one partition on all brokers.

    A deleted pod is created again at once, with the current revision.
    """

    def __init__(
        self, broker_ids: tuple[int, ...] = (0, 1, 2), *, revision: str = "old", wanted: str = "new"
    ) -> None:
        self.api = ScriptedApiServer()
        self.api.on_write = self._as_kubernetes_would
        self.assignment = list(broker_ids)
        self.isr = list(broker_ids)
        self.min_isr = 2
        self.wanted = wanted
        self.metrics = {"kafka_server_replicamanager_underreplicatedpartitions": 0}
        self.broker_ids = broker_ids
        self.elections = 0
        self.broker = ScriptedBroker(
            {
                ApiKey.METADATA: self._metadata,
                ApiKey.DESCRIBE_CONFIGS: self._configs,
                ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda request, version: (
                    ListPartitionReassignmentsResponse()
                ),
                ApiKey.ALTER_PARTITION_REASSIGNMENTS: self._reassign,
                ApiKey.ELECT_LEADERS: self._elect,
            }
        )
        self._metrics_server = ThreadingHTTPServer(("127.0.0.1", 0), _metrics_handler(self))
        threading.Thread(target=self._metrics_server.serve_forever, args=(0.02,), daemon=True).start()
        for broker_id in broker_ids:
            self.add_broker(broker_id, revision)

    @property
    def metrics_port(self) -> int:
        return int(self._metrics_server.server_address[1])

    def __enter__(self) -> ScriptedRelease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._metrics_server.shutdown()
        self._metrics_server.server_close()
        self.broker.__exit__(kind, error, trace)
        self.api.__exit__(kind, error, trace)

    def add_broker(self, broker_id: int, revision: str) -> None:
        name = f"r-broker-{broker_id}"
        metadata = {"labels": _labels("broker", broker_id), "generation": 1}
        self.api.put(
            f"{STATEFUL_SETS}/{name}",
            metadata=metadata,
            spec={
                "replicas": 1,
                "serviceName": "r-brokers",
                "selector": {},
                "template": {},
                "volumeClaimTemplates": [_claim("data", "1Gi")],
            },
            status={"observedGeneration": 1, "updateRevision": self.wanted, "replicas": 1},
        )
        self.api.put(f"{CLAIMS}/data-{name}-0", **_claim(f"data-{name}-0", "1Gi"))
        self.add_pod(broker_id, revision, "uid-1")

    def add_pod(self, broker_id: int, revision: str, uid: str) -> Object:
        labels = {**_labels("broker", broker_id), "controller-revision-hash": revision}
        return self.api.put(
            f"{PODS}/r-broker-{broker_id}-0",
            metadata={"labels": labels, "uid": uid},
            status={"podIP": "127.0.0.1", "conditions": [dict(READY)]},
        )

    def add_deployment(self, component: str, **spec: Any) -> None:
        self.api.put(
            f"{DEPLOYMENTS}/r-{component}",
            metadata={"labels": _labels(component), "generation": 1},
            spec={"replicas": 2, "selector": {}, "template": {}, **spec},
            status={"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2},
        )

    def _as_kubernetes_would(self, method: str, path: str, body: Any) -> None:
        kind, _, name = path.rpartition("/")
        if (method, kind) == ("DELETE", PODS):
            self.add_pod(int(name.split("-")[2]), self.wanted, body["preconditions"]["uid"] + "+")

    def _metadata(self, request: Any, version: int) -> MetadataResponse:
        brokers = [
            MetadataResponseBroker(broker_id, "127.0.0.1", self.broker.port) for broker_id in self.broker_ids
        ]
        partition = MetadataResponsePartition(0, 0, self.isr[0], 1, list(self.assignment), list(self.isr))
        return MetadataResponse(
            brokers=brokers,
            controller_id=self.broker_ids[0],
            topics=[MetadataResponseTopic(0, "t", partitions=[partition])],
        )

    def _configs(self, request: DescribeConfigsRequest, version: int) -> DescribeConfigsResponse:
        rows = [DescribeConfigsResourceResult("min.insync.replicas", str(self.min_isr))]
        return DescribeConfigsResponse(
            results=[
                DescribeConfigsResult(0, None, 2, asked.resource_name, rows) for asked in request.resources
            ]
        )

    def _reassign(
        self, request: AlterPartitionReassignmentsRequest, version: int
    ) -> AlterPartitionReassignmentsResponse:
        self.assignment = list(request.topics[0].partitions[0].replicas or ())
        self.isr = list(self.assignment)
        return AlterPartitionReassignmentsResponse(error_message=None)

    def _elect(self, request: Any, version: int) -> ElectLeadersResponse:
        self.elections += 1
        return ElectLeadersResponse()


def _labels(component: str, broker_id: int | None = None) -> dict[str, str]:
    labels = {"app.kubernetes.io/instance": "r", "app.kubernetes.io/component": component}
    return labels if broker_id is None else {**labels, "tidelog.io/broker-id": str(broker_id)}


def _claim(name: str, size: str) -> Object:
    return {"metadata": {"name": name}, "spec": {"resources": {"requests": {"storage": size}}}}


def _metrics_handler(release: ScriptedRelease) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = "".join(f"{name} {value}\n" for name, value in release.metrics.items()).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: Any) -> None:
            """Keeps the log out of the tests' output."""

    return Handler
