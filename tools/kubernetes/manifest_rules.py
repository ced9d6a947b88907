"""Rules that no schema can state: the objects of a release refer to each other correctly, and its pods are
restricted.

Each rule takes all objects of a rendered release and yields a sentence for each fault.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Set
from typing import Any, Final, NamedTuple

Manifest = dict[str, Any]

# Names of objects that Kubernetes creates in every namespace.
GIVEN: Final = {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}
# Names become labels of pods, which have at most 63 characters. For some kinds, Kubernetes appends eleven.
NAME_CHARACTERS: Final = {
    "CronJob": 52,
    "StatefulSet": 52,
    "Deployment": 63,
    "Job": 63,
    "Pod": 63,
    "Service": 63,
}
SERVICE_NAME: Final = re.compile("[a-z]([a-z0-9-]*[a-z0-9])?")


class PodOf(NamedTuple):
    """The description of a pod in an object."""

    owner: str
    kind: str
    labels: dict[str, str]
    spec: dict[str, Any]

    @property
    def containers(self) -> list[dict[str, Any]]:
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]


def faults_of_release(manifests: list[Manifest], given: Set[tuple[str, str]] = frozenset()) -> list[str]:
    """Returns the faults of all rules. `given` are the kinds and names of objects that exist without the
    chart.
    """
    pods = [pod for manifest in manifests for pod in _pods_of(manifest)]
    found = [
        *_twice(manifests),
        *_names(manifests),
        *_missing_references(manifests, pods, GIVEN | set(given)),
        *_services_without_pods(manifests, pods),
        *_selectors(manifests),
    ]
    for pod in pods:
        found += [
            f"{pod.owner}: {fault}" for fault in (*_unrestricted(pod, given), *_ports(pod), *_mounts(pod))
        ]
    return found


def name_of(manifest: Manifest) -> str:
    return f"{manifest.get('kind')}/{manifest.get('metadata', {}).get('name')}"


def _pods_of(manifest: Manifest) -> Iterator[PodOf]:
    kind, spec = manifest.get("kind", ""), manifest.get("spec") or {}
    if kind == "Pod":
        template: Manifest = manifest
    elif kind in ("Deployment", "StatefulSet", "DaemonSet", "Job"):
        template = spec["template"]
    elif kind == "CronJob":
        template = spec["jobTemplate"]["spec"]["template"]
    else:
        return
    pod_spec = dict(template["spec"])
    claims = [{"name": claim["metadata"]["name"]} for claim in spec.get("volumeClaimTemplates", ())]
    pod_spec["volumes"] = [*pod_spec.get("volumes", ()), *claims]
    yield PodOf(name_of(manifest), kind, template.get("metadata", {}).get("labels", {}), pod_spec)


def _twice(manifests: list[Manifest]) -> Iterator[str]:
    seen: set[tuple[str, str]] = set()
    for manifest in manifests:
        key = (manifest.get("apiVersion", ""), name_of(manifest))
        if key in seen:
            yield f"{name_of(manifest)}: rendered twice"
        seen.add(key)


def _names(manifests: list[Manifest]) -> Iterator[str]:
    for manifest in manifests:
        kind, name = manifest["kind"], str(manifest["metadata"]["name"])
        allowed = NAME_CHARACTERS.get(kind, 253)
        if len(name) > allowed:
            yield f"{name_of(manifest)}: the name has {len(name)} characters, and Kubernetes allows {allowed}"
        if kind == "Service" and not SERVICE_NAME.fullmatch(name):
            what = "begins with a digit, or has other characters than letters, digits and '-'"
            yield f"{name_of(manifest)}: the name {what}"


def _missing_references(
    manifests: list[Manifest], pods: list[PodOf], given: Set[tuple[str, str]]
) -> Iterator[str]:
    there = {(m["kind"], m["metadata"]["name"]) for m in manifests} | given
    # cert-manager creates the Secret that a Certificate names.
    there |= {("Secret", m["spec"]["secretName"]) for m in manifests if m["kind"] == "Certificate"}
    there |= set(_secrets_of_jobs(manifests))
    for pod in pods:
        for kind, name in _references(pod):
            if (kind, name) not in there:
                yield f"{pod.owner}: there is no {kind} {name}"


def _secrets_of_jobs(manifests: list[Manifest]) -> Iterator[tuple[str, str]]:
    """Yields the Secrets that Jobs create, for the users and for etcd."""
    for manifest in manifests:
        if manifest["kind"] == "Job":
            arguments = manifest["spec"]["template"]["spec"]["containers"][0]["args"]
            if arguments[1] == "password-secret":
                pairs = itertools.pairwise(arguments)
                yield from (
                    ("Secret", value.partition("=")[0]) for name, value in pairs if name == "--secret"
                )
        if manifest["kind"] == "ConfigMap" and "users.json" in manifest.get("data", {}):
            wanted = json.loads(manifest["data"]["users.json"])
            yield "Secret", wanted["admin"]
            yield from (("Secret", user["secret"]) for user in wanted["users"] if not user["isGiven"])


def _references(pod: PodOf) -> Iterator[tuple[str, str]]:
    if name := pod.spec.get("serviceAccountName"):
        yield "ServiceAccount", name
    for volume in pod.spec["volumes"]:
        if source := volume.get("configMap"):
            yield "ConfigMap", source["name"]
        if source := volume.get("secret"):
            yield "Secret", source["secretName"]
        if source := volume.get("persistentVolumeClaim"):
            yield "PersistentVolumeClaim", source["claimName"]
        for part in volume.get("projected", {}).get("sources", ()):
            for kind, key in (("ConfigMap", "configMap"), ("Secret", "secret")):
                if key in part:
                    yield kind, part[key]["name"]
    for container in pod.containers:
        for variable in container.get("env", ()):
            source = variable.get("valueFrom", {})
            for kind, key in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
                if key in source:
                    yield kind, source[key]["name"]


def _services_without_pods(manifests: list[Manifest], pods: list[PodOf]) -> Iterator[str]:
    for manifest in manifests:
        if manifest["kind"] != "Service" or not manifest["spec"].get("selector"):
            continue
        selector = manifest["spec"]["selector"].items()
        chosen = [pod for pod in pods if selector <= pod.labels.items()]
        if not chosen:
            yield f"{name_of(manifest)}: no pod has the selected labels"
        for port in manifest["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            if chosen and not any(target in _port_names(pod) for pod in chosen):
                yield f"{name_of(manifest)}: no selected pod has the port {target}"


def _selectors(manifests: list[Manifest]) -> Iterator[str]:
    for manifest in manifests:
        if manifest["kind"] in ("Deployment", "StatefulSet"):
            wanted = manifest["spec"]["selector"]["matchLabels"].items()
            if not wanted <= manifest["spec"]["template"]["metadata"]["labels"].items():
                yield f"{name_of(manifest)}: the selector does not match the labels of the pods"


def _port_names(pod: PodOf) -> set[Any]:
    ports = [port for container in pod.containers for port in container.get("ports", ())]
    return {port.get("name") for port in ports} | {port["containerPort"] for port in ports}


def _ports(pod: PodOf) -> Iterator[str]:
    for container in pod.containers:
        known = {port.get("name") for port in container.get("ports", ())}
        known |= {port["containerPort"] for port in container.get("ports", ())}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            for action in ("httpGet", "tcpSocket", "grpc"):
                port = container.get(probe, {}).get(action, {}).get("port")
                if port is not None and port not in known:
                    yield f"{container['name']}: the container has no port {port} for its {probe}"


def _mounts(pod: PodOf) -> Iterator[str]:
    volumes = [volume["name"] for volume in pod.spec["volumes"]]
    for name in {name for name in volumes if volumes.count(name) > 1}:
        yield f"two volumes have the name {name}"
    for container in pod.containers:
        names = [variable["name"] for variable in container.get("env", ())]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"{container['name']}: {name} is set twice"
        for mount in container.get("volumeMounts", ()):
            if mount["name"] not in volumes:
                yield f"{container['name']}: mounts {mount['name']}, but the pod has no such volume"


def _unrestricted(pod: PodOf, given: Set[tuple[str, str]]) -> Iterator[str]:
    """Checks Kubernetes' pod security standard `restricted`, and that the root file system is read-only."""
    of_pod = pod.spec.get("securityContext", {})
    if of_pod.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "no seccomp profile"
    if not of_pod.get("runAsNonRoot") or not of_pod.get("runAsUser"):
        yield "may run as root"
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.spec.get(field):
            yield f"has {field}"
    if any("hostPath" in volume for volume in pod.spec["volumes"]):
        yield "mounts a directory of the node"
    for container in pod.containers:
        if ("Container", container["name"]) in given:
            continue
        context = container.get("securityContext", {})
        if context.get("allowPrivilegeEscalation") is not False:
            yield f"{container['name']}: may gain privileges"
        if "ALL" not in context.get("capabilities", {}).get("drop", ()):
            yield f"{container['name']}: keeps capabilities"
        if not context.get("readOnlyRootFilesystem"):
            yield f"{container['name']}: the root file system is writable"
        if not container.get("resources", {}).get("limits", {}).get("memory"):
            yield f"{container['name']}: no memory limit"
        if container["image"].rpartition(":")[2] in ("latest", ""):
            yield f"{container['name']}: the image {container['image']} has no fixed tag"
