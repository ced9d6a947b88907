"""After helm install, pods are ready soon, `helm test` passes, and every pod is as restricted as it
claims.
"""

from __future__ import annotations

from e2e.outcome import Outcome
from e2e.release import Release

READY_GOAL_S = 60.0
TEST_TIMEOUT_S = 120.0


def test_a_release_is_ready_within_a_minute(release: Release, outcome: Outcome, slowness: float) -> None:
    took_s = outcome.figures["install to ready, s"]
    print(f"install to ready: {took_s:.1f} s")
    assert took_s < READY_GOAL_S * slowness


def test_helm_test_produces_consumes_and_commits(release: Release, slowness: float) -> None:
    said = release.test(TEST_TIMEOUT_S * slowness)
    print(said)
    assert "Phase:          Succeeded" in said
    assert "Phase:          Failed" not in said


def test_no_container_was_started_twice(release: Release) -> None:
    """A container that crashes at its first start and works at the second is a fault."""
    restarts = {
        pod["metadata"]["name"]: status["restartCount"]
        for pod in release.kubectl.get("pods", "-l", f"app.kubernetes.io/instance={release.name}")
        for status in pod["status"].get("containerStatuses", [])
        if status["restartCount"]
    }
    assert not restarts
