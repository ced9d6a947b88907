"""Probes for the health of the release and of the load."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path

from chaoslib.exceptions import ActivityFailed

from tidelog_chaos.kube import OFFICE, Release, await_none

UNDER_REPLICATED = "kafka_server_replicamanager_underreplicatedpartitions"
OFFLINE = "kafka_controller_kafkacontroller_offlinepartitionscount"
LOAD_DIRECTORY = "TIDELOG_CHAOS_LOAD"
STATUS_FILE = "status.json"


def is_whole(namespace: str, release: str, within_s: float = 120) -> bool:
    """Returns True if every pod is ready, every replica in sync, every partition has a leader, and one
    controller is active.
    """
    found = Release(namespace, release)
    await_none(lambda: lacking(found), float(within_s), "not whole")
    return True


def lacking(release: Release) -> list[str]:
    """Returns what the release lacks."""
    wrong = []
    serving = Counter(pod.component for pod in release.pods() if pod.is_ready)
    for item in release.workloads():
        # A pod that was just deleted is still counted in its owner's status, but it no longer exists.
        component = item["metadata"].get("labels", {}).get("app.kubernetes.io/component", "")
        serving[component] -= item["spec"].get("replicas", 1)
        wanted = item["spec"].get("replicas", 1)
        ready = item["status"].get("readyReplicas", 0)
        if ready < wanted or item["status"].get("replicas", 0) > wanted:
            wrong.append(f"{item['metadata']['name']}: {ready} of {wanted} ready")
    wrong += [f"{-more} pods of {component} missing" for component, more in serving.items() if more < 0]
    if wrong:
        return wrong
    for pod in release.pods("broker"):
        metrics = release.metrics(pod.name)
        if metrics.get(UNDER_REPLICATED, 1) > 0:
            wrong.append(f"{pod.name}: {metrics.get(UNDER_REPLICATED, 'unknown')} under-replicated")
    metrics_of = [release.metrics(pod.name) for pod in release.pods("controller")]
    offices = [metrics for metrics in metrics_of if metrics.get(OFFICE) == 1]
    if len(offices) != 1:
        wrong.append(f"{len(offices)} active controllers")
    elif offices[0].get(OFFLINE, 0) > 0:
        wrong.append(f"{offices[0][OFFLINE]:.0f} partitions offline")
    return wrong


def load_is_served(within_s: float = 60, silence_s: float = 5, directory: str = "") -> bool:
    """Returns True if, within this time, every partition of the load acknowledges, no partition was silent
    for longer than `silence_s`, and no client got a forbidden error. Returns True if no load is observed.
    """
    where = directory or os.environ.get(LOAD_DIRECTORY, "")
    if not where:
        return True
    await_none(lambda: _complaints(Path(where), float(silence_s)), float(within_s), "the load is not served")
    return True


def _complaints(directory: Path, silence_s: float) -> list[str]:
    try:
        status = json.loads((directory / STATUS_FILE).read_text())
    except (OSError, ValueError) as error:
        raise ActivityFailed(f"no status of the load: {error}") from error
    age_s = time.monotonic() - status["at_s"]
    silent = [
        f"partition {partition}: last acknowledged {last_s} s ago"
        for partition, last_s in status["silence_s"].items()
        if last_s is None or last_s + age_s > silence_s
    ]
    return list(status["complaints"]) + silent
