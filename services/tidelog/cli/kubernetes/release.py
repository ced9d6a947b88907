"""One Helm release: its objects, read and changed by the API server, and the listeners of its brokers.

While clients move from plaintext to TLS, some brokers have only the old listener, and after a rollback some
have only the new one. A hook that names both takes the one over which it sees the most brokers.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeVar

import click

from tidelog.cli.doctor.facts import sum_of
from tidelog.cli.kubernetes.api_server import ApiServer, KubeObject, NotFoundError
from tidelog.cli.kubernetes.upgrade_plan import (
    DELETION_COST,
    BrokerPod,
    Claim,
    ServicePod,
    VolumeSet,
    Workload,
    pending,
)
from tidelog.cli.tool_command import BOOTSTRAP_VARIABLE, ToolError
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.security import NO_SECURITY, ClientSecurity, environment_security
from tidelog.model.brokers import host_and_port
from tidelog.model.errors import KafkaError

BROKER: Final = "broker"
CONTROLLER: Final = "controller"
GROUP_COORDINATOR: Final = "group-coordinator"
ETCD: Final = "etcd"
BROKER_ID_LABEL: Final = "tidelog.io/broker-id"
METRICS_PORT: Final = 9404
METRICS_TIMEOUT_S: Final = 3.0
GONE_POLL_INTERVAL_S: Final = 0.5
UNDER_REPLICATED: Final = "kafka_server_replicamanager_underreplicatedpartitions"
ACTIVE_CONTROLLER: Final = "kafka_controller_kafkacontroller_activecontrollercount"
_STARTING: Final = ("ContainerCreating", "PodInitializing")
_REVISION_LABEL: Final = "controller-revision-hash"
F = TypeVar("F", bound=Callable[..., object])
TIMEOUT_S: Final = 30.0
bootstrap_option = click.option(
    "--bootstrap-server",
    "-b",
    required=True,
    envvar=BOOTSTRAP_VARIABLE,
    show_envvar=True,
    metavar="HOST:PORT[,...]",
    help="One or more brokers of the release.",
)


class Release:
    """A Helm release, whose objects are found by the chart's labels."""

    def __init__(
        self, server: ApiServer, namespace: str, name: str, *, metrics_port: int = METRICS_PORT
    ) -> None:
        self.server = server
        self.namespace = namespace
        self.name = name
        self._metrics_port = metrics_port

    def brokers(self) -> list[BrokerPod]:
        """Returns the brokers in the order of their ids. Raises ToolError if the release has none."""
        pods = self._pods_by_broker()
        found = [
            self._broker_pod(stateful_set, pods.get(_broker_id(stateful_set)))
            for stateful_set in self.stateful_sets(BROKER)
        ]
        if not found:
            raise ToolError(
                f"--release {self.name}: namespace {self.namespace} contains no brokers of this release; "
                "'helm list -A' shows all releases"
            )
        return sorted(found, key=lambda broker: broker.broker_id)

    def stateful_sets(self, component: str) -> list[KubeObject]:
        apps = self.server.apps
        listed = self.server.call(
            apps.list_namespaced_stateful_set, self.namespace, label_selector=self._selector(component)
        )
        return list(listed.items)

    def broker_ids(self) -> list[int]:
        return [_broker_id(found) for found in self.stateful_sets(BROKER)]

    def volumes(self, component: str) -> list[VolumeSet]:
        """Returns the volumes of the component's StatefulSets, which have one claim template each."""
        found = []
        for stateful_set in self.stateful_sets(component):
            templates = stateful_set.spec.volume_claim_templates or ()
            if not templates:
                continue
            name = stateful_set.metadata.name
            claims = [
                self._claim(f"{templates[0].metadata.name}-{name}-{ordinal}")
                for ordinal in range(stateful_set.spec.replicas or 0)
            ]
            existing = [claim for claim in claims if claim is not None]
            found.append(VolumeSet(name, templates[0].spec.resources.requests["storage"], existing))
        return found

    def grow_claim(self, name: str, size: str, *, only_ask: bool = False) -> None:
        """Grows a claim, or only checks it. Raises ToolError if the storage class does not support this."""
        patch = {"spec": {"resources": {"requests": {"storage": size}}}}
        options = {"dry_run": "All"} if only_ask else {}
        core = self.server.core
        self.server.call(
            core.patch_namespaced_persistent_volume_claim, name, self.namespace, patch, **options
        )

    def orphan_stateful_set(self, name: str, timeout_s: float) -> None:
        """Deletes a StatefulSet without its pods. Raises ToolError if it still exists after the timeout."""
        apps = self.server.apps
        self._delete(
            apps.delete_namespaced_stateful_set,
            apps.read_namespaced_stateful_set,
            f"statefulset {name}",
            name,
            "Orphan",
            timeout_s,
        )

    def delete_job(self, name: str, timeout_s: float = 60.0) -> bool:
        """Deletes a Job with its pods. Returns False if the Job does not exist."""
        batch = self.server.batch
        try:
            self.server.call(batch.read_namespaced_job, name, self.namespace)
        except NotFoundError:
            return False
        self._delete(
            batch.delete_namespaced_job,
            batch.read_namespaced_job,
            f"job {name}",
            name,
            "Foreground",
            timeout_s,
        )
        return True

    def deployments(self, component: str) -> list[Workload]:
        apps = self.server.apps
        listed = self.server.call(
            apps.list_namespaced_deployment, self.namespace, label_selector=self._selector(component)
        )
        found = [_workload_of_deployment(deployment) for deployment in listed.items]
        if not any(map(pending, found)):
            return found
        unready = [pod for pod in self._pods(component) if not _is_ready(pod)]
        troubles = "; ".join(filter(None, map(trouble_of, unready)))
        return [
            replace(workload, failure=troubles) if troubles and not workload.failure else workload
            for workload in found
        ]

    def members(self, component: str) -> list[Workload]:
        """Returns the component's StatefulSets, which Kubernetes rolls by itself."""
        return [_workload_of_stateful_set(found) for found in self.stateful_sets(component)]

    def controller_pods(self) -> list[ServicePod]:
        """Returns the controllers' pods. A controller that does not answer counts as inactive."""
        pods = []
        for pod in self._pods(CONTROLLER):
            annotations = pod.metadata.annotations or {}
            in_office = self._metric(pod.status.pod_ip, ACTIVE_CONTROLLER)
            pods.append(ServicePod(pod.metadata.name, annotations.get(DELETION_COST, ""), bool(in_office)))
        return pods

    def annotate_pod(self, name: str, annotation: str, value: str) -> None:
        """Annotates a pod, if it exists."""
        patch = {"metadata": {"annotations": {annotation: value}}}
        try:
            self.server.call(self.server.core.patch_namespaced_pod, name, self.namespace, patch)
        except NotFoundError:
            return

    def pause(self, deployment: str, paused: bool) -> None:
        patch = {"spec": {"paused": paused}}
        self.server.call(self.server.apps.patch_namespaced_deployment, deployment, self.namespace, patch)

    def delete_pod(self, name: str, uid: str) -> None:
        """Deletes the pod with this uid, if it exists."""
        body = {"preconditions": {"uid": uid}}
        try:
            self.server.call(self.server.core.delete_namespaced_pod, name, self.namespace, body=body)
        except NotFoundError:
            return

    # -- conversion of the API's objects

    def _delete(
        self,
        delete: Callable[..., KubeObject],
        read: Callable[..., KubeObject],
        what: str,
        name: str,
        propagation: str,
        timeout_s: float,
    ) -> None:
        """Deletes an object and waits until it no longer exists."""
        deadline_s = time.monotonic() + timeout_s
        try:
            self.server.call(delete, name, self.namespace, body={"propagationPolicy": propagation})
            while time.monotonic() < deadline_s:
                self.server.call(read, name, self.namespace)
                time.sleep(GONE_POLL_INTERVAL_S)
        except NotFoundError:
            return
        raise ToolError(f"{what} still exists {timeout_s:g} s after its deletion")

    def _claim(self, name: str) -> Claim | None:
        core = self.server.core
        try:
            found = self.server.call(core.read_namespaced_persistent_volume_claim, name, self.namespace)
        except NotFoundError:
            return None
        spec: KubeObject = found.spec
        return Claim(name, spec.resources.requests["storage"])

    def _selector(self, component: str) -> str:
        return f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={component}"

    def _pods(self, component: str) -> Sequence[KubeObject]:
        listed = self.server.call(
            self.server.core.list_namespaced_pod, self.namespace, label_selector=self._selector(component)
        )
        return list(listed.items)

    def _pods_by_broker(self) -> dict[int, KubeObject]:
        return {_broker_id(pod): pod for pod in self._pods(BROKER)}

    def _broker_pod(self, stateful_set: KubeObject, pod: KubeObject | None) -> BrokerPod:
        broker_id, status = _broker_id(stateful_set), stateful_set.status
        name = f"{stateful_set.metadata.name}-0"
        taken_up = (status.observed_generation or 0) >= (stateful_set.metadata.generation or 0)
        if pod is None or not taken_up:
            return BrokerPod(broker_id, name, uid="", is_ready=False)
        labels = pod.metadata.labels or {}
        is_ready = _is_ready(pod)
        under_replicated = self._metric(pod.status.pod_ip, UNDER_REPLICATED) if is_ready else 0
        return BrokerPod(
            broker_id,
            name,
            pod.metadata.uid,
            is_outdated=labels.get(_REVISION_LABEL) != status.update_revision,
            is_ready=is_ready,
            is_terminating=pod.metadata.deletion_timestamp is not None,
            under_replicated=None if under_replicated is None else int(under_replicated),
            trouble="" if is_ready else trouble_of(pod),
        )

    def _metric(self, pod_ip: str | None, name: str) -> float | None:
        """Returns a metric of a pod, or None if the pod does not answer."""
        if not pod_ip:
            return None
        try:
            url = f"http://{host_and_port(pod_ip, self._metrics_port)}/metrics"
            with urllib.request.urlopen(url, timeout=METRICS_TIMEOUT_S) as answer:
                return sum_of(answer.read().decode("utf-8", "replace"), name)
        except (OSError, ValueError):
            return None


def _broker_id(found: KubeObject) -> int:
    text = (found.metadata.labels or {}).get(BROKER_ID_LABEL, "")
    if not text.isdecimal():
        raise ToolError(
            f"{found.metadata.name} has no label {BROKER_ID_LABEL}, so this chart did not create it"
        )
    return int(text)


def _is_ready(pod: KubeObject) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ())


def trouble_of(pod: KubeObject) -> str:
    """Returns Kubernetes' reason why a pod is not ready: no node, no image, or a process that ends."""
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"no node: {condition.message or condition.reason}"
    statuses = (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ()))
    for status in statuses:
        waiting = status.state.waiting if status.state else None
        if waiting is not None and waiting.reason not in _STARTING:
            return f"{status.name} {waiting.reason}"
        ended = status.last_state.terminated if status.last_state else None
        if ended is not None and not status.ready:
            return f"{status.name} ended with {ended.exit_code}, {status.restart_count} times"
    return ""


def _workload_of_deployment(found: KubeObject) -> Workload:
    status = found.status
    failures = [
        condition.message or condition.reason or ""
        for condition in status.conditions or ()
        if (condition.type == "Progressing" and condition.status == "False")
        or condition.type == "ReplicaFailure"
    ]
    return Workload(
        "deployment",
        found.metadata.name,
        found.metadata.generation or 0,
        status.observed_generation or 0,
        found.spec.replicas if found.spec.replicas is not None else 1,
        status.replicas or 0,
        status.updated_replicas or 0,
        status.available_replicas or 0,
        is_paused=bool(found.spec.paused),
        failure="; ".join(failures),
    )


def _workload_of_stateful_set(found: KubeObject) -> Workload:
    status = found.status
    is_rolled = status.current_revision == status.update_revision
    return Workload(
        "statefulset",
        found.metadata.name,
        found.metadata.generation or 0,
        status.observed_generation or 0,
        found.spec.replicas if found.spec.replicas is not None else 1,
        status.replicas or 0,
        (status.replicas if is_rolled else status.updated_replicas) or 0,
        status.ready_replicas or 0,
    )


def release_options(command: F) -> F:
    command = click.option(
        "--namespace",
        "-n",
        required=True,
        envvar="POD_NAMESPACE",
        show_envvar=True,
        help="The release's namespace.",
    )(command)
    return click.option("--release", required=True, help="The name of the Helm release.")(command)


def open_release(release: str, namespace: str) -> Release:
    """Returns the release. Raises ToolError."""
    return Release(ApiServer.connect(), namespace, release)


class Entrances(NamedTuple):
    """The addresses of a listener with the security of TIDELOG_COMMAND_CONFIG, and those of a plaintext
    listener (or "").
    """

    bootstrap_server: str
    plaintext_bootstrap_server: str = ""

    def ways(self, client_id: str, timeout_s: float = TIMEOUT_S) -> list[Callable[[], Cluster]]:
        """Returns functions that connect. They raise ClientError."""

        def over(bootstrap_server: str, security_of: Callable[[], ClientSecurity]) -> Cluster:
            return Cluster(bootstrap_server, client_id=client_id, timeout_s=timeout_s, security=security_of())

        over_first = partial(over, self.bootstrap_server, environment_security)
        over_plaintext = partial(over, self.plaintext_bootstrap_server, lambda: NO_SECURITY)
        return [over_plaintext, over_first] if self.plaintext_bootstrap_server else [over_first]

    def open(self, client_id: str) -> Cluster:
        """Returns a connection over the listener that the most brokers have. Raises ClientError, KafkaError
        if none of them answers.
        """
        ways = self.ways(client_id)
        if len(ways) == 1:
            return ways[0]()
        counts: dict[int, int] = {}
        failure: ClientError | KafkaError | None = None
        for index, way in enumerate(ways):
            try:
                with way() as cluster:
                    counts[index] = len(cluster.describe().brokers)
            except (ClientError, KafkaError) as error:
                failure = error
        if not counts:
            assert failure is not None
            raise failure
        return ways[max(counts, key=lambda index: counts[index])]()


def entrance_options(command: F) -> F:
    """Adds --bootstrap-server and --plaintext-bootstrap-server."""
    command = click.option(
        "--plaintext-bootstrap-server",
        default="",
        metavar="HOST:PORT[,...]",
        help="The brokers' listener without TLS, while clients move from one listener to the other.",
    )(command)
    return bootstrap_option(command)
