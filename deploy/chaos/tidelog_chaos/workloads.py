"""Actions on etcd, upgrades, and brokers that join and leave."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from chaoslib.exceptions import ActivityFailed

from tidelog_chaos.events import Event, event
from tidelog_chaos.kube import Release, await_none, kubectl

CHART = "TIDELOG_CHAOS_CHART"
UPGRADE_TAG = "TIDELOG_CHAOS_UPGRADE_TAG"
REPOSITORYS_CHART = Path(__file__).resolve().parents[3] / "charts/tidelog"
WAS = "tidelog.io/chaos-replicas"
HELM_TIMEOUT_S = 600


def stop_etcd(namespace: str, release: str, seconds: float = 120) -> list[Event]:
    """Scales all etcd members to zero for that long."""
    found = Release(namespace, release)
    sets = found.get("statefulsets", "etcd")
    if not sets:
        raise ActivityFailed("this release has no etcd of its own")
    at_s = time.monotonic()
    for item in sets:
        name, members = item["metadata"]["name"], item["spec"]["replicas"]
        kubectl(namespace, "annotate", "statefulset", name, f"{WAS}={members}", "--overwrite")
        kubectl(namespace, "scale", "statefulset", name, "--replicas=0")
    try:
        time.sleep(float(seconds))
    finally:
        start_etcd(namespace, release)
    return [event("stop-etcd", "etcd", sets[0]["metadata"]["name"], at_s, until_s=time.monotonic())]


def start_etcd(namespace: str, release: str) -> bool:
    """Restores the members that `stop_etcd` removed."""
    for item in Release(namespace, release).get("statefulsets", "etcd"):
        members = item["metadata"].get("annotations", {}).get(WAS)
        if members and not item["spec"]["replicas"]:
            kubectl(namespace, "scale", "statefulset", item["metadata"]["name"], f"--replicas={members}")
    return True


def upgrade(namespace: str, release: str) -> list[Event]:
    """Upgrades to the image TIDELOG_CHAOS_UPGRADE_TAG. Without it, an annotation makes every pod roll."""
    tag = os.environ.get(UPGRADE_TAG, "")
    stamp = f"at-{int(time.time())}"
    values = [f"{part}.podAnnotations.tidelog\\.io/chaos={stamp}" for part in ("brokers", "controllers")]
    values += [f"groupCoordinators.podAnnotations.tidelog\\.io/chaos={stamp}"]
    if tag:
        values.append(f"image.tag={tag}")
    at_s = time.monotonic()
    _helm_upgrade(namespace, release, values)
    return [event("upgrade", "release", tag or stamp, at_s, until_s=time.monotonic())]


def scale_brokers(namespace: str, release: str, replicas: int) -> list[Event]:
    """Scales the brokers by chart values, as a user does. Brokers that leave are drained first. It returns
    when the requested number serves.
    """
    at_s = time.monotonic()
    _helm_upgrade(namespace, release, [f"brokers.replicas={replicas}", "scaleIn.drain=true"])
    found = Release(namespace, release)

    def wrong() -> list[str]:
        ready = [pod.name for pod in found.pods("broker") if pod.is_ready]
        return [] if len(ready) == int(replicas) else [f"{len(ready)} of {replicas} brokers"]

    await_none(wrong, 120, "not scaled")
    return [event("scale", "brokers", str(replicas), at_s, until_s=time.monotonic())]


def rebalance(namespace: str, release: str, throttle_bytes: int = 20_000_000) -> list[Event]:
    """Moves replicas to brokers that joined, with a throttle. It returns when the replicas have moved."""
    at_s = time.monotonic()
    command = ["tidelog", "rebalance", "--execute", "--throttle", str(throttle_bytes), "--timeout", "300"]
    tried: list[str] = []

    def refused() -> list[str]:
        """Returns True if the load's errors are refusals. Unresolved names and busy nodes do not count."""
        pods = [pod for pod in Release(namespace, release).pods("broker") if pod.is_ready]
        tried.append(pods[len(tried) % len(pods)].name)
        kubectl(namespace, "exec", tried[-1], "-c", "broker", "--", *command, timeout_s=360)
        return []

    await_none(refused, 120, "no rebalance")
    return [event("rebalance", "brokers", tried[-1], at_s, until_s=time.monotonic())]


def _helm_upgrade(namespace: str, release: str, values: list[str]) -> None:
    chart = os.environ.get(CHART) or str(REPOSITORYS_CHART)
    settings = [f"--set-string={v}" if "podAnnotations" in v else f"--set={v}" for v in values]
    command = [
        "helm",
        "upgrade",
        release,
        chart,
        "--namespace",
        namespace,
        "--reset-then-reuse-values",
        *settings,
    ]
    command += ["--reset-then-reuse-values", "--wait", f"--timeout={HELM_TIMEOUT_S}s"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=HELM_TIMEOUT_S + 60,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        raise ActivityFailed(f"helm upgrade: {done.stderr.strip()}")
