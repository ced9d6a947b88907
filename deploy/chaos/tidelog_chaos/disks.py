"""Actions that fill a broker's volume for a limited time."""

from __future__ import annotations

import time

from chaoslib.exceptions import ActivityFailed

from tidelog_chaos.events import Event, event
from tidelog_chaos.kube import Release, kubectl
from tidelog_chaos.targets import pods_of

DATA = "/var/lib/tidelog"
BALLAST = f"{DATA}/chaos-ballast"
MOST_BYTES = 4 << 30
FILL_PROGRAM = f"""
import os, sys
free = os.statvfs({DATA!r}).f_bavail * os.statvfs({DATA!r}).f_frsize
if free > {MOST_BYTES}:
    sys.exit(f"{{free >> 20}} MiB are free: more than a volume of its own for experiments has")
file = os.open({BALLAST!r}, os.O_WRONLY | os.O_CREAT, 0o600)
block = bytes(1 << 20)
while block:
    try:
        os.write(file, block)
    except OSError:
        block = block[: len(block) // 2]
"""
FREE_PROGRAM = f"import pathlib; pathlib.Path({BALLAST!r}).unlink(missing_ok=True)"


def fill_volume(
    namespace: str, release: str, role: str = "follower", seconds: float = 20, topic: str = "chaos-log"
) -> list[Event]:
    """Fills the volume to the last byte for that long. It refuses volumes with more free space than those
    made for experiments, because such a volume may be the node's own disk.
    """
    found = Release(namespace, release)
    (pod,) = pods_of(found, role, 1, topic)
    at_s = time.monotonic()
    try:
        _python(namespace, pod.name, FILL_PROGRAM)
        time.sleep(float(seconds))
    finally:
        free_volumes(namespace, release)
    return [event("fill-volume", role, pod.name, at_s, until_s=time.monotonic())]


def free_volumes(namespace: str, release: str) -> bool:
    for pod in Release(namespace, release).pods("broker"):
        try:
            _python(namespace, pod.name, FREE_PROGRAM)
        except ActivityFailed:
            if pod.is_ready:
                raise
    return True


def _python(namespace: str, pod: str, program: str) -> None:
    kubectl(namespace, "exec", pod, "-c", "broker", "--", "python3", "-c", program, timeout_s=120)
