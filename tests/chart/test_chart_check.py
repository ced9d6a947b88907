"""The rules of `make check` for rendered manifests: each finds its planted fault, and none in sound
manifests.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools" / "kubernetes"
sys.path.insert(0, str(TOOLS))

import chart_check  # type: ignore[import-not-found]  # noqa: E402
import manifest_rules  # type: ignore[import-not-found]  # noqa: E402
import manifest_schemas  # type: ignore[import-not-found]  # noqa: E402

Manifest = dict[str, Any]

LABELS = {"app": "one"}
CONTAINER: Manifest = {
    "name": "main",
    "image": "localhost/one:1",
    "resources": {"limits": {"memory": "64Mi"}},
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    },
    "ports": [{"name": "metrics", "containerPort": 9404}],
    "livenessProbe": {"httpGet": {"path": "/livez", "port": "metrics"}},
    "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "a"}}}],
    "volumeMounts": [{"name": "config", "mountPath": "/etc/one"}],
}
POD_SPEC: Manifest = {
    "serviceAccountName": "one",
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "containers": [CONTAINER],
    "volumes": [{"name": "config", "configMap": {"name": "config"}}],
}


def named(kind: str, name: str, **rest: Any) -> Manifest:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **rest}


def release() -> list[Manifest]:
    deployment = {
        "selector": {"matchLabels": LABELS},
        "template": {"metadata": {"labels": LABELS}, "spec": POD_SPEC},
    }
    service = {"selector": LABELS, "ports": [{"port": 80, "targetPort": "metrics"}]}
    manifests = [
        named("ServiceAccount", "one"),
        named("ConfigMap", "config", data={}),
        named("Secret", "secret", data={}),
        named("Service", "one", spec=service),
        {**named("Deployment", "one", spec=deployment), "apiVersion": "apps/v1"},
    ]
    return copy.deepcopy(manifests)


def pod_of(manifests: list[Manifest]) -> Manifest:
    spec: Manifest = manifests[-1]["spec"]["template"]["spec"]
    return spec


def main_of(manifests: list[Manifest]) -> Manifest:
    container: Manifest = pod_of(manifests)["containers"][0]
    return container


CRON_SPEC: Manifest = {"jobTemplate": {"spec": {"template": {"spec": POD_SPEC}}}}


def test_a_sound_release_has_no_faults() -> None:
    assert manifest_rules.faults_of_release(release()) == []


Fault = Callable[[list[Manifest]], object]
FAULTS: list[tuple[Fault, str]] = [
    (lambda m: m.append(m[0]), "ServiceAccount/one: rendered twice"),
    (
        lambda m: m.append(named("CronJob", "a" * 53, spec=CRON_SPEC)),
        f"CronJob/{'a' * 53}: the name has 53 characters, and Kubernetes allows 52",
    ),
    (
        lambda m: m[3]["metadata"].update(name="1log"),
        "Service/1log: the name begins with a digit, or has other characters than letters, digits and '-'",
    ),
    (lambda m: m.pop(0), "Deployment/one: there is no ServiceAccount one"),
    (lambda m: m.pop(1), "Deployment/one: there is no ConfigMap config"),
    (lambda m: m.pop(2), "Deployment/one: there is no Secret secret"),
    (lambda m: m[3]["spec"].update(selector={"app": "two"}), "Service/one: no pod has the selected labels"),
    (
        lambda m: m[3]["spec"]["ports"][0].update(targetPort="rpc"),
        "Service/one: no selected pod has the port rpc",
    ),
    (
        lambda m: m[-1]["spec"]["selector"].update(matchLabels={"app": "two"}),
        "Deployment/one: the selector does not match the labels of the pods",
    ),
    (lambda m: pod_of(m)["securityContext"].pop("seccompProfile"), "Deployment/one: no seccomp profile"),
    (lambda m: pod_of(m)["securityContext"].pop("runAsNonRoot"), "Deployment/one: may run as root"),
    (lambda m: pod_of(m).update(hostNetwork=True), "Deployment/one: has hostNetwork"),
    (
        lambda m: main_of(m)["securityContext"].pop("allowPrivilegeEscalation"),
        "Deployment/one: main: may gain privileges",
    ),
    (lambda m: main_of(m)["securityContext"].pop("capabilities"), "Deployment/one: main: keeps capabilities"),
    (
        lambda m: main_of(m)["securityContext"].pop("readOnlyRootFilesystem"),
        "Deployment/one: main: the root file system is writable",
    ),
    (lambda m: main_of(m).pop("resources"), "Deployment/one: main: no memory limit"),
    (
        lambda m: main_of(m).update(image="one:latest"),
        "Deployment/one: main: the image one:latest has no fixed tag",
    ),
    (
        lambda m: main_of(m)["livenessProbe"]["httpGet"].update(port="health"),
        "Deployment/one: main: the container has no port health for its livenessProbe",
    ),
    (lambda m: main_of(m)["env"].append({"name": "A"}), "Deployment/one: main: A is set twice"),
    (
        lambda m: main_of(m)["volumeMounts"].append({"name": "data", "mountPath": "/data"}),
        "Deployment/one: main: mounts data, but the pod has no such volume",
    ),
    (
        lambda m: pod_of(m)["volumes"].append({"name": "config", "emptyDir": {}}),
        "Deployment/one: two volumes have the name config",
    ),
]


@pytest.mark.parametrize(("plant", "fault"), FAULTS, ids=[fault for _, fault in FAULTS])
def test_a_planted_fault_is_found(plant: Fault, fault: str) -> None:
    manifests = release()
    plant(manifests)
    assert manifest_rules.faults_of_release(manifests) == [fault]


def test_objects_from_the_values_are_not_checked() -> None:
    manifests = release()
    main_of(manifests).pop("resources")
    manifests.pop(2)
    given = {("Container", "main"), ("Secret", "secret")}
    assert manifest_rules.faults_of_release(manifests, given) == []


def test_a_repeated_key_is_an_error() -> None:
    with pytest.raises(chart_check.yaml.YAMLError, match="a is repeated"):
        list(chart_check.yaml.load_all("{a: 1, b: {}, a: 2}", chart_check._StrictLoader))


def test_closed_objects_are_strict_and_maps_are_not() -> None:
    schema = {
        "type": "object",
        "properties": {
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "port": {"x-kubernetes-int-or-string": True},
            # A field may have the name of a keyword.
            "nullable": {"type": "object", "properties": {"a": {"type": "string", "nullable": True}}},
        },
    }
    validator = manifest_schemas.Draft7Validator(manifest_schemas.made_strict(schema))
    assert validator.is_valid({"labels": {"x": "y"}, "port": "http", "nullable": {"a": None}})
    for wrong in ({"label": {}}, {"labels": {"x": 1}}, {"port": []}, {"nullable": {"b": ""}}):
        assert not validator.is_valid(wrong), wrong


SCHEMAS: list[tuple[Manifest, str]] = [
    ({**release()[-1], "spec": {**release()[-1]["spec"], "replica": 1}}, "'replica' was unexpected"),
    (
        named("Service", "one", spec={"ports": [{"port": "http"}]}),
        "spec.ports.0.port: 'http' is not of type 'integer'",
    ),
    (
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PodMonitor",
            "metadata": {"name": "m"},
            "spec": {"selector": {}, "podMetricsEndpoints": [{"intervall": "15s"}]},
        },
        "'intervall' was unexpected",
    ),
    (
        {
            "apiVersion": "cert-manager.io/v1",
            "kind": "Certificate",
            "metadata": {"name": "c"},
            "spec": {"secretName": "c"},
        },
        "spec: 'issuerRef' is a required property",
    ),
]


@pytest.mark.parametrize(("manifest", "fault"), SCHEMAS, ids=[str(m["kind"]) for m, _ in SCHEMAS])
def test_a_fault_is_found_by_the_kinds_own_schema(manifest: Manifest, fault: str) -> None:
    try:
        faults = manifest_schemas.faults_of(manifest)
    except manifest_schemas.SchemasMissingError as error:
        pytest.skip(str(error))
    assert len(faults) == 1
    assert fault in faults[0]


def test_an_unknown_kind_is_reported() -> None:
    try:
        with pytest.raises(manifest_schemas.UnknownKindError, match="core/v1 has no Broker"):
            manifest_schemas.faults_of(named("Broker", "one"))
    except manifest_schemas.SchemasMissingError as error:
        pytest.skip(str(error))
