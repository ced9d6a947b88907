"""The most important alerts on a real cluster: a Prometheus with the chart's rules scrapes the pods of a
release of its own.

First, clients of all kinds use a healthy cluster: no alert fires, and of these, none is even pending. Then
each of them is provoked, fires with its labels after its own `for:`, and ends when its cause is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

from brokerlab.clients import connection, create_topic, new_producer
from chaoslab.small_volumes import VOLUME_MIB, small_volumes
from clusterlab.load import Load, LoadPlan
from e2e.inside import credentials, know_services
from e2e.kubectl import Kubectl, KubectlError, await_none
from e2e.outcome import Outcome
from e2e.release import Release
from e2e.settings import TAG
from kuberneteslab.chart_files import RULES, filled_in
from kuberneteslab.healthy_hour import clients
from kuberneteslab.prometheus import Prometheus, Target, is_installed

NAME: Final = "alerts"
FULLNAME: Final = f"{NAME}-tidelog"
SCRAPE_INTERVAL_S: Final = 5
SETTLE_TIMEOUT_S: Final = 180.0
HEALTHY_S: Final = float(os.environ.get("TIDELOG_E2E_HEALTHY_S", "180"))
INSTALL_TIMEOUT_S: Final = 180.0
CLIENT_TIMEOUT_S: Final = 30.0
REQUEST_TIMEOUT_S: Final = 10.0
LATE_S: Final = 100 * 60
LATE_RETENTION_MS: Final = 120 * 60 * 1000
GONE, FULL, FED, LONE, LATE, DESERTED = 2, 0, 1, "lone", "late", "deserted"
"""The broker that goes, the broker whose volume gets full, the broker whose memory does, a topic of one
replica, a group that is late and its topic, and a group that loses its member.
"""
DATA: Final = "/var/lib/tidelog"
FILL: Final = f"""
import os
found = os.statvfs({DATA!r})
file = os.open({DATA + "/ballast"!r}, os.O_WRONLY | os.O_CREAT, 0o600)
os.posix_fallocate(file, 0, found.f_bavail * found.f_frsize - found.f_blocks * found.f_frsize // 20)
"""
HOLD: Final = """
import sys
from tidelog.metrics.process_metrics import read_container_memory
memory = read_container_memory()
held = b"-" * int(memory.limit_bytes * 0.94 - memory.used_bytes)
sys.stdin.read()
"""
EMPTY: Final = f"import os; os.unlink({DATA + '/ballast'!r})"
VALUES: Final = {
    "listeners.internal.protocols": "{PLAINTEXT,SASL_SSL}",
    "listeners.replication.protocols": "{PLAINTEXT}",
    "authorization.enabled": "true",
    "users[0].name": "reader",
    "users[0].acls[0].topic": "flights",
    "users[0].acls[0].operations": "{read,describe}",
    "brokers.storage.size": f"{VOLUME_MIB}Mi",
}
PROVOKED: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "TidelogBrokerGone": ("a broker's pod stays Pending", {"broker_id": str(GONE)}),
    "TidelogUnderReplicatedPartitions": ("the same", {}),
    "TidelogOfflinePartitions": ("the same, and a topic of one replica", {}),
    "TidelogDiskAlmostFull": ("95 % of a broker's volume in use", {"broker": str(FULL)}),
    "TidelogMemoryAlmostFull": (
        "94 % of a broker's memory in use",
        {"pod": f"{FULLNAME}-broker-{FED}-0"},
    ),
    "TidelogLoginsFail": ("a client with a wrong password", {}),
    "TidelogAccessDenied": (
        "a client that lacks an ACL",
        {"operation": "DESCRIBE_CONFIGS", "resource_type": "TOPIC"},
    ),
    "TidelogUnreadDataExpires": ("unread records near the retention", {"consumergroup": LATE, "topic": LATE}),
    "TidelogGroupLags": ("a member that commits nothing", {"consumergroup": LATE, "topic": LATE}),
    "TidelogGroupWithoutMembers": ("a group's only member leaves", {"consumergroup": DESERTED}),
    "TidelogNoActiveController": ("no controller's pod", {}),
    "TidelogLeasesNotRenewed": ("no etcd pod", {}),
}
"""Maps an alert to its scenario and to the labels with which it fires."""


@dataclass
class Watch:
    """The state of the release's alerts in Prometheus, and when their causes began and ended."""

    release: Release
    prometheus: Prometheus
    bootstrap: str
    caused_s: dict[str, float] = field(default_factory=dict)
    healed_s: dict[str, float] = field(default_factory=dict)

    def cause(self, *alerts: str) -> None:
        self.caused_s |= dict.fromkeys(alerts, time.time())

    def heal(self, *alerts: str) -> None:
        self.healed_s |= dict.fromkeys(alerts, time.time())

    def await_firing(self, *alerts: str, timeout_s: float) -> None:
        await_none(lambda: [a for a in alerts if not self._has(a, "firing")], timeout_s, "not firing")
        say(f"firing: {', '.join(alerts)}")

    def await_silent(self, *alerts: str, timeout_s: float) -> None:
        await_none(lambda: [a for a in alerts if self._has(a)], timeout_s, "still active")
        say(f"silent: {', '.join(alerts)}")

    def _has(self, alert: str, *states: str) -> bool:
        labels = {"alertname": alert, **PROVOKED[alert][1]}.items()
        return any(
            labels <= found["labels"].items() and (not states or found["state"] in states)
            for found in self.prometheus.ask("alerts")["alerts"]
        )

    def active(
        self, duration_s: float, labels: Mapping[str, str] | None = None
    ) -> dict[str, dict[str, list[float]]]:
        """Returns the moments at which each alert with these labels was `pending` and `firing`."""
        matchers = ",".join(f'{name}="{value}"' for name, value in (labels or {}).items())
        found: dict[str, dict[str, list[float]]] = {}
        for series in self.prometheus.over(f"ALERTS{{{matchers}}}", duration_s, SCRAPE_INTERVAL_S):
            name, state = series["metric"]["alertname"], series["metric"]["alertstate"]
            moments = found.setdefault(name, {"pending": [], "firing": []})
            moments[state] += [float(at_s) for at_s, _ in series["values"]]
        return found

    def table(self, outcome: Outcome) -> str:
        """Returns a line for each alert, and for each other alert that fired."""
        duration_s = time.time() - min(self.caused_s.values())
        lines = [f"{'alert':34} {'scenario':38} {'pending':>7} {'fires':>7} {'ends':>7}"]
        for alert, (scenario, labels) in PROVOKED.items():
            caused_s, healed_s = self.caused_s[alert], self.healed_s[alert]
            moments = self.active(duration_s, {"alertname": alert, **labels})[alert]
            pending_s = min(at_s for at_s in moments["pending"] if at_s >= caused_s) - caused_s
            fires_s = min(at_s for at_s in moments["firing"] if at_s >= caused_s) - caused_s
            last_s = fires_s + caused_s
            for at_s in sorted(at_s for at_s in moments["firing"] if at_s > last_s):
                if at_s > healed_s and at_s - last_s > 1.5 * SCRAPE_INTERVAL_S:
                    break  # it fires again, in a later scenario
                last_s = at_s
            ends_s = max(0.0, last_s + SCRAPE_INTERVAL_S - healed_s)
            lines.append(f"{alert:34} {scenario:38} {pending_s:5.0f} s {fires_s:5.0f} s {ends_s:5.0f} s")
            outcome.figures[f"{alert} fires, s"] = fires_s
        active = self.active(duration_s)
        others = sorted(name for name in active.keys() - PROVOKED.keys() if active[name]["firing"])
        return "\n".join([*lines, f"others that fired: {', '.join(others) or 'none'}"])


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


class Scraping(threading.Thread):
    """Lets Prometheus scrape the release's pods, with the labels of the chart's monitors, as they come and
    go.
    """

    def __init__(self, release: Release, prometheus: Prometheus) -> None:
        super().__init__(daemon=True)
        self.is_over = threading.Event()
        self._release, self._prometheus = release, prometheus

    def run(self) -> None:
        known: list[Target] = []
        while not self.is_over.wait(SCRAPE_INTERVAL_S):
            try:
                found = targets_of(self._release)
            except KubectlError as error:
                say(f"the targets stay as they are: {error}")
                continue
            if found != known:
                self._prometheus.retarget(found)
                known = found


def targets_of(release: Release) -> list[Target]:
    """Returns a target for each pod with an address and a port for metrics, as Kubernetes' discovery does."""
    found = []
    for pod in release.kubectl.get("pods", "-l", f"app.kubernetes.io/instance={release.name}"):
        labels, address = pod["metadata"]["labels"], pod["status"].get("podIP")
        ports = [
            port["containerPort"]
            for container in pod["spec"]["containers"]
            for port in container.get("ports", [])
            if port["name"] == "metrics"
        ]
        if not address or not ports or pod["status"]["phase"] != "Running":
            continue
        added = {
            "namespace": release.kubectl.namespace,
            "pod": pod["metadata"]["name"],
            "release": labels["app.kubernetes.io/instance"],
            "component": labels["app.kubernetes.io/component"],
        }
        if "tidelog.io/broker-id" in labels:
            added["broker"] = labels["tidelog.io/broker-id"]
        found.append(Target("tidelog", f"{address}:{ports[0]}", added))
    return sorted(found, key=lambda target: target.labels["pod"])


@pytest.fixture(scope="module")
def watch(kubectl: Kubectl, slowness: float, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    if not kubectl.is_on_the_lab:
        pytest.skip("only the lab lets this machine fill volumes and scrape pods")
    if not is_installed():
        pytest.skip("prometheus is not installed: make kube-tools")
    directory = tmp_path_factory.mktemp("alerts")
    words = {
        "RELEASE_NAMESPACE": kubectl.namespace,
        "RELEASE_NAME": NAME,
        "RELEASE_FULLNAME": FULLNAME,
        "RUNBOOK_URL": "https://example.org",
    }
    rules = [directory / path.name for path in RULES]
    for path, source in zip(rules, RULES, strict=True):
        path.write_text(filled_in(source.read_text(), words))
    with contextlib.ExitStack() as stack:
        storage_class = stack.enter_context(small_volumes(kubectl, directory / "volumes", 3))
        values = {**VALUES, "brokers.storage.className": storage_class}
        release = Release(kubectl, NAME, values, os.environ[TAG])
        stack.callback(release.uninstall, INSTALL_TIMEOUT_S * slowness)
        say(f"ready after {release.install(INSTALL_TIMEOUT_S * slowness):.0f} s")
        know_services(kubectl, NAME)
        watched = Prometheus(directory / "prometheus", [], rules, scrape_interval_s=SCRAPE_INTERVAL_S)
        prometheus = stack.enter_context(watched)
        scraping = Scraping(release, prometheus)
        stack.callback(scraping.is_over.set)
        scraping.start()
        yield Watch(release, prometheus, _bootstrap(kubectl, 9092))


def _bootstrap(kubectl: Kubectl, port: int) -> str:
    domain = f"{kubectl.namespace}.svc.cluster.local"
    return ",".join(f"{FULLNAME}-broker-{broker}.{domain}:{port}" for broker in range(3))


def test_no_alert_fires_in_health(watch: Watch) -> None:
    components = {"broker": 3, "controller": 2, "group-coordinator": 2, "etcd": 1}

    def lacking() -> list[str]:
        by_component = {
            series["metric"]["component"]: int(series["value"][1])
            for series in watch.prometheus.now("sum by (component) (up)")
        }
        active = watch.prometheus.ask("alerts")["alerts"]
        wrong = [] if by_component == components else [f"scraped: {by_component}"]
        return wrong + [str(alert["labels"]) for alert in active]

    with clients(watch.bootstrap):
        await_none(lacking, SETTLE_TIMEOUT_S, "the release has not settled")
        say(f"healthy; {HEALTHY_S:.0f} s without an alert begin")
        time.sleep(HEALTHY_S)
        active = watch.active(HEALTHY_S)
    assert not [name for name, moments in active.items() if name in PROVOKED or moments["firing"]], active


def test_each_alert_fires_and_ends(watch: Watch, outcome: Outcome, slowness: float) -> None:
    kubectl, bootstrap = watch.release.kubectl, watch.bootstrap
    create_topic(bootstrap, "steady", 3, {"min.insync.replicas": "2"}, replication_factor=3)
    create_topic(bootstrap, LONE, 3)
    create_topic(bootstrap, LATE, 1, {"retention.ms": str(LATE_RETENTION_MS)}, replication_factor=3)
    _produce_late_records(bootstrap)
    await_s = 120 * slowness
    with contextlib.ExitStack() as stack:
        stack.enter_context(Load(bootstrap, LoadPlan("steady", 3, producers=1, records_per_s=30)))
        deserted = stack.enter_context(member(bootstrap, DESERTED, "steady"))
        watch.prometheus.await_true(
            lambda: bool(
                watch.prometheus.now(f'kafka_consumergroup_members{{consumergroup="{DESERTED}"}} > 0')
            ),
            f"a member of {DESERTED}",
            await_s,
        )

        watch.cause("TidelogGroupWithoutMembers")
        deserted.set()
        watch.cause("TidelogUnreadDataExpires", "TidelogGroupLags")
        late = stack.enter_context(member(bootstrap, LATE, LATE, commits_only_first=True))
        watch.cause("TidelogDiskAlmostFull")
        _python(kubectl, watch.release.pod_of(FULL), FILL)
        watch.cause("TidelogMemoryAlmostFull")
        held = stack.enter_context(_held_memory(kubectl, watch.release.pod_of(FED)))
        watch.cause("TidelogLoginsFail", "TidelogAccessDenied")
        intruders = stack.enter_context(_intruders(kubectl))
        gone = ("TidelogBrokerGone", "TidelogUnderReplicatedPartitions", "TidelogOfflinePartitions")
        watch.cause(*gone)
        _place(watch.release, GONE, "nowhere")

        watch.await_firing("TidelogDiskAlmostFull", timeout_s=60 + await_s)
        watch.heal("TidelogDiskAlmostFull")
        _python(kubectl, watch.release.pod_of(FULL), EMPTY)
        watch.await_firing("TidelogOfflinePartitions", timeout_s=60 + await_s)
        watch.await_firing("TidelogLoginsFail", "TidelogAccessDenied", timeout_s=300 + await_s)
        watch.heal("TidelogLoginsFail", "TidelogAccessDenied")
        intruders.set()
        watch.await_firing("TidelogMemoryAlmostFull", timeout_s=await_s)
        watch.heal("TidelogMemoryAlmostFull")
        held.communicate()
        assert held.returncode == 0, "the kernel has ended a process of that container"
        watch.await_firing("TidelogBrokerGone", "TidelogUnreadDataExpires", timeout_s=await_s)
        watch.await_firing("TidelogUnderReplicatedPartitions", "TidelogGroupLags", timeout_s=300 + await_s)
        watch.heal("TidelogUnreadDataExpires", "TidelogGroupLags")
        late.set()
        stack.enter_context(member(bootstrap, LATE, LATE))
        watch.heal(*gone)
        _place(watch.release, GONE, None)
        watch.await_silent(*gone, "TidelogUnreadDataExpires", "TidelogGroupLags", timeout_s=await_s)

        with _without(kubectl, f"deployment/{FULLNAME}-controller", 2, watch, "TidelogNoActiveController"):
            watch.await_firing("TidelogNoActiveController", timeout_s=60 + await_s)
        watch.await_firing("TidelogGroupWithoutMembers", timeout_s=300 + await_s)
        watch.heal("TidelogGroupWithoutMembers")
        stack.enter_context(member(bootstrap, DESERTED, "steady"))
        with _without(kubectl, f"statefulset/{FULLNAME}-etcd", 1, watch, "TidelogLeasesNotRenewed"):
            watch.await_firing("TidelogLeasesNotRenewed", timeout_s=90 + await_s)
        watch.await_silent(*PROVOKED, timeout_s=600 + await_s)
    print(watch.table(outcome))


def _produce_late_records(bootstrap: str) -> None:
    producer = new_producer(bootstrap)
    at_ms = int((time.time() - LATE_S) * 1000)
    for number in range(100):
        producer.produce(LATE, f"record {number}", timestamp=at_ms + number)
    assert producer.flush(CLIENT_TIMEOUT_S) == 0


def _place(release: Release, broker: int, node_label: str | None) -> None:
    """Replaces the broker's pod by one that needs a node with this label. None is for one that needs no
    label.
    """
    pod = release.pod_of(broker)
    selector = {"example.org/place": node_label}
    patch = json.dumps({"spec": {"template": {"spec": {"nodeSelector": selector}}}})
    release.kubectl.run("patch", "statefulset", f"{FULLNAME}-broker-{broker}", "-p", patch)
    release.kubectl.run("delete", "pod", pod, "--wait=false")


@contextlib.contextmanager
def _without(kubectl: Kubectl, workload: str, replicas: int, watch: Watch, alert: str) -> Iterator[None]:
    watch.cause(alert)
    kubectl.run("scale", workload, "--replicas=0")
    try:
        yield
    finally:
        watch.heal(alert)
        kubectl.run("scale", workload, f"--replicas={replicas}")


def _python(kubectl: Kubectl, pod: str, program: str) -> None:
    kubectl.run("exec", pod, "-c", "broker", "--", "python3", "-c", program)


def _held_memory(kubectl: Kubectl, pod: str) -> subprocess.Popen[bytes]:
    """Starts a process in the broker's container that holds memory until its input ends."""
    command = ["kubectl", "--namespace", kubectl.namespace, "exec", "-i", pod, "-c", "broker", "--"]
    return subprocess.Popen([*command, "python3", "-c", HOLD], env=kubectl.environment, stdin=subprocess.PIPE)


@contextlib.contextmanager
def member(
    bootstrap: str, group: str, topic: str, *, commits_only_first: bool = False
) -> Iterator[threading.Event]:
    """Runs the member of a group until the event is set. It commits all that it reads, or only the first
    record.
    """
    settings = {**connection(bootstrap), "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer({**settings, "enable.auto.commit": not commits_only_first})
    consumer.subscribe([topic])
    has_committed = not commits_only_first

    def step() -> None:
        nonlocal has_committed
        message = consumer.poll(0.5)
        if message is None or message.error() or has_committed:
            return
        with contextlib.suppress(KafkaException):  # the next record's commit is as good
            consumer.commit(message=message, asynchronous=False)
            has_committed = True

    with _repeated(step, consumer.close) as is_over:
        yield is_over


@contextlib.contextmanager
def _intruders(kubectl: Kubectl) -> Iterator[threading.Event]:
    """Runs a client with a wrong password, and one that asks for what it may not see, until the event is
    set.
    """
    login: dict[str, Any] = {
        "bootstrap.servers": _bootstrap(kubectl, 9096),
        **credentials(kubectl, FULLNAME, "reader"),
        "reconnect.backoff.max.ms": 1000,
        "log_level": 0,
    }
    # A consumer, because an AdminClient cannot be closed, and would go on guessing.
    guessing = Consumer({**login, "sasl.password": "a guess", "group.id": "guesses"})
    asking = AdminClient(login)

    def step() -> None:
        guessing.poll(0.5)
        asked = ConfigResource(ConfigResource.Type.TOPIC, LONE)
        with contextlib.suppress(KafkaException):  # denied, as it should be
            asking.describe_configs([asked], request_timeout=REQUEST_TIMEOUT_S)[asked].result(
                CLIENT_TIMEOUT_S
            )

    with _repeated(step, guessing.close) as is_over:
        yield is_over


@contextlib.contextmanager
def _repeated(step: Callable[[], None], end: Callable[[], None]) -> Iterator[threading.Event]:
    """Runs the step in a thread again and again, until the event is set or the block ends."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.is_set():
            step()
        end()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield is_over
    finally:
        is_over.set()
        thread.join(CLIENT_TIMEOUT_S)
