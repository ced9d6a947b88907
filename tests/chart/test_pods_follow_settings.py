"""A change of values replaces the pods that it affects, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]


def pod_templates(manifests: list[Manifest]) -> dict[str, Manifest]:
    kinds = ("StatefulSet", "Deployment")
    return {m["metadata"]["name"]: m["spec"]["template"] for m in manifests if m["kind"] in kinds}


# The image that an upgrade would find in the cluster, which `helm template` cannot read.
KEPT = "etcd.joinImage=localhost/tidelog:installed"


def exchanged(render: Render, *assignments: str) -> set[str]:
    before, after = pod_templates(render(KEPT)), pod_templates(render(KEPT, *assignments))
    return {name.removeprefix("t-tidelog-") for name in before if after.get(name) != before[name]}


BROKERS = {"broker-0", "broker-1", "broker-2"}
OTHERS = {"controller", "group-coordinator"}
EXTERNAL = "listeners.external.enabled=true,listeners.external.tls.secretName=certificates"


@pytest.mark.parametrize(
    ("assignment", "wanted"),
    [
        ("settings.log\\.retention\\.hours=5", BROKERS | OTHERS),
        ("brokers.settings.log\\.retention\\.hours=5", BROKERS),
        ("controllers.settings.log\\.retention\\.hours=5", {"controller"}),
        ("groupCoordinators.settings.log\\.retention\\.hours=5", {"group-coordinator"}),
        ("image.tag=next", BROKERS | OTHERS),
        (EXTERNAL, BROKERS),
        ("brokers.storage.size=20Gi", set()),
        ("brokers.replicas=5", set()),
        ("metrics.serviceMonitor.enabled=true", set()),
        ("networkPolicy.enabled=true", set()),
        ("roll.timeoutSeconds=60", set()),
    ],
)
def test_pods_are_exchanged(render: Render, assignment: str, wanted: set[str]) -> None:
    assert exchanged(render, assignment) == wanted


def test_more_brokers_do_not_change_the_settings_of_existing_ones(render: Render) -> None:
    """With three or more brokers, the defaults do not depend on their number."""
    (before,) = [m for m in render() if m["metadata"]["name"] == "t-tidelog-settings"]
    (after,) = [m for m in render("brokers.replicas=5") if m["metadata"]["name"] == "t-tidelog-settings"]
    assert before["data"] == after["data"]


def test_persistent_objects_have_the_labels_of_their_release(render: Render) -> None:
    for manifest in render(EXTERNAL, "networkPolicy.enabled=true"):
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "t", manifest["metadata"]["name"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm", manifest["metadata"]["name"]


def test_every_container_meets_the_restricted_standard(render: Render) -> None:
    seen = 0
    for manifest in render(EXTERNAL):
        spec = manifest.get("spec", {})
        pod = spec.get("jobTemplate", {}).get("spec", spec).get("template", {}).get("spec")
        if manifest["kind"] == "Pod":
            pod = spec
        if not pod:
            continue
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            seen += 1
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, (
                manifest["metadata"]["name"],
                container["name"],
            )
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"]["drop"] == ["ALL"]
            assert container["resources"]["requests"], (manifest["metadata"]["name"], container["name"])
    assert seen >= 10
