"""Actions that need access to the node: they kill and freeze processes, and drop traffic between pods.

A privileged pod on each affected node performs them. The pod uses the release's own image (which contains
Python) and the node's iptables. It runs in a separate namespace, because the release's may forbid such pods,
and `remove_agents` deletes it. Before an action returns, frozen processes continue and dropped traffic flows
again, even if the action fails.
"""

from __future__ import annotations

import json
import time
from typing import Any

from chaoslib.exceptions import ActivityFailed

from tidelog_chaos.api import read
from tidelog_chaos.events import Event, event
from tidelog_chaos.kube import Pod, Release, await_none, kubectl
from tidelog_chaos.targets import pods_of

AGENTS = "tidelog-chaos-agents"
CHAIN = "TIDELOG-CHAOS"
SIGNAL_PROGRAM = """
import os, signal, sys, time
number, uids = getattr(signal, sys.argv[1]), sys.argv[2:]
found = []
for pid in os.listdir("/proc"):
    if pid.isdigit():
        try:
            mounts = [line.split() for line in open(f"/proc/{pid}/mountinfo")]
            if any(m[4] == "/etc/hosts" and uid in m[3] for m in mounts for uid in uids):
                found.append(int(pid))
        except OSError:
            pass
print(time.time())
for pid in found:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
sys.exit(0 if found else "no process of these pods")
"""
IPTABLES_PROGRAM = """
import os, subprocess, sys
os.chroot("/host")
os.chdir("/")
os.environ["PATH"] = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
ipt = ["iptables", "-w", "10"]
chain = sys.argv[1]
pairs = [pair.split(",") for pair in sys.argv[2:]]
have = subprocess.run(ipt + ["-n", "-L", chain], capture_output=True).returncode == 0
if pairs:
    if not have:
        subprocess.run(ipt + ["-N", chain], check=True)
        for hook in ("FORWARD", "OUTPUT"):
            subprocess.run(ipt + ["-I", hook, "1", "-j", chain], check=True)
    for a, b in pairs:
        subprocess.run(ipt + ["-A", chain, "-s", a, "-d", b, "-j", "DROP"], check=True)
elif have:
    for hook in ("FORWARD", "OUTPUT"):
        subprocess.run(ipt + ["-D", hook, "-j", chain], check=True)
    subprocess.run(ipt + ["-F", chain], check=True)
    subprocess.run(ipt + ["-X", chain], check=True)
"""


def signal_pods(release: Release, pods: list[Pod], name: str) -> float:
    """Sends the signal to all processes of the pods. Returns the time on this machine's monotonic clock, as
    accurately as the nodes' clocks agree with it.
    """
    before_s = time.monotonic()
    at_s = []
    for node in sorted({pod.node for pod in pods}):
        agent = _agent(release, node)
        said = _run(agent, SIGNAL_PROGRAM, name, *(pod.uid for pod in pods if pod.node == node))
        at_s.append(time.monotonic() - (time.time() - float(said)))
    return min(max(min(at_s), before_s), time.monotonic())


def freeze_pod(
    namespace: str, release: str, role: str, seconds: float = 15, topic: str = "chaos-log"
) -> list[Event]:
    """Freezes every process of one pod of the role for that long (SIGSTOP)."""
    found = Release(namespace, release)
    (pod,) = pods_of(found, role, 1, topic)
    try:
        at_s = signal_pods(found, [pod], "SIGSTOP")
        time.sleep(float(seconds))
    finally:
        until_s = signal_pods(found, [pod], "SIGCONT")
    return [event("freeze", role, pod.name, at_s, until_s=until_s)]


def partition_brokers(
    namespace: str, release: str, role: str = "leader", seconds: float = 20, topic: str = "chaos-log"
) -> list[Event]:
    """Cuts one broker off from all other brokers, while clients, controllers and etcd still reach it."""
    found = Release(namespace, release)
    (pod,) = pods_of(found, role, 1, topic)
    others = [other for other in found.pods("broker") if other.name != pod.name]
    return _partitioned(found, "partition-brokers", role, pod, others, float(seconds))


def partition_from_etcd(
    namespace: str, release: str, role: str = "leader", seconds: float = 20, topic: str = "chaos-log"
) -> list[Event]:
    """Cuts one pod off from etcd, while all other connections work."""
    found = Release(namespace, release)
    (pod,) = pods_of(found, role, 1, topic)
    return _partitioned(found, "partition-etcd", role, pod, found.pods("etcd"), float(seconds))


def _partitioned(
    release: Release, action: str, role: str, pod: Pod, others: list[Pod], seconds: float
) -> list[Event]:
    if not others:
        raise ActivityFailed(f"nothing to part {pod.name} from")
    nodes = sorted({pod.node, *(other.node for other in others)})
    agents = [_agent(release, node) for node in nodes]
    pairs = [f"{pod.ip},{other.ip}" for other in others] + [f"{other.ip},{pod.ip}" for other in others]
    try:
        for agent in agents:
            _run(agent, IPTABLES_PROGRAM, CHAIN, *pairs)
        at_s = time.monotonic()
        time.sleep(seconds)
    finally:
        for agent in agents:
            _run(agent, IPTABLES_PROGRAM, CHAIN)
    return [event(action, role, pod.name, at_s, until_s=time.monotonic())]


def heal_partitions(namespace: str, release: str) -> bool:
    """Removes all partitions. It is for rollbacks of actions that were interrupted."""
    for pod in json.loads(kubectl(AGENTS, "get", "pods", "-o", "json"))["items"]:
        if pod["status"].get("phase") == "Running":
            _run(pod["metadata"]["name"], IPTABLES_PROGRAM, CHAIN)
    return True


def remove_agents() -> bool:
    kubectl(AGENTS, "delete", "namespace", AGENTS, "--ignore-not-found", "--wait=false")
    return True


def _run(agent: str, program: str, *arguments: str) -> str:
    return kubectl(AGENTS, "exec", agent, "--", "python3", "-c", program, *arguments, timeout_s=120)


def _agent(release: Release, node: str) -> str:
    """Returns the name of the agent on this node, and starts one if there is none."""
    name = f"agent-{node}"
    if _phase(name) == "Running":
        return name
    kubectl(AGENTS, "apply", "-f", "-", given=json.dumps(_namespace()))
    if not _phase(name):
        kubectl(AGENTS, "apply", "-f", "-", given=json.dumps(_agent_pod(name, node, _image(release))))

    await_none(lambda: [] if _phase(name) == "Running" else [name], 60, "no agent")
    return name


def _phase(agent: str) -> str:
    """Returns the pod's phase, or an empty text if there is no such pod or it is terminating."""
    try:
        pod = json.loads(read(f"api/v1/namespaces/{AGENTS}/pods/{agent}"))
    except ActivityFailed:
        return ""
    return "" if "deletionTimestamp" in pod["metadata"] else str(pod["status"].get("phase", ""))


def _image(release: Release) -> dict[str, Any]:
    container = release.get("statefulsets", "broker")[0]["spec"]["template"]["spec"]["containers"][0]
    return {key: container[key] for key in ("image", "imagePullPolicy") if key in container}


def _namespace() -> dict[str, Any]:
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": AGENTS, "labels": labels}}


def _agent_pod(name: str, node: str, image: dict[str, Any]) -> dict[str, Any]:
    container = {
        "name": "agent",
        **image,
        "command": ["python3", "-c", "import signal; signal.sigwait([signal.SIGTERM])"],
        "securityContext": {"privileged": True, "runAsUser": 0},
        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
    }
    spec = {
        "nodeName": node,
        "hostPID": True,
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"operator": "Exists"}],
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": AGENTS}, "spec": spec}
